"""Erasure: every thread of a person is found by its checkpoints, and deleted with all that belongs to it.

No store has an index on owners: all headers are read, thread by thread, again until nothing is found, since a run that
continues may put a thread back. An erasure that broke off is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from uuid import UUID

from langgraph_keel.engine.audit import check_by
from langgraph_keel.engine.checkpoints import delete_thread
from langgraph_keel.engine.config import check_owner
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Page
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.tables import NODE_CACHE, Cells
from langgraph_keel.errors import (
    AccessDenied,
    CorruptStore,
    InvalidInput,
    KeelError,
    ReadOnlyStore,
    StoreClosed,
    StoreUnavailable,
)
from langgraph_keel.retention.holds import Hold, hash_of, read_holds, refusal
from langgraph_keel.retention.owners import read_thread_owners
from langgraph_keel.retention.sweep import read_policies

ROUNDS = 5
"""Walks that are made at most: whoever writes without a pause must be stopped first."""
THREADS, STRAYS = 200, 500
"""What is read at once."""
OF_ALL = (ReadOnlyStore, StoreClosed, AccessDenied, StoreUnavailable)
"""Errors that the next thread would meet as well."""

Tell: TypeAlias = Callable[[int, int | None], object]
Shared: TypeAlias = Literal["report", "delete"]
Cached: TypeAlias = Literal["clear", "report"]
What: TypeAlias = Literal["threads", "data", "all"]


@dataclass(frozen=True, slots=True)
class Order:
    """The threads and records that are to be erased."""

    user: str  # as metadata has it
    dry_run: bool
    shared: Shared  # for threads that name others as well
    node_cache: Cached  # for results of nodes, which name no thread
    by: str | None
    what: What = "threads"

    @property
    def user_hash(self) -> str:
        """What stands for the person where something is kept."""
        return hash_of(self.user)

    @property
    def actor(self) -> str | None:
        """Who erases, as may be kept: whoever erases their own data leaves a hash."""
        return self.user_hash if self.by == self.user else self.by


def check_user(user_id: object) -> str:
    """Return the id of a person as metadata has it."""
    is_id = isinstance(user_id, str | int | UUID) and not isinstance(user_id, bool)
    user = str(user_id) if is_id else ""
    check_owner(user, "user_id")
    if not user:
        raise InvalidInput(
            f"user_id must be a text (or a number, or a UUID), as in configurable['user_id'], not {user_id!r:.100}"
        )
    return user


def check_order(
    user_id: object, dry_run: bool, shared: str, node_cache: str, reclaim: bool | str, by: str | None, what: str
) -> Order:
    """Check the arguments of an erasure, and return them as an order."""
    user = check_user(user_id)
    if what not in ("threads", "data", "all"):
        raise InvalidInput(f"what must be 'threads', 'data' or 'all', not {what!r}")
    if type(dry_run) is not bool:
        raise InvalidInput(f"dry_run must be True or False, not {dry_run!r}")
    if reclaim not in (True, False, "full"):
        raise InvalidInput(f"reclaim must be True, False or 'full', not {reclaim!r}")
    if shared not in ("report", "delete"):
        raise InvalidInput(f"shared must be 'report' or 'delete', not {shared!r}")
    if node_cache not in ("clear", "report"):
        raise InvalidInput(f"node_cache must be 'clear' or 'report', not {node_cache!r}")
    check_by(by)
    return Order(user, dry_run, shared, node_cache, by, what)  # type: ignore[arg-type]


@dataclass(slots=True)
class ThreadOwners:
    """What was found of one thread."""

    owners: set[str] = field(default_factory=set)
    checkpoints: int = 0
    requests: int = 0


@dataclass(slots=True)
class Owners:
    """The result of a walk over all threads."""

    threads: dict[str, ThreadOwners] = field(default_factory=dict)  # of the person, or with requests
    unowned: int = 0  # threads without an owner
    named: int = 0  # requests of others that name the person as the one who decides
    policies: int = 0  # with the person's id in the pattern of their threads
    failed: dict[str, str] = field(default_factory=dict)  # why threads could not be read

    def of(self, user: str) -> tuple[list[str], list[str]]:
        """Return the threads that are this person's alone, and those that name others, too."""
        found = {name: whose for name, whose in self.threads.items() if user in whose.owners}
        alone = sorted(name for name, whose in found.items() if len(whose.owners) == 1)
        return alone, sorted(found.keys() - set(alone))


@dataclass(slots=True)
class Erased:
    """The progress of an erasure, of which its `Receipt` is made."""

    order: Order
    threads: dict[str, ThreadOwners] = field(default_factory=dict)  # as they were seen first
    shared: list[str] = field(default_factory=list)  # threads that name others as well
    cached: int = 0  # results of nodes that were removed, or are there
    owners: Owners = field(default_factory=Owners)
    strays: int = 0  # threads without a checkpoint and a known owner
    failed: dict[str, str] = field(default_factory=dict)  # why threads could not be read or deleted
    problems: list[str] = field(default_factory=list)
    items: int = 0  # in the store; removed, unless only threads were to be


# -- looking -----------------------------------------------------------------------------------------------------------


def read_owners(session: Session, user: str, tell: Tell) -> Plan[Owners]:
    """Read who is named in any thread. Two trips or more for each thread, and one for each 500 requests."""
    found = Owners()
    for hear in session.hooks.find_owners:
        for holding in (yield from hear(session, user)):
            if holding.problem:
                found.failed[holding.thread_id] = holding.problem
                continue
            whose = found.threads.setdefault(holding.thread_id, ThreadOwners())
            whose.owners |= {holding.owner} if holding.owner else set()
            whose.requests += 1
            found.named += holding.is_named
    with suppress(CorruptStore):  # they keep nobody from being erased
        found.policies = sum(user in policy.threads for policy in (yield from read_policies(session)))
    seen, after, page = 0, None, THREADS
    while page == THREADS:
        infos = yield from session.store.read_threads(Page(after, THREADS))
        for info, _ in infos:
            yield from _add_thread(session, info.thread_id, user, found)
            seen += 1
            tell(seen, None)
        page, after = len(infos), (infos[-1][0].updated_at, infos[-1][0].thread_id) if infos else None
    return found


def _add_thread(session: Session, thread_id: str, user: str, found: Owners) -> Plan[None]:
    try:
        whose = ThreadOwners(*(yield from read_thread_owners(session, thread_id)))
    except KeelError as error:
        # Nor is it the person's for what it has asked: its checkpoints may name others.
        found.threads.pop(thread_id, None)
        found.failed[thread_id] = f"it cannot be read, so nobody knows whose it is: {error}"
        return
    asked = found.threads.pop(thread_id, ThreadOwners())
    whose.owners |= asked.owners
    whose.requests = asked.requests
    found.unowned += not whose.owners
    if user in whose.owners:
        found.threads[thread_id] = whose


def each_stray(store: Store[Any, Any], take: Callable[[str], object]) -> Plan[None]:
    """Give the threads that hold something and show no checkpoint to `take`, one by one."""
    page = yield from store.list_strays(None, STRAYS)
    while page:
        for thread_id in page:
            take(thread_id)
        page = (yield from store.list_strays(page[-1], STRAYS)) if len(page) == STRAYS else ()


# -- erasing -----------------------------------------------------------------------------------------------------------


def erase(session: Session, order: Order, tell: Tell) -> Plan[Erased]:
    """Delete the threads of a person, their items, or both. With `dry_run`, only count them."""
    erased, holds = Erased(order), (yield from read_holds(session))
    if order.user in holds:
        raise refusal(f"{order.user!r}", holds[order.user])
    if order.what != "data":
        yield from _erase_threads(session, erased, holds, tell)
    held = holds.keys() if order.what != "threads" else ()
    try:
        for hear in session.hooks.erase_items:
            items, problems = yield from hear(session, order.user, held, order.what != "threads" and not order.dry_run)
            erased.items += items
            erased.problems += problems
    except KeelError as error:  # the threads are gone by now, and the receipt must say so
        erased.problems.append(f"items of the store could not be looked for: {error}")
    return erased


def _erase_threads(session: Session, erased: Erased, holds: Mapping[str, Hold], tell: Tell) -> Plan[None]:
    """Delete all threads of a person, except those that name a person on hold; or look which ones they are."""
    order, held = erased.order, dict[str, str]()
    for nth in range(ROUNDS):
        erased.owners = yield from read_owners(session, order.user, tell)
        alone, erased.shared = erased.owners.of(order.user)
        for name in erased.shared if order.shared == "delete" and holds else ():
            for owner in sorted(erased.owners.threads[name].owners & holds.keys()):
                held[name] = str(refusal(f"thread {name!r}", holds[owner]))
        going = [*alone, *(erased.shared if order.shared == "delete" else [])]
        going = [name for name in going if name not in held]
        # Once more those of the first walk: a task that was cut off may have left writes, or a cell, and no checkpoint.
        again = [*erased.threads] if nth == 1 else []
        erased.threads = {name: erased.owners.threads[name] for name in going} | erased.threads
        if nth == 0 and going:
            # Before the first thread goes: the results in it do not say whose they are.
            cache, clears = Cells(session, NODE_CACHE, None), order.node_cache == "clear" and not order.dry_run
            erased.cached += (yield from cache.clear()) if clears else len((yield from cache.every_raw()))
        if order.dry_run:
            break
        yield from _delete_threads(session, erased, list(dict.fromkeys([*going, *again])), tell)
        if not going:
            break
    else:
        erased.failed |= dict.fromkeys(going, "written to again and again: stop its runs, and erase again")
    erased.failed = erased.owners.failed | erased.failed | held
    try:
        yield from _count_strays(session, erased, tell)
    except KeelError as error:  # the threads are gone by now, and the receipt must say so
        erased.problems.append(f"what has no checkpoint could not be looked for: {error}")


def _count_strays(session: Session, erased: Erased, tell: Tell) -> Plan[None]:
    """Count the threads that hold something but no checkpoint; those that were just deleted are deleted again."""
    # A step that ends after its thread was deleted leaves its writes or cells, and nothing says whose they are.
    ours: list[str] = []

    def take(thread_id: str) -> None:
        if thread_id in erased.threads:
            ours.append(thread_id)
        else:
            # A request that is still there says whose the thread was.
            known = erased.owners.threads.get(thread_id)
            erased.strays += not (known and known.owners)

    yield from each_stray(session.store, take)
    if ours and not erased.order.dry_run:
        yield from _delete_threads(session, erased, ours, tell)


def _delete_threads(session: Session, erased: Erased, going: Sequence[str], tell: Tell) -> Plan[None]:
    for nth, thread_id in enumerate(going):
        tell(nth, len(going))
        erased.failed.pop(thread_id, None)
        try:
            yield from delete_thread(session, thread_id)
        except OF_ALL:
            raise
        except KeelError as error:
            erased.failed[thread_id] = f"it could not be deleted: {error}"
    tell(len(going), len(going))
