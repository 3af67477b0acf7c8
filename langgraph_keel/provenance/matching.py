"""Where a replay's calls of models differ from the recorded ones: call by call of a node, field by field."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.provenance.comparison import Difference, shown
from langgraph_keel.provenance.history import History

FIELDS = (
    "provider",
    "model",
    "seed",
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "parameters",
    "tools",
    "system_hash",
    "prompt_hash",
    "served_model",
    "system_fingerprint",
    "finish_reason",
    "answer_hash",
)
"""What is compared, causes first."""
BOUND = ("model", "seed", "temperature", "top_p", "max_tokens")
"""Parameters that can be handed to the graph's models by its config."""
_Group: TypeAlias = tuple[int, str, int | None]
_Said: TypeAlias = tuple[Any, ...]


def agreed(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the parameters in which all calls agree, and say something."""
    said = {name: {getattr(call, name) for call in calls} for name in BOUND}
    return {name: values.pop() for name, values in said.items() if len(values) == 1 and values != {None}}


def declared(graph: Any) -> set[str]:
    """Return the ids of the `ConfigurableField`s that the nodes of a graph and of its subgraphs show."""
    graphs = [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))]
    nodes = [node for each in graphs for node in getattr(each, "nodes", {}).values()]
    return {spec.id for node in nodes for spec in node.bound.config_specs}


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of the root graph that both sides have.

    Attributes:
        run_of: Of each step the number of the run that made it, ascending by step. With `durability="exit"` a step
            stands for those before it.
        again: The steps in which a task has failed or asked, and so was run again.
    """

    run_of: Mapping[int, int]
    again: Collection[int]


def differences_of(
    steps: Steps, was: tuple[History, Sequence[ModelCall]], now: tuple[History, Sequence[ModelCall]]
) -> tuple[list[Difference], list[int]]:
    """Return where calls differ, in the order of the steps; and the steps in which they cannot be compared.

    Those are of runs with no recorded call at all: whoever made them did not record (`provenance=False`).

    Args:
        steps: The steps that both sides have.
        was: The recorded thread and its calls.
        now: The replay's.
    """
    before, after = (_grouped(list(steps.run_of), *side) for side in (was, now))
    recorded = {steps.run_of[group[0]] for group in before}
    groups = sorted({*before, *after}, key=lambda group: (group[0], group[2] or 0, group[1]))
    found: list[Difference] = []
    for group in groups:
        if steps.run_of[group[0]] in recorded:
            found += _of_group(group, before[group], after[group], group[0] in steps.again)
    return found, sorted({step for step, _, _ in groups if steps.run_of[step] not in recorded})


def _grouped(steps: Sequence[int], history: History, calls: Sequence[ModelCall]) -> dict[_Group, list[ModelCall]]:
    """Return the calls that were answered, per step and node, in their order."""
    groups: defaultdict[_Group, list[ModelCall]] = defaultdict(list)
    for call in sorted(calls, key=lambda each: (history.path(each.task_id), each.started_at)):
        step = _step_of(call, history)
        place = len(steps) if step is None else bisect_left(steps, step)
        if place < len(steps) and call.error is None:
            groups[steps[place], call.path, call.step].append(call)
    return groups


def _step_of(call: ModelCall, history: History) -> int | None:
    if not call.checkpoint_ns and "|" not in call.path:
        return call.step
    return history.root_step(call.checkpoint_ns, call.checkpoint_id)


def _said(call: ModelCall) -> _Said:
    values = (getattr(call, name) for name in FIELDS)
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)


def _of_group(
    group: _Group, was: Sequence[ModelCall], now: Sequence[ModelCall], is_again: bool
) -> Iterable[Difference]:
    """Compare the calls that are not on both sides, in their order: those in parallel come in any."""
    # A task that runs again makes its calls again; how often is not the same if it does not fail this time.
    is_again = is_again or any(call.attempt > 1 for call in (*was, *now))
    mine, its = (Counter({_said(call): 1 for call in side} if is_again else map(_said, side)) for side in (was, now))
    step, path, _ = group
    for before, after in zip_longest((mine - its).elements(), (its - mine).elements()):
        if before is None or after is None:
            yield Difference(step, "call of a model", _named(before), _named(after), path)
        else:
            for name, pair in zip(FIELDS, zip(before, after, strict=True), strict=True):
                yield from _of_field(step, path, name, *pair)


def _named(said: _Said | None) -> str:
    if said is None:
        return "none"
    about = dict(zip(FIELDS, said, strict=True))
    return f"{about['model'] or about['served_model'] or 'a model'}, prompt {about['prompt_hash']}"


def _of_field(step: int, path: str, name: str, was: Any, now: Any) -> Iterable[Difference]:
    if name not in ("tools", "parameters"):
        if was != now:
            yield Difference(step, name, shown(was), shown(now), path)
        return
    before, after = dict(was), dict(now)
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield Difference(step, f"{name}.{key}", shown(before.get(key)), shown(after.get(key)), path)
