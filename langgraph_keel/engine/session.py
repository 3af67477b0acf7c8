"""The session, which is passed to each plan. Its clock lets tests control time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar, TypeVarTuple

from langgraph_keel.engine.config import Address, Owner
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.events import Copy, Holding, Leaving, Put, Reading, Revived, Travel, Writes
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.plan import Driver, Plan
from langgraph_keel.engine.records import Found, ThreadInfo
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import InvalidInput

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
OnConflict: TypeAlias = Literal["raise", "fork"]


@dataclass(frozen=True, slots=True)
class Session:
    """The parts of a saver that plans use.

    Attributes:
        clock: Returns the time, in UTC.
        new_token: Returns a unique token of 32 letters and digits.
        new_id: Returns a checkpoint id for a step, which sorts after all earlier ids.
        driver: The blocking driver, for background threads of features. Plans do not use it.
        on_conflict: How to treat the second of two checkpoints that continue the same parent.
        owner: The program's function that returns the owner of a run whose config names none.
        tenant: The tenant of the threads; empty for none, and `None` if only tenants may have threads.
        state_version: The newest version of the application's states that the program knows.
        ephemeral: Channels that are not stored.
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
    ephemeral: frozenset[str] = frozenset()

    def with_placeholders(self) -> Session:
        """Return a session without memo, with placeholders for refused values."""
        return replace(self, codec=self.codec.with_placeholders(), memo=Memo(0, 0))

    @property
    def milliseconds(self) -> int:
        """The time, in milliseconds since 1970."""
        return int(self.clock().timestamp() * 1000)

    @property
    def now(self) -> str:
        """The time as ISO text, to the millisecond."""
        return self.clock().isoformat(timespec="milliseconds")


Heard: TypeAlias = Callable[[Session, *Ts], Plan[None] | None]
"""A method of a hook that listens to an event."""


class Hooks:
    """The hooks of a saver (`engine.hooks.Hook`): the overriding methods per event."""

    begin: Sequence[Heard[Reading]]
    read: Sequence[Heard[Reading]]
    read_failed: Sequence[Heard[Reading, BaseException]]
    draft_put: Sequence[Heard[Put]]
    before_put: Sequence[Heard[Put]]
    after_put: Sequence[Heard[Put]]
    put_failed: Sequence[Heard[Put, BaseException]]
    draft_writes: Sequence[Heard[Writes]]
    before_writes: Sequence[Heard[Writes]]
    after_writes: Sequence[Heard[Writes]]
    writes_failed: Sequence[Heard[Writes, BaseException]]
    before_travel: Sequence[Heard[Travel]]
    after_travel: Sequence[Heard[Travel]]
    travel_failed: Sequence[Heard[Travel, BaseException]]
    after_copy: Sequence[Heard[Copy]]
    keep: Sequence[Callable[[Session, str, Any], Plan[Collection[Address]]]]
    before_remove: Sequence[Heard[Leaving]]
    after_remove: Sequence[Heard[Leaving]]
    after_runs_removed: Sequence[Heard[Collection[str], Sequence[str]]]
    before_delete: Sequence[Heard[str]]
    before_sweep: Sequence[Callable[[Session, float | None], Plan[Sequence[Any]]]]
    reclaim: Sequence[Callable[[Session, bool], Plan[str]]]
    find_owners: Sequence[Callable[[Session, str], Plan[Sequence[Holding]]]]
    erase_items: Sequence[Callable[[Session, str, Collection[str], bool], Plan[tuple[int, Sequence[str]]]]]
    find_relatives: Sequence[Callable[[Session, str], Plan[Sequence[str]]]]
    find_warnings: Sequence[Callable[[Session, str, str, str, Sequence[str]], Plan[Sequence[tuple[str, str]]]]]
    find_terms: Sequence[Callable[[Header], Mapping[str, Collection[Any]]]]
    describe_thread: Sequence[Callable[[ThreadInfo, Header], ThreadInfo]]
    revive: Sequence[Callable[[Session, Found, Header, Collection[str] | None], Revived | None]]

    def __init__(self, hooks: Sequence[Any] = ()) -> None:  # `engine.hooks` imports this module, so no `Hook` here
        self.all = tuple(hooks)
        tables: dict[str, tuple[Any, Any]] = {}
        for hook in hooks:
            for table in (*hook.tables, *hook.shared_tables):
                known, owner = tables.setdefault(table.kind, (table, hook))
                if known is not table:
                    raise InvalidInput(
                        f"{type(owner).__name__} and {type(hook).__name__} both keep cells of the kind "
                        f"{table.kind!r}: give the kind of your own feature another name"
                    )
        for event in Hooks.__annotations__:
            heard = [getattr(hook, event) for hook in hooks if hook.listens_to(event)]
            is_past = event.startswith("after_") or event.endswith("_failed")
            setattr(self, event, tuple(reversed(heard) if is_past else heard))

    def find(self, kind: type[T]) -> T | None:
        """Return the hook of a class; `None` if there is none."""
        return next((hook for hook in self.all if isinstance(hook, kind)), None)


def tell(heard: Sequence[Callable[[*Ts], Plan[None] | None]], *told: *Ts) -> Plan[None]:
    """Call the hooks of an event, such as `session.hooks.after_put`, in turn."""
    for hear in heard:
        yield from hear(*told) or ()
