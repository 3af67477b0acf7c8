"""What tasks have left where their step did not end: the error they failed with, or what they ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from langgraph_keel._langgraph import NULL_TASK_ID
from langgraph_keel.errors import DriftDetected
from langgraph_keel.provenance.replay.compare import Comparison, Difference
from langgraph_keel.provenance.replay.history import ANSWERED, ASKED, FAILED, NO_RESULTS, History

Outcomes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By the path of a task: its `error`, its `question`, or nothing."""


def find_outcomes(history: History, root: str) -> Outcomes:
    """Return how the tasks of a root checkpoint's step stand that are not done, by their paths."""
    found = ((path, _outcome(left)) for path, left in _last_writes(history, root).items() if left.keys() <= NO_RESULTS)
    return {path: outcome for path, outcome in found if outcome}


def _last_writes(history: History, root: str) -> Mapping[str, dict[str, Any]]:
    checkpoint, found = history.root(root), defaultdict[str, dict[str, Any]](dict)
    for task, channel, value in checkpoint.writes if checkpoint else ():
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


def find_questions(history: History, root: str) -> Outcomes:
    """Return what the tasks of a root checkpoint's step have asked last, answered or not, by their paths."""
    found = _last_writes(history, root)
    return {path: {"question": _values(left[ASKED])} for path, left in found.items() if ASKED in left}


def keep_common(was: Outcomes, now: Outcomes) -> tuple[Outcomes, Outcomes]:
    """Return what tasks on both sides have left: of a tool's question, a replay is answered by the ledger."""
    both = was.keys() & now.keys()
    return {path: was[path] for path in both}, {path: now[path] for path in both}


def compare_outcomes(comparison: Comparison, step: int, was: Outcomes, now: Outcomes) -> Iterator[Difference]:
    """Compare what tasks have left, task by task."""
    for path in sorted({*was, *now}):
        for found in comparison.differences(step, was.get(path, {}), now.get(path, {})):
            yield replace(found, node=path.rpartition(", ")[2])
