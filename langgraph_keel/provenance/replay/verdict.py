"""What a replay has found, as people read it.

The states of two threads, side by side and one after the other: of each only what is not as in the one before.

A state is as long as its thread: read and compared whole at each step, 400 turns took 46 s.

What tasks have left where their step did not end: the error they failed with, or what they ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, TypeAlias

from langgraph_keel._langgraph import NULL_TASK_ID
from langgraph_keel.engine.checkpoints import delta_history, revive, where_is
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Address, Found, Kind, Ref, Run
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import DriftDetected, NotFound
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay.compare import Comparison, Difference
from langgraph_keel.provenance.replay.history import ANSWERED, ASKED, FAILED, NO_RESULTS, History


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replay:
    """What `saver.replay` has found. It is true if everything is the same: `assert saver.replay(graph, config)`.

    Attributes:
        source: The thread that was replayed.
        thread_id: The thread with the replay's own checkpoints, if it was to be kept.
        steps: How many checkpoints were compared.
        differences: What is not as it was recorded, in the order of the steps; in a step causes come first.
        ended: Why the comparison ended before the record did; `None` if it did not.
        calls: The replay's own calls of models.
        uncompared: The steps whose calls of models were not compared, for nobody has recorded them.
        error: What the graph has raised in the replay.
    """

    source: str
    thread_id: str | None
    steps: int
    differences: tuple[Difference, ...]
    ended: str | None = None
    calls: tuple[ModelCall, ...] = field(default=(), repr=False)
    uncompared: tuple[int, ...] = ()
    error: Exception | None = field(default=None, repr=False, compare=False)

    @property
    def same(self) -> bool:
        """Whether all recorded steps were compared, also one that failed or asks in the end, and nothing differs."""
        return not self.differences and self.ended is None

    def __bool__(self) -> bool:
        """Return `same`."""
        return self.same

    @property
    def first(self) -> Difference | None:
        """The first difference."""
        return self.differences[0] if self.differences else None

    @property
    def summary(self) -> str:
        """The verdict, in one line."""
        compared = f"{_count(self.steps, 'step')}, {_count(len(self.calls), 'call')} of models"
        if self.first:
            return f"replay of thread {self.source!r}: differs from step {self.first.step} on ({compared})"
        verdict = "the same" if self.same else "the same as far as it goes"
        return f"replay of thread {self.source!r}: {verdict} ({compared})"

    @property
    def _notes(self) -> list[str]:
        return [
            *([f"It ends here: {self.ended}"] if self.ended else []),
            *([f"Calls of models not compared, for none are recorded: {self._steps}"] if self.uncompared else []),
            *([f"Kept as thread {self.thread_id!r}"] if self.thread_id else []),
        ]

    @property
    def _steps(self) -> str:
        numbers = ", ".join(map(str, self.uncompared[:10]))
        return f"step {numbers}{', ...' if len(self.uncompared) > 10 else ''}"

    def __str__(self) -> str:
        """Say it in plain text: the verdict, a line for each difference, and what else there is to know."""
        return "\n".join([self.summary, *(f"  {found}" for found in self.differences), *self._notes])

    __repr__ = __str__  # what a terminal shows of it

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        head = "".join(f"<th>{title}</th>" for title in ("step", "node", "field", "was", "now"))
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(str(part))}</td>' for part in _row(found))}</tr>" for found in self.differences
        )
        table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes)
        return f"<p><b>{escape(self.summary)}</b></p>{table}{notes}"


def _row(found: Difference) -> tuple[object, ...]:
    return found.step, found.node, found.field, found.recorded, found.replayed


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two states, without what is in both as it was before.

    Attributes:
        was: The channels of one.
        now: The channels of the other.
        starts: Of lists, how many elements are left out at the beginning.
    """

    was: Mapping[str, Any]
    now: Mapping[str, Any]
    starts: Mapping[str, int]


class Versions:
    """Reads pairs of checkpoints, in order."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: Sequence[Mapping[str, Ref]] = ({}, {})

    def next(self, was: Address, now: Address) -> Plan[Any, Any, Pair]:
        """Read the next two.

        Raises:
            NotFound: One is gone by now.
        """
        found = (yield from self._found(was)), (yield from self._found(now))
        refs = [each.entry.refs for each in found]
        same, starts = self._shared(refs)
        self._before = refs
        mine = yield from self._values(_without(found[0], same, starts))
        its = yield from self._values(_without(found[1], same, starts))
        return Pair(mine, its, starts)

    def _found(self, address: Address) -> Plan[Any, Any, Found]:
        found: Found | None = yield from self._session.store.read_entry(address)
        if found is None:
            raise NotFound(f"{where_is(address)} was deleted while the thread was replayed")
        return found

    def _shared(self, refs: Sequence[Mapping[str, Ref]]) -> tuple[set[str], dict[str, int]]:
        """Return the channels that are as they were on both sides, and how much is at the beginning of lists."""
        same, starts = set[str](), dict[str, int]()
        for channel in refs[0].keys() & refs[1].keys():
            pairs = [(old.get(channel), new[channel]) for old, new in zip(self._before, refs, strict=True)]
            if all(new.kind is Kind.LIST and old and old.kind is Kind.LIST for old, new in pairs):
                starts[channel] = min(_alike(old.runs, new.runs) for old, new in pairs if old)
            elif all(old == new and new.kind is not Kind.INLINE for old, new in pairs):
                same.add(channel)
        return same, starts

    def _values(self, found: Found) -> Plan[Any, Any, Mapping[str, Any]]:
        """Return the channels of a checkpoint; of those that are kept as writes, the writes since their last value."""
        revived = yield from revive(self._session, found, Unpacker(self._session.codec), "named")
        values: dict[str, Any] = dict(revived.checkpoint["channel_values"])
        counted = revived.metadata.get("counters_since_delta_snapshot") or {}
        if channels := [name for name in counted if values.get(name) is None]:
            histories = yield from delta_history(self._session, found.entry.address, channels)
            for name, history in histories.items():
                values[name] = {**history, "writes": [value for _, _, value in history["writes"]]}
        return values


def _alike(old: Sequence[Run], new: Sequence[Run]) -> int:
    """Return how many items two versions have in common at the beginning."""
    count = 0
    for (lo, hi), (other_lo, other_hi) in zip(old, new, strict=False):
        if lo != other_lo:
            break
        count += min(hi, other_hi) - lo
        if hi != other_hi:
            break
    return count


def _without(found: Found, same: Collection[str], starts: Mapping[str, int]) -> Found:
    refs = {name: ref for name, ref in found.entry.refs.items() if name not in same}
    refs |= {name: replace(refs[name], runs=_after(refs[name].runs, count)) for name, count in starts.items()}
    return replace(found, entry=replace(found.entry, refs=refs))


def _after(runs: Sequence[Run], count: int) -> tuple[Run, ...]:
    left = []
    for lo, hi in runs:
        passed = min(count, hi - lo)
        count -= passed
        if lo + passed < hi:
            left.append((lo + passed, hi))
    return tuple(left)


_Left: TypeAlias = Mapping[str, Mapping[str, Any]]


def outcomes(history: History, root: str) -> _Left:
    """Return how the tasks of a root checkpoint's step stand that are not done, by their paths."""
    found = ((path, _outcome(left)) for path, left in _left(history, root).items() if left.keys() <= NO_RESULTS)
    return {path: outcome for path, outcome in found if outcome}


def _left(history: History, root: str) -> Mapping[str, dict[str, Any]]:
    moment, found = history.root(root), defaultdict[str, dict[str, Any]](dict)
    for task, channel, value in moment.writes if moment else ():
        if task != NULL_TASK_ID:
            found[history.path(task)][channel] = value
    return found


def _outcome(left: Mapping[str, Any]) -> dict[str, Any]:
    # One that has failed and was resumed may ask by then; one that was answered may have failed on that.
    if ASKED in left and not (FAILED in left and ANSWERED in left):
        return {"question": _values(left[ASKED])}
    error = str(left.get(FAILED, "")).partition("(")[0]  # stored as its `repr`
    # A saver has refused what the graph did; a replay minds no drift.
    return {"error": error} if error not in ("", DriftDetected.__name__) else {}


def _values(questions: Any) -> list[Any]:
    return [question.value for question in questions]


def questions(history: History, root: str) -> _Left:
    """Return what the tasks of a root checkpoint's step have asked last, answered or not, by their paths."""
    found = _left(history, root)
    return {path: {"question": _values(left[ASKED])} for path, left in found.items() if ASKED in left}


def common(was: _Left, now: _Left) -> tuple[_Left, _Left]:
    """Return what tasks on both sides have left: of a tool's question, a replay is answered by the ledger."""
    both = was.keys() & now.keys()
    return {path: was[path] for path in both}, {path: now[path] for path in both}


def differences(comparison: Comparison, step: int, was: _Left, now: _Left) -> Iterator[Difference]:
    """Compare what tasks have left, task by task."""
    for path in sorted({*was, *now}):
        for found in comparison.differences(step, was.get(path, {}), now.get(path, {})):
            yield replace(found, node=path.rpartition(", ")[2])
