"""What is live in a saver, what its plans need, and what carries them out.

A `Session` is what a plan is given: the store, the codec, the memo, the hooks, and where time and randomness come from
(no plan asks a clock by itself, so tests own them). An `Engine` brings plans and drivers together. LangGraph makes
shallow copies of savers (`with_allowlist`), and programs assign `saver.serde`: each has a session of its own then, and
they share everything in it but the codec.

The memo is what a process knows of the threads it served last, so that `put` needs no read. Bounded by entries and by
bytes; the least recently used goes first. Forgetting costs at most a read (see `checkpoints.put`), never correctness:
everything in it is checked against the store by the entry it is based on.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar
from weakref import WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_keel.engine.config import Owner
from langgraph_keel.engine.encoding.bodies import RAW, WORTHWHILE, open_frame
from langgraph_keel.engine.encoding.values import Known, Version, without_bodies
from langgraph_keel.engine.errands import AsyncErrandDriver, Call, ErrandDriver
from langgraph_keel.engine.leases import Pause
from langgraph_keel.engine.plan import AsyncDriver, Driver, Plan, Q, R, StorePlan
from langgraph_keel.engine.records import Entry, Found, Stamp, Unchanged
from langgraph_keel.engine.serde.copies import Copies
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.tenants import check_tenant, read_tenants
from langgraph_keel.errors import InvalidInput

T = TypeVar("T")
AnySaver = TypeVar("AnySaver", bound="EngineSaver")
OnConflict: TypeAlias = Literal["raise", "fork"]


def iso_time(milliseconds: int) -> str:
    """Return a time, given in milliseconds since 1970, as ISO text."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


# -- the memo ----------------------------------------------------------------------------------------------------------

_memos: WeakSet[Memo] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock at that moment; here nobody would give it back.
    for memo in list(_memos):
        memo.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

DEFAULT_ENTRIES = 100
DEFAULT_BYTES = 64 << 20
CONTENTS = 16 << 20
"""Bytes of what compressed frames hold. Of reading a text of 200 KB again, decompressing it took 250 of 340 µs."""


class KnownEntry:
    """One entry this process stored or read, and what it knows of its channels.

    Attributes:
        entry: The entry.
        channels: What stands in items.
        versions: The versions of its channels.
        version: What makes copies of its values, or of those of the entry before it; `False` if that had no room.
        header: What makes copies of its header, once it was read again; `False` if it is decoded each time.
        weight: Bytes this takes in memory, about.
        is_whole: Whether it has the bodies of all rows, so that it can be read from it.
    """

    __slots__ = ("channels", "entry", "header", "is_whole", "version", "versions", "weight")

    def __init__(
        self,
        entry: Entry,
        channels: Mapping[str, Known],
        versions: Mapping[str, Any],
        version: Version | None = None,
    ) -> None:
        self.entry, self.channels, self.versions = entry, channels, versions
        self.is_whole = True
        self.version: Version | Literal[False] | None = version
        self.header: Copies | Literal[False] | None = None
        self.weigh()

    def weigh(self) -> None:
        """Find out what it weighs."""
        entry, known = self.entry, self.channels.values()
        self.weight = 1000 + 200 * len(entry.refs) + len(entry.header) + sum([each.weight for each in known])
        self.weight += (self.version.nbytes if self.version else 0) + (self.header.nbytes if self.header else 0)

    @property
    def stamp(self) -> Stamp:
        """What the store calls the entry."""
        return self.entry.stamp

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the entry."""
        return self.entry.address.checkpoint_id

    def drop_copies(self, most: int) -> None:
        """Forget what copies are made of, if it takes more bytes than that: they are no reason to forget the entry."""
        if self.weight > most and self.version:
            self.version, self.header = False, None
            self.weigh()

    def within(self, most: int) -> KnownEntry | None:
        """Return itself, without the bodies of its rows if it would take more bytes than that.

        What is left is enough for the next put, which must not write again all that the thread has; who reads gets the
        rows from the store. `None` if it is not even that, for nobody has looked at one of the values yet.
        """
        found = self
        if self.weight > most:
            light = {name: without_bodies(known) for name, known in self.channels.items()}
            kept = {name: known for name, known in light.items() if known is not None}
            if len(kept) < len(light):
                return None
            found = KnownEntry(self.entry, kept, self.versions)
        found.is_whole = all(row.body for known in found.channels.values() for row in known.rows)
        return found

    def refresh(self, now: Unchanged, rows: bool) -> Found:
        """Return the entry as the store would, with what may have changed beside it, and with its rows if asked to."""
        entry = self.entry
        if entry.parent != now.parent:
            entry = Entry(entry.address, now.parent, entry.stamp, entry.header, entry.refs, entry.run_id)
        return Found(entry, {name: known.rows for name, known in self.channels.items()} if rows else {}, now.batches)


class Memo:
    """The last known entry of each (thread, namespace).

    Args:
        entries: Most of them.
        nbytes: Most bytes that they take, about. One that takes more by itself is known without what its rows hold.
    """

    def __init__(self, entries: int = DEFAULT_ENTRIES, nbytes: int = DEFAULT_BYTES) -> None:
        self._entries = entries
        self._room = self._most = nbytes
        self._bases: OrderedDict[tuple[str, str], tuple[KnownEntry, int]] = OrderedDict()
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._contents_room = CONTENTS
        self.lock = Lock()
        _memos.add(self)

    def empty(self) -> Memo:
        """Return one of the same size that knows nothing."""
        return Memo(self._entries, self._most)

    def get(self, key: tuple[str, str]) -> KnownEntry | None:
        """Return what is known of a (thread, namespace)."""
        with self.lock:
            if key not in self._bases:
                return None
            self._bases.move_to_end(key)
            return self._bases[key][0]

    def set(self, key: tuple[str, str], base: KnownEntry) -> None:
        """Remember `base`, forgetting others if there is no room."""
        base.drop_copies(self._most)
        kept = base.within(self._most)
        with self.lock:
            if kept is not None:
                self._set(key, kept)
            elif key in self._bases and self._bases[key][0].stamp != base.stamp:
                self._remove(key)

    def _set(self, key: tuple[str, str], base: KnownEntry) -> None:
        self._remove(key)
        self._bases[key] = base, base.weight
        self._room -= base.weight
        while self._bases and (len(self._bases) > self._entries or self._room < 0):
            self._remove(next(iter(self._bases)))

    def weigh(self, key: tuple[str, str], base: KnownEntry) -> None:
        """Count what is known of an entry anew, if that is what is known still; forget others if there is no room."""
        with self.lock:
            if key in self._bases and self._bases[key][0] is base:
                base.weigh()
                base.drop_copies(self._most)
                self._set(key, base)

    def forget(self, key: tuple[str, str]) -> None:
        """Forget a (thread, namespace)."""
        with self.lock:
            self._remove(key)

    def forget_thread(self, thread_id: str) -> None:
        """Forget all namespaces of a thread."""
        with self.lock:
            for key in [key for key in self._bases if key[0] == thread_id]:
                self._remove(key)
            self._contents.clear()
            self._contents_room = CONTENTS

    def open_frame(self, body: bytes, opener: Callable[[bytes], bytes] = open_frame) -> bytes:
        """Return what `opener` does, opening no large frame again that was opened a moment ago."""
        if type(body) is not bytes or len(body) < WORTHWHILE // 8 or body.startswith(RAW):
            return opener(body)
        with self.lock:
            content = self._contents.pop(body, None)
            if content is not None:
                self._contents[body] = content  # the last one used goes last
                return content
        content = opener(body)
        with self.lock:
            if self._contents.setdefault(body, content) is content:
                self._contents_room -= len(content)
            while self._contents_room < 0:
                self._contents_room += len(self._contents.popitem(last=False)[1])
        return content

    def _remove(self, key: tuple[str, str]) -> None:
        if key in self._bases:
            self._room += self._bases.pop(key)[1]


# -- the hooks ---------------------------------------------------------------------------------------------------------


class Hooks:
    """The hooks of one saver (`engine.hooks.Hook`): for each event, a tuple with the methods that want to hear it.

    Args:
        hooks: In the order in which they hear what is about to happen.
    """

    begin: Sequence[Any]
    read: Sequence[Any]
    draft_put: Sequence[Any]
    before_put: Sequence[Any]
    after_put: Sequence[Any]
    put_failed: Sequence[Any]
    draft_writes: Sequence[Any]
    before_writes: Sequence[Any]
    after_writes: Sequence[Any]
    writes_failed: Sequence[Any]
    before_travel: Sequence[Any]
    after_travel: Sequence[Any]
    travel_failed: Sequence[Any]
    after_copy: Sequence[Any]
    keep: Sequence[Any]
    before_remove: Sequence[Any]
    after_remove: Sequence[Any]
    after_runs_removed: Sequence[Any]
    before_delete: Sequence[Any]
    before_sweep: Sequence[Any]
    find_owners: Sequence[Any]
    find_terms: Sequence[Any]
    describe_thread: Sequence[Any]
    revive: Sequence[Any]

    def __init__(self, hooks: Sequence[Any] = ()) -> None:
        self.all = tuple(hooks)
        _check_kinds(self.all)
        for event in EVENTS:
            heard = [getattr(hook, event) for hook in hooks if hook.listens_to(event)]
            is_past = event.startswith("after_") or event.endswith("_failed")
            setattr(self, event, tuple(reversed(heard) if is_past else heard))

    def find(self, kind: type[T]) -> T | None:
        """Return the hook of a class; `None` if there is none."""
        return next((hook for hook in self.all if isinstance(hook, kind)), None)


def _check_kinds(hooks: Sequence[Any]) -> None:
    """See that each kind of cells is one feature's."""
    tables: dict[str, tuple[Any, Any]] = {}
    for hook in hooks:
        for table in (*hook.tables, *hook.shared_tables):
            known, owner = tables.setdefault(table.kind, (table, hook))
            if known is not table:
                raise InvalidInput(
                    f"{type(owner).__name__} and {type(hook).__name__} both keep cells of the kind {table.kind!r}: "
                    "give the kind of your own feature another name"
                )


EVENTS = tuple(Hooks.__annotations__)
"""What a hook may listen to: the methods of `Hook`."""


def tell(heard: Sequence[Callable[..., Plan[None] | None]], *told: Any) -> Plan[None]:
    """Tell the hooks that listen to an event (`session.hooks.after_put`, say), one after the other."""
    for hear in heard:
        plan = hear(*told)
        if plan is not None:
            yield from plan


# -- what plans are given ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """What a plan needs of its saver.

    Attributes:
        store: The layout of the data.
        codec: How values become bytes.
        memo: What this process knows of the threads it served last.
        hooks: The features that listen.
        clock: Returns the time, in UTC.
        new_token: Returns 32 letters and digits, never the same again.
        new_id: Returns the id of a checkpoint of a step; it sorts after all ids before it.
        driver: Carries out plans, blocking: for what a feature does in a thread of its own. No plan uses it.
        on_conflict: What becomes of the second of two puts that continue one checkpoint.
        owner: The program's own function, which says whose a run is where its config does not.
        tenant: Whose threads these are; empty for those of no tenant, and `None` where none but tenants may have any.
        state_version: The newest version of the application's states that the program knows.
    """

    store: Store[Any, Any]
    codec: Codec
    memo: Memo
    hooks: Hooks
    clock: Callable[[], datetime]
    new_token: Callable[[], str]
    new_id: Callable[[int], str]
    driver: Driver[Any, Any]
    on_conflict: OnConflict = "raise"
    owner: Owner | None = None
    tenant: str | None = ""
    state_version: int = 1

    def with_placeholders(self) -> Session:
        """Return a session for who only looks: placeholders stand for what may not be read, and none is remembered."""
        return replace(self, codec=self.codec.with_placeholders(), memo=Memo(0, 0))

    @property
    def milliseconds(self) -> int:
        """The time, in milliseconds since 1970."""
        return int(self.clock().timestamp() * 1000)

    @property
    def now(self) -> str:
        """The time as ISO text, to the millisecond."""
        return self.clock().isoformat(timespec="milliseconds")


# -- what carries them out ---------------------------------------------------------------------------------------------


def run(plan: StorePlan[Q, R, T], driver: Driver[Q, R]) -> T:
    """Drive `plan` to its end with a blocking driver; errors of the driver are raised inside the plan."""
    try:
        request = next(plan)
        while True:
            try:
                reply = driver.send(request)
            except BaseException as error:
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


async def arun(plan: StorePlan[Q, R, T], driver: AsyncDriver[Q, R], begun: Q | None = None) -> T:
    """As `run`, asynchronously; of a plan that has begun, from its first request on."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task else 0
    try:
        request = next(plan) if begun is None else begun
        while True:
            try:
                reply = await driver.send(request)
                if task and task.cancelling() > cancels:
                    # psycopg and redis-py wait with wait_for, which up to Python 3.11 swallows a cancellation that
                    # comes together with the reply (bpo-37658).
                    raise asyncio.CancelledError
            except BaseException as error:
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


_left: set[asyncio.Task[Any]] = set()
"""Plans whose caller was cancelled: a loop refers to its tasks weakly."""


async def arun_whole(plan: StorePlan[Q, R, T], driver: AsyncDriver[Q, R]) -> T:
    """As `arun`, but if the caller is cancelled, the plan is carried out to its end, and its hooks hear of that."""
    try:
        request = next(plan)  # in the caller's own turn: rule 3 of plan.py
    except StopIteration as done:
        value: T = done.value
        return value
    task = asyncio.create_task(arun(plan, driver, request))
    ended = asyncio.get_running_loop().create_future()  # a third cheaper than `asyncio.wait`
    task.add_done_callback(lambda _: ended.done() or ended.set_result(None))  # type: ignore[func-returns-value]
    try:
        await ended
    except asyncio.CancelledError:
        _left.add(task)
        task.add_done_callback(_forget_left)
        raise
    return task.result()


def _forget_left(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio logs that it was never retrieved


class GatedDriver:
    """A driver that carries out a check before its first request, and is the driver itself afterwards.

    Args:
        bare: The driver.
        check: Returns the plan of the check, which may raise.
    """

    def __init__(self, bare: Driver[Any, Any], check: Callable[[], Plan[None]]) -> None:
        self.bare = bare
        self._check = check

    def send(self, request: Any) -> Any:
        """Carry out the check, and send a request."""
        run(self._check(), self.bare)
        vars(self)["send"] = self.bare.send  # from now on there is no call between
        return self.bare.send(request)

    def __getattr__(self, name: str) -> Any:
        """Return what the driver says of itself, such as `read_only`."""
        return getattr(self.bare, name)


class AsyncGatedDriver:
    """As `GatedDriver`, for a running loop."""

    def __init__(self, bare: AsyncDriver[Any, Any], check: Callable[[], Plan[None]]) -> None:
        self.bare = bare
        self._check = check

    async def send(self, request: Any) -> Any:
        """Carry out the check, and send a request."""
        await arun(self._check(), self.bare)
        vars(self)["send"] = self.bare.send
        return await self.bare.send(request)


def bare(driver: Any) -> Any:
    """Return a driver without the check before its first request."""
    return driver.bare if isinstance(driver, GatedDriver | AsyncGatedDriver) else driver


class Closer(Protocol):
    """What writes some things later than it is asked to: `close` does so before the store is closed."""

    def close(self) -> None:
        """Write it. Safe to call again."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What a saver runs on. All copies of a saver share the drivers, the closers, and all of the session but its codec.

    Attributes:
        session: What plans are given, and what carries them out, blocking.
        async_driver: Carries them out without blocking a loop.
        closers: What is to be closed before the store is.
    """

    session: Session
    async_driver: AsyncDriver[Any, Any]
    closers: WeakSet[Closer] = field(default_factory=WeakSet)

    @property
    def driver(self) -> Driver[Any, Any]:
        """Carries plans out, blocking."""
        return self.session.driver

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan, blocking."""
        return run(plan, self.driver)

    async def arun(self, plan: Plan[T]) -> T:
        """Carry out a plan without blocking the running loop."""
        return await arun(plan, self.async_driver)

    async def arun_whole(self, plan: Plan[T]) -> T:
        """As `arun`, of a plan that ends what it has begun, also if its caller is cancelled."""
        return await arun_whole(plan, self.async_driver)

    def run_patiently(self, plan: Plan[T]) -> T:
        """As `run`, of a plan that may have to wait for others, or calls functions that block."""
        return run(plan, ErrandDriver(self.driver, Pause, Call))

    async def arun_patiently(self, plan: Plan[T]) -> T:
        """As `run_patiently`, asynchronously."""
        return await arun(plan, AsyncErrandDriver(self.async_driver, Pause, Call))

    def with_serde(self, serde: SerializerProtocol) -> Engine:
        """Return an engine on the same store whose plans encode values so."""
        codec, memo = Codec(serde, self.session.codec.alone), self.session.memo
        if not (codec.is_own and self.session.codec.is_own):
            memo = memo.empty()  # what one serializer was given, another need not give back
        return replace(self, session=replace(self.session, codec=codec, memo=memo))

    def with_drivers(
        self, driver: Driver[Any, Any] | None = None, async_driver: AsyncDriver[Any, Any] | None = None
    ) -> Engine:
        """Return an engine on the same store whose plans are carried out by others."""
        session = replace(self.session, driver=driver or self.driver)
        return replace(self, session=session, async_driver=async_driver or self.async_driver)

    def is_same_store(self, other: Engine) -> bool:
        """Return whether another engine has the same threads, by the same connections."""
        return self.is_same_place(other) and self.session.tenant == other.session.tenant

    def is_same_place(self, other: Engine) -> bool:
        """Return whether another engine has the same connections, for the same threads or for those of a tenant."""
        return bare(self.driver) is bare(other.driver)


class EngineSaver(BaseCheckpointSaver[Any]):
    """A saver that runs on an engine of Keel; features use nothing else of it."""

    _engine: Engine

    def _place(self) -> str:
        """Return where the store is, as far as the saver knows, for people; backends override it."""
        return ""

    @property
    def engine(self) -> Engine:
        """What this saver runs on: for those who write a feature of their own (`langgraph_keel.engine`).

        Raises:
            InvalidInput: It was made with `tenants="required"`, and is no tenant's.
        """
        if self._engine.session.tenant is None:
            raise InvalidInput('this saver was made with tenants="required": use saver.for_tenant(name)')
        # Programs assign `saver.serde`.
        if not self._engine.session.codec.uses(self.serde):
            self._engine = self._engine.with_serde(self.serde)
        return self._engine

    @property
    def tenant(self) -> str | None:
        """The tenant whose threads this saver has; `None` for those of no tenant."""
        return self._engine.session.tenant or None

    def for_tenant(self, name: str) -> Self:
        """Return a saver on the same store and connections in which only one tenant's threads exist. No round trip.

        It has all methods, and all that they find is the tenant's: threads, approvals, tool calls, policies, labels,
        archives, the audit trail. What others have is not there, under whatever name; and the saver that this was
        called on has nothing of any tenant. With `encryption`, each tenant has a key of its own. The same object is
        returned for the same name, while somebody holds it. Closing it gives back nothing that others use; closing this
        saver closes all.

        Args:
            name: 1 to 64 letters, digits, `.`, `_`, `@`, `+` and `-`; the first one a letter or digit.

        Raises:
            InvalidInput: It cannot be a tenant's name; this saver is a tenant's itself; or the backend has no tenants.
        """
        if self.tenant is not None:
            raise InvalidInput(f"this saver is tenant {self.tenant!r}'s: call for_tenant on the one that it came from")
        return self._view(check_tenant(name))

    def _view(self, tenant: str) -> Self:
        """Return the saver of a tenant."""
        raise NotImplementedError


def engine_of(saver: object) -> Engine | None:
    """Return what a checkpointer runs on; `None` if it is none of Keel's."""
    engine = getattr(saver, "engine", None)
    return engine if isinstance(engine, Engine) else None


def shared_engine(saver: EngineSaver) -> Engine:
    """Return the engine of a saver that may have no threads itself (`tenants="required"`)."""
    return saver._engine


def engines_of(saver: EngineSaver) -> Iterator[Engine]:
    """Yield the engine of a saver and those of all tenants, for work on all that a store holds. Blocks."""
    shared = shared_engine(saver)
    if shared.session.tenant is not None:
        yield saver.engine
    for tenant in () if saver.tenant else shared.run(read_tenants(shared.session.store)):
        yield saver.for_tenant(tenant).engine


def with_engine(saver: AnySaver, engine: Engine) -> AnySaver:
    """Return a copy of a saver that runs on another engine."""
    clone = copy.copy(saver)
    clone._engine = engine
    return clone
