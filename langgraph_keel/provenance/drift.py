"""What a thread was written with, and what is different now.

Each root checkpoint says what its thread was written with so far: per node and model the served versions, fingerprints
and tools seen, and the versions of packages. A call differs if it brings something that this thread has not seen there:
providers serve from several backends at once, and deployments roll, so what comes and goes is told of once, not at each
call. A tool that is merely new, or gone, is no drift: agents offer tools as they see fit; another schema is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langgraph_keel.provenance.records import Record, names_of

MARK = "keel_drift"
"""The metadata key of the first checkpoint after a drift: a list of lines, one for each change."""
GRAPH_VERSION = "graph_version"
"""The metadata key of the application's own version."""
SEEN = 16
"""Most values of one field that are remembered, the latest seen."""
NAMES = 500
"""Most names of models that are remembered of a thread."""
NODES = 100
"""Most nodes that are remembered."""
TOOLS = 200
"""Most tools of a node that are remembered."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was.

    Attributes:
        what: `"model"`, `"served_model"`, `"system_fingerprint"`, `"tool <name>"`, `"graph_version"`, or a package.
        was: What it was last.
        now: What it is.
        since: The last step that had it so.
        path: The node with those of the graphs around it; empty for what concerns the whole graph.
    """

    what: str
    was: str | None
    now: str | None
    since: int | None = None
    path: str = ""

    def __str__(self) -> str:
        """Say it in one line."""
        node = f"node {self.path!r}: " if self.path else ""
        since = "" if self.since is None else f" up to step {self.since}"
        return f"{node}{self.what} was {self.was or 'none'}{since}, now {self.now or 'none'}"


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What has changed since a thread was written.

    Attributes:
        thread_id: The thread.
        changes: What has changed, in the order in which it was noticed.
    """

    thread_id: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        """Say all of it, a line for each change."""
        lines = "".join(f"\n  {change}" for change in self.changes)
        return f"thread {self.thread_id!r} goes on with something else than what it was written with:{lines}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node has seen of one model: per field its values, and the last step of each."""

    served: Mapping[str, int | None] = field(default_factory=dict)
    fingerprints: Mapping[str, int | None] = field(default_factory=dict)
    tools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    step: int | None = None


UNSEEN = Seen()


@dataclass(frozen=True, slots=True)
class Known:
    """What a thread was written with.

    Attributes:
        nodes: Per path of a node and model asked for, what was seen.
        versions: Per package, the versions seen; of the application's own, `""` if it had none.
        step: The last step that called a model.
        names: All names of models, asked for and served, in the order they came.
    """

    nodes: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    step: int | None = None
    names: Sequence[str] = ()

    def packed(self) -> list[Any]:
        """Return it as it is stored."""
        nodes = {
            path: {name: [seen.served, seen.fingerprints, seen.tools, seen.step] for name, seen in models.items()}
            for path, models in self.nodes.items()
        }
        return [nodes, self.versions, self.step, list(self.names)]

    @classmethod
    def unpacked(cls, stored: Any) -> Known:
        """Return it from what is stored; nothing known, if that is something else."""
        try:
            nodes, versions, step, names = stored
            seen = {path: {name: _seen(*each) for name, each in models.items()} for path, models in nodes.items()}
            return cls(seen, _lists(versions), step, [name for name in names if isinstance(name, str)])
        except (TypeError, ValueError, AttributeError):
            return cls()


def _seen(served: Any, fingerprints: Any, tools: Any, step: Any) -> Seen:
    return Seen(dict(served), dict(fingerprints), _lists(tools), step)


def _lists(stored: Any) -> dict[str, list[str]]:
    return {str(name): [str(value) for value in values] for name, values in stored.items()}


def followed(known: Known, calls: Iterable[Record], versions: Mapping[str, str]) -> tuple[Known, list[Change]]:
    """Return what is known after these calls, and what is new about them to a thread written with what was known."""
    before = known
    told = list(filter(_tells, calls))
    if not before.nodes and not told:
        return known, []
    found = _of_versions(before, versions)
    for call in told:
        if before.nodes:  # else nothing was known: calls of a first step are not compared with each other
            found += _of_versions(known, call.get("versions", {})) + _of_call(known, call)
        known = _after(known, call)
    if (seen := _with_versions(known.versions, versions)) is not known.versions:
        known = Known(known.nodes, seen, known.step, known.names)
    return known, list(dict.fromkeys(found))


def _tells(call: Record) -> bool:
    return "error" not in call and not call.get("cached")


def _after(known: Known, call: Record) -> Known:
    path, model, step = call.get("path", ""), call.get("model", ""), call.get("step")
    models = known.nodes.get(path, {})
    seen = models.get(model, UNSEEN)
    seen = Seen(
        _with_value(seen.served, call.get("served_model"), step),
        _with_value(seen.fingerprints, call.get("system_fingerprint"), step),
        _with_tools(seen.tools, call.get("tools", {})),
        step,
    )
    nodes = _with_last(known.nodes, path, _with_last(models, model, seen, SEEN), NODES)
    names = [*known.names, *sorted(names_of(call) - set(known.names))][-NAMES:]
    return Known(nodes, _with_versions(known.versions, call.get("versions", {})), step, names)


def _with_tools(seen: Mapping[str, Sequence[str]], tools: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    if all(schema in seen.get(name, ()) for name, schema in tools.items()):
        return seen
    return dict([*{**seen, **{name: _with_one(seen.get(name, ()), tools[name]) for name in tools}}.items()][-TOOLS:])


def _with_versions(seen: Mapping[str, Sequence[str]], versions: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    if all(version in seen.get(name, ()) for name, version in versions.items()):
        return seen
    return {**seen, **{name: _with_one(seen.get(name, ()), version) for name, version in versions.items()}}


def _with_one(values: Sequence[str], value: str) -> Sequence[str]:
    return [*(other for other in values if other != value), value][-SEEN:]


def _with_value(values: Mapping[str, int | None], value: str | None, step: int | None) -> Mapping[str, int | None]:
    return values if value is None else _with_last(values, value, step, SEEN)


def _with_last(values: Mapping[str, T], key: str, value: T, most: int) -> dict[str, T]:
    """Return a mapping with one more at the end; the first are let go."""
    if len(values) <= 1 and key in values:
        return {key: value}
    others = [(other, kept) for other, kept in values.items() if other != key]
    return dict([*others, (key, value)][-most:])


def _of_versions(known: Known, versions: Mapping[str, str]) -> list[Change]:
    return [
        Change(name, known.versions[name][-1] or None, version or None, known.step)
        for name, version in versions.items()
        if version not in known.versions.get(name, (version,))
    ]


def _of_call(known: Known, call: Record) -> list[Change]:
    path, model = call.get("path", ""), call.get("model", "")
    models = known.nodes.get(path)
    if models is None:
        return []
    seen = models.get(model)
    if seen is None:
        was, last = list(models.items())[-1]
        return [Change("model", was or None, model or None, last.step, path)]
    return [
        *_of_value("served_model", seen.served, call.get("served_model"), path),
        *_of_value("system_fingerprint", seen.fingerprints, call.get("system_fingerprint"), path),
        *_of_tools(seen, call.get("tools", {}), path),
    ]


def _of_tools(seen: Seen, tools: Mapping[str, str], path: str) -> list[Change]:
    return [
        Change(f"tool {name}", seen.tools[name][-1], schema, seen.step, path)
        for name, schema in tools.items()
        if schema not in seen.tools.get(name, (schema,))
    ]


def _of_value(what: str, seen: Mapping[str, int | None], now: str | None, path: str) -> list[Change]:
    if now is None or now in seen or not seen:
        return []
    was, since = list(seen.items())[-1]
    return [Change(what, was, now, since, path)]
