"""Erasure: finds and deletes every thread of a person, with all its records.

No store has an index on the owners of all checkpoints, so all headers are read, thread by thread. This repeats until no
thread is found, because a run that continues may write its thread again. The next erasure finishes an interrupted one.
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
"""Maximum number of walks over all threads. Runs that write without a pause must be stopped first."""
THREADS, STRAYS = 200, 500
"""Page sizes: threads and strays per request."""
OF_ALL = (ReadOnlyStore, StoreClosed, AccessDenied, StoreUnavailable)
"""Errors that would also occur for the next thread."""

Tell: TypeAlias = Callable[[int, int | None], object]
Shared: TypeAlias = Literal["report", "delete"]
Cached: TypeAlias = Literal["clear", "report"]
What: TypeAlias = Literal["threads", "data", "all"]


@dataclass(frozen=True, slots=True)
class Order:
    """The threads and records to erase."""

    user: str  # as in metadata
    dry_run: bool
    shared: Shared  # for threads that also name other people
    node_cache: Cached  # for cached results of nodes, which have no thread
    by: str | None
    what: What = "threads"

    @property
    def user_hash(self) -> str:
        """The hash that represents the person in kept records."""
        return hash_of(self.user)

    @property
    def actor(self) -> str | None:
        """The author of the erasure for the record; a hash if people erase their own data."""
        return self.user_hash if self.by == self.user else self.by


def check_user(user_id: object) -> str:
    """Return the id of a person as in metadata."""
    is_id = isinstance(user_id, str | int | UUID) and not isinstance(user_id, bool)
    user = str(user_id) if is_id else ""
    check_owner(user, "user_id")
    if not user:
        raise InvalidInput(
            f"user_id must be a string, a number or a UUID, as in configurable['user_id'], not {user_id!r:.100}"
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
    """The owners and counts of one thread."""

    owners: set[str] = field(default_factory=set)
    checkpoints: int = 0
    requests: int = 0


@dataclass(slots=True)
class Owners:
    """The result of a walk over all threads."""

    threads: dict[str, ThreadOwners] = field(default_factory=dict)  # of the person, or with requests
    unowned: int = 0  # threads without an owner
    named: int = 0  # requests of others that name the person as a reviewer
    policies: int = 0  # whose thread pattern contains the person's id
    failed: dict[str, str] = field(default_factory=dict)  # why threads could not be read

    def of(self, user: str) -> tuple[list[str], list[str]]:
        """Return the threads of this person only, and those that also name other people."""
        found = {name: whose for name, whose in self.threads.items() if user in whose.owners}
        alone = sorted(name for name, whose in found.items() if len(whose.owners) == 1)
        return alone, sorted(found.keys() - set(alone))


@dataclass(slots=True)
class Erased:
    """The progress of an erasure, from which its `Receipt` is made."""

    order: Order
    threads: dict[str, ThreadOwners] = field(default_factory=dict)  # as first seen
    shared: list[str] = field(default_factory=list)  # threads that also name other people
    cached: int = 0  # results of nodes, removed or counted
    owners: Owners = field(default_factory=Owners)
    strays: int = 0  # threads without a checkpoint and a known owner
    failed: dict[str, str] = field(default_factory=dict)  # why threads could not be read or deleted
    problems: list[str] = field(default_factory=list)
    items: int = 0  # in the store; removed unless only threads are erased


# -- finding -----------------------------------------------------------------------------------------------------------


def read_owners(session: Session, user: str, tell: Tell) -> Plan[Owners]:
    """Read the owners of all threads.

    Two or more trips for each thread, and one for each 500 requests.
    """
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
    with suppress(CorruptStore):  # damaged policies do not prevent an erasure
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
        # Its requests do not prove its owner either: its checkpoints may name other people.
        found.threads.pop(thread_id, None)
        found.failed[thread_id] = f"it cannot be read, so its owner is unknown: {error}"
        return
    asked = found.threads.pop(thread_id, ThreadOwners())
    whose.owners |= asked.owners
    whose.requests = asked.requests
    found.unowned += not whose.owners
    if user in whose.owners:
        found.threads[thread_id] = whose


def each_stray(store: Store[Any, Any], take: Callable[[str], object]) -> Plan[None]:
    """Pass each stray (a thread with records but no checkpoint) to `take`."""
    page = yield from store.list_strays(None, STRAYS)
    while page:
        for thread_id in page:
            take(thread_id)
        page = (yield from store.list_strays(page[-1], STRAYS)) if len(page) == STRAYS else ()


# -- erasing -----------------------------------------------------------------------------------------------------------


def erase(session: Session, order: Order, tell: Tell) -> Plan[Erased]:
    """Delete (or with `dry_run` count) a person's threads, items, or both."""
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
    except KeelError as error:  # the threads are already deleted, and the receipt must show that
        erased.problems.append(f"items of the store could not be searched: {error}")
    return erased


def _erase_threads(session: Session, erased: Erased, holds: Mapping[str, Hold], tell: Tell) -> Plan[None]:
    """Delete (or with `dry_run` find) a person's threads that are not on hold."""
    order, held = erased.order, dict[str, str]()
    for nth in range(ROUNDS):
        erased.owners = yield from read_owners(session, order.user, tell)
        alone, erased.shared = erased.owners.of(order.user)
        for name in erased.shared if order.shared == "delete" and holds else ():
            for owner in sorted(erased.owners.threads[name].owners & holds.keys()):
                held[name] = str(refusal(f"thread {name!r}", holds[owner]))
        going = [*alone, *(erased.shared if order.shared == "delete" else [])]
        going = [name for name in going if name not in held]
        # Those of the first walk again: an interrupted task may have left writes or a cell without a checkpoint.
        again = [*erased.threads] if nth == 1 else []
        erased.threads = {name: erased.owners.threads[name] for name in going} | erased.threads
        if nth == 0 and going:
            # Before the first thread is deleted: cached results have no owner.
            cache, clears = Cells(session, NODE_CACHE, None), order.node_cache == "clear" and not order.dry_run
            erased.cached += (yield from cache.clear()) if clears else len((yield from cache.every_raw()))
        if order.dry_run:
            break
        yield from _delete_threads(session, erased, list(dict.fromkeys([*going, *again])), tell)
        if not going:
            break
    else:
        erased.failed |= dict.fromkeys(going, "it was written to after each deletion: stop its runs, then erase again")
    erased.failed = erased.owners.failed | erased.failed | held
    try:
        yield from _count_strays(session, erased, tell)
    except KeelError as error:  # the threads are already deleted, and the receipt must show that
        erased.problems.append(f"threads without a checkpoint could not be searched: {error}")


def _count_strays(session: Session, erased: Erased, tell: Tell) -> Plan[None]:
    """Count strays. Delete those again whose threads were just deleted."""
    # A step that ends after its thread was deleted leaves writes or cells without an owner.
    ours: list[str] = []

    def take(thread_id: str) -> None:
        if thread_id in erased.threads:
            ours.append(thread_id)
        else:
            # A remaining request names the thread's owner.
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
