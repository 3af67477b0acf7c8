"""Where a replay's calls of models differ from the recorded ones: call by call of a node, field by field."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
"""Parameters that are handed to the graph's models by its config."""
_Group: TypeAlias = tuple[int, str, int | None]
_Said: TypeAlias = tuple[Any, ...]


def agreed(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the parameters in which all calls agree, and say something."""
    said = {name: {getattr(call, name) for call in calls} for name in BOUND}
    return {name: values.pop() for name, values in said.items() if len(values) == 1 and values != {None}}


def not_taken(bound: Mapping[str, Any], calls: Sequence[ModelCall]) -> tuple[str, ...]:
    """Return the parameters that were handed over, and that a call was made without."""
    return tuple(name for name, value in bound.items() if any(getattr(call, name) != value for call in calls))


def differences_of(
    steps: Sequence[int], was: tuple[History, Sequence[ModelCall]], now: tuple[History, Sequence[ModelCall]]
) -> list[Difference]:
    """Return where calls differ, in the order of the steps.

    Args:
        steps: The steps that both sides have, ascending. With `durability="exit"` a step stands for those before it.
        was: The recorded thread and its calls.
        now: The replay's.
    """
    before, after = (_grouped(steps, *side) for side in (was, now))
    groups = sorted({*before, *after}, key=lambda group: (group[0], group[2] or 0, group[1]))
    return [found for group in groups for found in _of_group(group, before[group], after[group])]


def _grouped(steps: Sequence[int], history: History, calls: Sequence[ModelCall]) -> dict[_Group, list[_Said]]:
    """Return what calls have said, per step and node; a request that was made again stands once."""
    groups: defaultdict[_Group, dict[_Said, None]] = defaultdict(dict)
    for call in sorted(calls, key=lambda each: (history.path(each.task_id), each.started_at)):
        step = _step_of(call, history)
        place = len(steps) if step is None else bisect_left(steps, step)
        if place < len(steps) and call.error is None:
            groups[steps[place], call.path, call.step][_said(call)] = None
    return defaultdict(list, {group: list(said) for group, said in groups.items()})


def _step_of(call: ModelCall, history: History) -> int | None:
    if not call.checkpoint_ns and "|" not in call.path:
        return call.step
    return history.root_step(call.checkpoint_ns, call.checkpoint_id)


def _said(call: ModelCall) -> _Said:
    values = (getattr(call, name) for name in FIELDS)
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)


def _of_group(group: _Group, was: Sequence[_Said], now: Sequence[_Said]) -> Iterable[Difference]:
    """Compare the calls that are not on both sides, in their order: those in parallel come in any."""
    gone = [said for said in was if said not in now]
    new = [said for said in now if said not in was]
    step, path, _ = group
    for before, after in zip_longest(gone, new):
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
