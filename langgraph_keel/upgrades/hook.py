"""The hook that stores the application's version, and upgrades older checkpoints.

The version is stored in the header, and with the writes of tasks, as tasks of two versions may write to one checkpoint.
Checkpoints are upgraded when they are read, and nothing is written. Checkpoints and writes without a version have
version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import STATE, Header, check_state, merge_batches, state_beside, state_of
from langgraph_keel.engine.events import Put, Revived, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.records import Found, Kind
from langgraph_keel.engine.serde.serializer import find_unread
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import KeelError, RefusedType, UpgradeFailed
from langgraph_keel.upgrades.chain import Chain, Upgrade, graph_of, name_of_class
from langgraph_keel.upgrades.state import Refused, StoredState, Write


class UpgradeHook(Hook):
    """Stores the application's version, and upgrades checkpoints of older ones."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def draft_put(self, session: Session, put: Put) -> None:
        """Add the version to a checkpoint."""
        put.header.about[STATE] = self.chain.version

    def draft_writes(self, session: Session, writes: Writes) -> None:
        """Add the version to the writes of a task."""
        writes.beside.append({STATE: self.chain.version})

    def revive(
        self, session: Session, found: Found, header: Header, channels: Collection[str] | None
    ) -> Revived | None:
        """Return an upgraded checkpoint; `None` if it has the current version."""
        where, stored = found.entry.address, state_of(header.about)
        if not session.codec.shows:
            check_state(where, header.about, (), self.chain.version)
        if stored >= self.chain.version:
            return None
        try:
            steps = self.chain.after(stored)
        except LookupError:
            reason = f"no upgrade starts from version {stored}: add it to upgrades=[...]"
            raise UpgradeFailed(str(where), stored, self.chain.version, reason) from None
        return _upgrade(session, found, header, steps, channels, self.chain.version)


def _upgrade(
    session: Session,
    found: Found,
    header: Header,
    steps: Sequence[Upgrade],
    channels: Collection[str] | None,
    known: int,
) -> Revived:
    where = found.entry.address
    graph = graph_of(where.checkpoint_ns)
    codec = session.codec.with_placeholders(_rebuild(steps))
    refs = {name: ref for name, ref in found.entry.refs.items() if channels is None or name in channels}
    small = {name: header.inline[name] for name, ref in refs.items() if ref.kind is Kind.INLINE}
    values = dict.fromkeys(refs) | small | Unpacker(codec).values(refs, found.rows, where)
    numbered, beside = merge_batches(found.batches, codec, where)
    versions = {number: state_beside(stored) for number, stored in beside}
    if not session.codec.shows:
        check_state(where, {}, [stored for _, stored in beside], known)
    writes = [Write(*write, versions.get(number, 1)) for number, write in numbered]
    state = StoredState(where, graph, header, values, writes)
    for step in steps:
        if step.graph == graph and step.change is not None:
            _change(state, step)
    values, left, interrupts = state.result
    if not session.codec.shows and (unread := next(iter(find_unread([values, left])), None)) is not None:
        raise RefusedType(unread.type_name, unread.reason, where=str(where))
    return Revived(header, values, left, [stored for _, stored in beside], interrupts)


def _change(state: StoredState, step: Upgrade) -> None:
    assert step.change is not None, "an upgrade of classes only has no function"
    state.begin(step.start)
    try:
        step.change(state)
    except Refused as error:
        raise UpgradeFailed(str(state.where), step.start, step.end, str(error)) from None
    except KeelError as error:
        raise UpgradeFailed(str(state.where), step.start, step.end, str(error)) from error
    except Exception as error:
        reason = f"{getattr(step.change, '__qualname__', step.change)} raised {type(error).__name__}: {error}"
        raise UpgradeFailed(str(state.where), step.start, step.end, reason) from error


def _rebuild(steps: Sequence[Upgrade]) -> Callable[[Unread], Any]:
    """Return a function that rebuilds unreadable values with the upgrades' functions."""
    functions: dict[tuple[str, str], Callable[[Any], Any]] = {}
    for step in steps:
        for name, made in step.classes.items():
            if not isinstance(made, type | str):
                functions.setdefault(name_of_class(name), made)

    def rebuild(unread: Unread) -> Any:
        made = functions.get((unread.module, unread.qualname))
        if made is None:
            return unread
        try:
            return made(unread.stored)
        except Exception as error:
            reason = f"the conversion function in an upgrade (classes=) raised {type(error).__name__}: {error}"
            raise RefusedType(unread.type_name, reason) from error

    return rebuild
