"""The work of a step: changed channels, nodes, questions and errors.

Changes are found by comparing references: only new values are read, and almost no old values are decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.base import PendingWrite
from langgraph.constants import START

from langgraph_keel._langgraph import ERROR, ERROR_SOURCE_NODE, INPUT, INTERRUPT, RESUME
from langgraph_keel.approvals.interrupts import interrupts_in
from langgraph_keel.display.messages import as_message, message_text, speaker
from langgraph_keel.display.text import is_internal, one_line, represent
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import nodes_sent_to
from langgraph_keel.engine.records import Kind, Ref, Row, Run
from langgraph_keel.errors import CorruptStore, ValueRefused
from langgraph_keel.history.records import Change, ToolUse

if TYPE_CHECKING:
    from langgraph.types import Interrupt

SHOWN = 20
"""Maximum new elements of a list to decode; after a prune, all elements are new."""
_TEXT = 60
_SMALL = 2048
_KEYS = _ELEMENTS = 3
_REPLAY = "keel_replay"

_INTERNAL_NODES = (INPUT, INTERRUPT)
_NOT_OUTPUT = (INTERRUPT, RESUME, ERROR, ERROR_SOURCE_NODE)


def subtract_runs(runs: Sequence[Run], others: Sequence[Run]) -> tuple[Run, ...]:
    """Return the item numbers of `runs` that are not in `others`, in order."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(runs, others, strict=False)))
    left = list(runs[same:])  # a list that was only appended to shares all runs except its last
    for lo, hi in others[same:]:
        parts = [part for start, stop in left for part in ((start, min(stop, lo)), (max(start, hi), stop))]
        left = [part for part in parts if part[0] < part[1]]
    return tuple(left)


def count_items(runs: Sequence[Run]) -> int:
    """Return how many item numbers are in runs."""
    return sum(hi - lo for lo, hi in runs)


def new_refs(refs: Mapping[str, Ref], before: Mapping[str, Ref]) -> dict[str, Ref]:
    """Return the items of each channel that the previous checkpoint does not have."""
    new = {
        channel: Ref(ref.kind, subtract_runs(ref.runs, before[channel].runs) if channel in before else ref.runs)
        for channel, ref in refs.items()
        if ref.kind is not Kind.INLINE
    }
    return {channel: ref for channel, ref in new.items() if ref.runs}


def nbytes(runs: Sequence[Run], rows: Sequence[Row]) -> int:
    """Return the stored bytes of items; a shared row counts in proportion."""
    total = 0.0
    for row in rows:
        end = row.lo + row.count
        within = [(max(lo, row.lo), min(hi, end)) for lo, hi in runs if lo < end and row.lo < hi]
        total += len(row.body) * count_items(within) / row.count
    return round(total)


@dataclass(frozen=True, slots=True)
class Sides:
    """A checkpoint, its parent (`old_rows`, `was`, `before`), and the new items."""

    rows: Mapping[str, Sequence[Row]]
    old_rows: Mapping[str, Sequence[Row]]
    inline: Mapping[str, Any]
    was: Mapping[str, Any]
    refs: Mapping[str, Ref]
    before: Mapping[str, Ref]
    new: Mapping[str, Ref]

    def changes(self, unpacker: Unpacker, deltas: Collection[str]) -> Iterator[Change]:
        """Yield the changed channels, except delta channels and those of LangGraph."""
        for channel in dict.fromkeys([*self.before, *self.refs]):
            if channel not in deltas and not is_internal(channel) and (change := self._describe(channel, unpacker)):
                yield change

    def _describe(self, channel: str, unpacker: Unpacker) -> Change | None:
        was, now = self.before.get(channel), self.refs.get(channel)
        if now is None:
            return Change(channel, "gone")
        if now.kind is Kind.INLINE:
            old, value = self.was.get(channel), self.inline.get(channel)
            if was is None or was.kind is not Kind.INLINE:
                return Change(channel, f"{'=' if was is None else '→'} {_short(value)}")
            return None if _mark(old) == _mark(value) else Change(channel, f"{_short(old)} → {_short(value)}")
        if was == now:
            return None
        if now.kind is Kind.LIST:
            return self._describe_list(channel, was, now, unpacker)
        return self._describe_other(channel, was, now, unpacker)

    def _describe_list(self, channel: str, was: Ref | None, now: Ref, unpacker: Unpacker) -> Change | None:
        runs = self.new[channel].runs if channel in self.new else ()
        gone = lost_runs(was, now) if was else ()
        new, came, lost = self._items(channel, last(runs, SHOWN), unpacker), count_items(runs), count_items(gone)
        if came and 0 < max(came, lost) <= SHOWN and lost:
            # A process that did not know the old elements stores them again: equal, but with new numbers.
            old = items(gone, self.old_rows.get(channel, ()), unpacker)
            new, lost = _only_in_first(new, old), len(_only_in_first(old, new))
            came = len(new)
        counts = " ".join([*([f"+{came:,}"] if came else []), *([f"-{lost:,}"] if lost else [])])
        elements = _last_elements(new, came)
        if not counts:
            is_new = was is None or was.kind is not Kind.LIST
            return Change(channel, "= []") if is_new else None if gone else Change(channel, "in another order")
        return Change(channel, f"{counts}: {elements}" if new else counts, tuple(new))

    def _describe_other(self, channel: str, was: Ref | None, now: Ref, unpacker: Unpacker) -> Change | None:
        runs = self.new[channel].runs if channel in self.new else ()
        size = nbytes(runs, self.rows.get(channel, ()))
        if size > _SMALL or not runs:
            return Change(channel, f"changed ({size:,} B)")
        if now.kind is Kind.TREE and runs[0][0] != now.runs[0][0]:
            edits = self._items(channel, runs, unpacker)
            try:
                text = _first_lines(_delta_lines(edits))
            except (TypeError, ValueError):  # the edits are damaged: a read of the value raises CorruptStore
                text = ""
            return Change(channel, text or f"changed ({size:,} B)")
        value = self._items(channel, now.runs, unpacker) if now.kind is Kind.WHOLE else ()
        old = items(was.runs, self.old_rows.get(channel, ()), unpacker) if was and was.kind is Kind.WHOLE else ()
        if value and old and _mark(value[0]) == _mark(old[0]):
            return None
        if value and old and isinstance(value[0], dict) and isinstance(old[0], dict):
            return Change(channel, _first_lines(_key_lines(old[0], value[0])) or "in another order")
        return Change(channel, f"→ {_short(value[0])}" if value else f"changed ({size:,} B)")

    def _items(self, channel: str, runs: Sequence[Run], unpacker: Unpacker) -> Sequence[Any]:
        return items(runs, self.rows.get(channel, ()), unpacker)


def _last_elements(new: Sequence[Any], count: int) -> str:
    return " · ".join([*(["…"] if count > _ELEMENTS else []), *(brief(item) for item in new[-_ELEMENTS:])])


def delta_channels(metadata: Mapping[str, Any]) -> Collection[str]:
    """Return the delta channels of a checkpoint, whose values only a graph computes."""
    counters = metadata.get("counters_since_delta_snapshot")
    return [name for name in counters if isinstance(name, str)] if isinstance(counters, dict) else ()


def written_elements(writes: Sequence[PendingWrite], channel: str) -> list[Any]:
    """Return the elements written to a channel, with short forms made messages."""
    written = (value for _, name, value in writes if name == channel)
    return [as_message(item) for value in written for item in (value if isinstance(value, list) else [value])]


def delta_changes(writes: Sequence[PendingWrite], deltas: Collection[str]) -> Iterator[Change]:
    """Yield the writes of tasks to delta channels: the changes of a step in them."""
    for channel in deltas:
        if new := written_elements(writes, channel):
            yield Change(channel, f"+{len(new):,}: {_last_elements(new, len(new))}", tuple(new[-SHOWN:]))


def items(runs: Sequence[Run], rows: Sequence[Row], unpacker: Unpacker) -> Sequence[Any]:
    """Return items; none if one of them cannot be revived here."""
    try:
        return tuple(unpacker.items(runs, rows))
    except (ValueRefused, CorruptStore):
        return ()


def lost_runs(was: Ref, now: Ref) -> tuple[Run, ...]:
    """Return the items of a list that its later version no longer has."""
    return subtract_runs(was.runs, now.runs) if was.kind is now.kind is Kind.LIST else ()


def _only_in_first(values: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
    """Return the values without a counterpart among the others, matched one to one."""
    left = Counter(map(_mark, others))
    found = []
    for value, mark in zip(values, map(_mark, values), strict=True):
        if not left[mark]:
            found.append(value)
        left[mark] -= bool(left[mark])
    return found


def _mark(value: Any) -> str:
    """Return text that differs if values look different: enough for a summary."""
    return f"{type(value)} {value!r}"


def last(runs: Sequence[Run], most: int) -> tuple[Run, ...]:
    """Return the last item numbers of runs, at most `most`."""
    over = count_items(runs) - most
    kept = list(runs)
    while over > 0:
        lo, hi = kept.pop(0)
        kept = [(lo + over, hi), *kept] if hi - lo > over else kept
        over -= hi - lo
    return tuple(kept)


def _first_lines(lines: Iterator[str]) -> str:
    first = list(islice(lines, _KEYS + 1))
    return ", ".join(first[:_KEYS]) + (", …" if len(first) > _KEYS else "")


def _key_lines(was: dict[Any, Any], now: dict[Any, Any]) -> Iterator[str]:
    yield from (f"{one_line(str(key), _TEXT)} gone" for key in was if key not in now)
    for key, value in now.items():
        if key not in was:
            yield f"{one_line(str(key), _TEXT)} = {_short(value)}"
        elif _mark(was[key]) != _mark(value):
            yield f"{one_line(str(key), _TEXT)} {_short(was[key])} → {_short(value)}"


def _delta_lines(deltas: Sequence[Any]) -> Iterator[str]:
    """Yield the changed parts of a large value (`engine.encoding.trees`)."""
    for path, *edit in (edit for edits in deltas for edit in edits):
        name = one_line(".".join(map(str, path)), _TEXT)
        if not edit:
            yield f"{name} gone"
        elif len(edit) == 1:
            yield f"{name} = {_short(edit[0])}"
        else:
            start, stop, content = edit
            yield f"{name}[{start}:{stop}] = {_short(content)}".removeprefix(".")


def _short(value: Any) -> str:
    return one_line(represent(value), _TEXT)


def brief(value: Any) -> str:
    """Return an element of a list in a few words; for a message, speaker and text."""
    if isinstance(value, BaseMessage):
        return one_line(f"{speaker(value)}: {message_text(value)}", _TEXT)
    return one_line(value if isinstance(value, str) else represent(value), _TEXT)


def tools_in(changes: Sequence[Change]) -> tuple[ToolUse, ...]:
    """Return the tools whose results are among the new elements."""
    messages = (item for change in changes for item in change.new if isinstance(item, ToolMessage))
    return tuple(ToolUse(str(each.name or "?"), _REPLAY in each.response_metadata) for each in messages)


def nodes_run(
    checkpoint: Mapping[str, Any], before: Mapping[str, Any], sent_before: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the nodes that ran between two checkpoints, the second from the loop."""
    seen = before.get("versions_seen") or {}
    moved = {node for node, now in (checkpoint.get("versions_seen") or {}).items() if now != seen.get(node)}
    return tuple(sorted((moved | set(nodes_sent_to(sent_before))) - set(_INTERNAL_NODES)))


def open_questions(writes: Sequence[PendingWrite]) -> tuple[Interrupt, ...]:
    """Return the questions of tasks that have written nothing else since."""
    answered = {task for task, channel, _ in writes if channel not in _NOT_OUTPUT}
    return questions([write for write in writes if write[0] not in answered])


def questions(writes: Sequence[PendingWrite]) -> tuple[Interrupt, ...]:
    """Return the questions of tasks, answered or not."""
    return tuple(item for _, channel, value in writes if channel == INTERRUPT for item in interrupts_in(value))


def written_channels(writes: Sequence[PendingWrite]) -> tuple[str, ...]:
    """Return the channels that tasks have written, each once."""
    return tuple(dict.fromkeys(channel for _, channel, _ in writes if channel not in (*_NOT_OUTPUT, START)))


def task_errors(writes: Sequence[PendingWrite]) -> tuple[str, ...]:
    """Return the errors of tasks."""
    failed = (value for _, channel, value in writes if channel == ERROR)
    return tuple(value if isinstance(value, str) else represent(value) for value in failed)
