"""The result of a replay, with its text and HTML forms."""

from __future__ import annotations

from dataclasses import dataclass, field

from langgraph_keel.display import html
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay.compare import Difference


@publish
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replay:
    """The result of `saver.provenance.replay`, true if nothing differs.

    Attributes:
        source: The thread that was replayed.
        thread_id: The thread with the replay's own checkpoints, if it was kept.
        steps: How many checkpoints were compared.
        differences: The differences from the record, in step order; within a step causes come first.
        ended: Why the comparison ended before the record did; `None` if it did not.
        calls: The replay's own model calls.
        uncompared: The steps whose model calls were not compared, because none were recorded.
        error: The exception that the graph raised in the replay.
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
        """Whether all recorded steps were compared and nothing differs."""
        # A last step that failed or waits counts as recorded.
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
        compared = f"{count_of(self.steps, 'step')}, {count_of(len(self.calls), 'call')} of models"
        if self.first:
            return f"replay of thread {self.source!r}: differs from step {self.first.step} on ({compared})"
        verdict = "the same" if self.same else "the same until it ended"
        return f"replay of thread {self.source!r}: {verdict} ({compared})"

    @property
    def _notes(self) -> list[str]:
        steps = ", ".join(map(str, self.uncompared[:10])) + (", ..." if len(self.uncompared) > 10 else "")
        notes = [f"Ended early: {self.ended}"] if self.ended else []
        notes += [f"Model calls not compared, as none are recorded: step {steps}"] if steps else []
        return notes + ([f"Kept as thread {self.thread_id!r}"] if self.thread_id else [])

    def __str__(self) -> str:
        """Return plain text: the verdict, a line for each difference, and notes."""
        return "\n".join([self.summary, *(f"  {found}" for found in self.differences), *self._notes])

    __repr__ = __str__  # shown in a terminal

    def _repr_html_(self) -> str:
        rows = ((each.step, each.node, each.field, each.recorded, each.replayed) for each in self.differences)
        body = html.tag("tbody", *(html.tag("tr", *(html.cell(html.text(str(part))) for part in row)) for row in rows))
        differences = [html.table(html.head(("step", "node", "field", "was", "now")), body)] if self.differences else []
        notes = (html.tag("p", html.text(note)) for note in self._notes)
        return "".join([html.tag("p", html.tag("b", html.text(self.summary))), *differences, *notes])
