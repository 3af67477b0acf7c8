"""Fingerprints of threads, and drift: changes of models, tools and packages.

A call differs if it has a value that its thread has not seen in that node. Providers serve from several backends
concurrently, so a change is reported once, not at each call. A new tool is not drift; a changed tool schema is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.provenance.records import Record, names_of

MARK = "keel_drift"
"""The metadata key of a list of changes, in the first checkpoint after a drift."""
GRAPH_VERSION = "graph_version"
"""The metadata key of the application's own version."""
SEEN = 16
"""Maximum values remembered per field, the latest ones."""
NAMES = 500
"""Maximum model names remembered per thread."""
NODES = 100
"""Maximum nodes remembered."""
TOOLS = 200
"""Maximum tools remembered per node."""

T = TypeVar("T")


@publish
@dataclass(frozen=True, slots=True)
class Change:
    """One changed value.

    Attributes:
        what: `"model"`, `"served_model"`, `"system_fingerprint"`, `"tool <name>"`, `"graph_version"`, or a package.
        was: The last value before.
        now: The current value.
        since: The last step with the old value.
        path: The node, after the nodes of the graphs around it; empty for changes of the whole graph.
    """

    what: str
    was: str | None
    now: str | None
    since: int | None = None
    path: str = ""

    def __str__(self) -> str:
        """Return the change as one line."""
        node = f"node {self.path!r}: " if self.path else ""
        since = "" if self.since is None else f" up to step {self.since}"
        return f"{node}{self.what} was {self.was or 'none'}{since}, now {self.now or 'none'}"


@publish
@dataclass(frozen=True, slots=True)
class DriftReport:
    """The changes since a thread was written.

    Attributes:
        thread_id: The thread.
        changes: The changes, in the order in which they were noticed.
    """

    thread_id: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        """Return a heading and a line for each change."""
        lines = "".join(f"\n  {change}" for change in self.changes)
        return f"thread {self.thread_id!r} continues with other models, tools or versions than before:{lines}"


@dataclass(frozen=True, slots=True)
class Seen:
    """The values that one node has seen of one model, with the last step of each."""

    served: Mapping[str, int | None] = field(default_factory=dict)
    fingerprints: Mapping[str, int | None] = field(default_factory=dict)
    tools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    step: int | None = None


UNSEEN = Seen()


class Spent(NamedTuple):
    """Tokens and cost of calls, as far as models report them."""

    input: int = 0
    output: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens."""
        return self.input, self.output

    def add(self, call: Record) -> Spent:
        """Return the sum with one more call; ignores invalid values."""
        usage, cost = call.get("usage"), call.get("cost")
        counts = map(usage.get, ("input_tokens", "output_tokens")) if isinstance(usage, Mapping) else (0, 0)
        given, written = (count if type(count) is int else 0 for count in counts)
        total = (self.cost or 0.0) + cost if isinstance(cost, int | float) else self.cost
        return Spent(self.input + given, self.output + written, total)


NOTHING_SPENT = Spent()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The models, tools and packages that a thread was written with."""

    nodes: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)  # per path of a node, and requested model
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # `""` if the application had no version
    step: int | None = None  # the last one that called a model
    names: Sequence[str] = ()  # of models, requested and served, in order of appearance
    spent: Spent = NOTHING_SPENT

    def pack(self) -> list[Any]:
        """Return its stored form."""
        nodes = {
            path: {name: [seen.served, seen.fingerprints, seen.tools, seen.step] for name, seen in models.items()}
            for path, models in self.nodes.items()
        }
        spent = [list(self.spent)] if self.spent != NOTHING_SPENT else []
        return [nodes, self.versions, self.step, list(self.names), *spent]

    @classmethod
    def unpack(cls, stored: Any) -> Fingerprint:
        """Return a fingerprint from its stored form; an empty one if that is invalid."""
        try:
            nodes, versions, step, names, *rest = stored
            given, written, cost = rest[0] if rest else NOTHING_SPENT
            seen = {
                path: {
                    name: Seen(dict(served), dict(fingerprints), _unpack_lists(tools), at)
                    for name, (served, fingerprints, tools, at) in models.items()
                }
                for path, models in nodes.items()
            }
            spent = Spent(int(given), int(written), None if cost is None else float(cost))
            return cls(seen, _unpack_lists(versions), step, [name for name in names if isinstance(name, str)], spent)
        except (TypeError, ValueError, AttributeError):
            return cls()


def _unpack_lists(stored: Any) -> dict[str, list[str]]:
    return {str(name): [str(value) for value in values] for name, values in stored.items()}


def update_fingerprint(
    before: Fingerprint, calls: Iterable[Record], versions: Mapping[str, str]
) -> tuple[Fingerprint, list[Change]]:
    """Return the fingerprint of a thread after more calls, and the changes they bring."""
    answered = [call for call in calls if "error" not in call and not call.get("cached")]
    if not before.nodes and not answered:
        return before, []
    changes = _compare_versions(before, versions)
    after = before
    for call in answered:
        if before.nodes:  # the calls of a thread's first step are not compared with each other
            changes += _compare_versions(after, call.get("versions", {})) + _compare_call(after, call)
        after = _add_call(after, call)
    seen = _with_versions(after.versions, versions)
    if seen is not after.versions:
        after = replace(after, versions=seen)
    return after, list(dict.fromkeys(changes))


def _add_call(before: Fingerprint, call: Record) -> Fingerprint:
    path, model, step = call.get("path", ""), call.get("model", ""), call.get("step")
    models = before.nodes.get(path, {})
    seen = models.get(model, UNSEEN)
    seen = Seen(
        _with_value(seen.served, call.get("served_model"), step),
        _with_value(seen.fingerprints, call.get("system_fingerprint"), step),
        dict([*_with_versions(seen.tools, call.get("tools", {})).items()][-TOOLS:]),
        step,
    )
    nodes = _with_last(before.nodes, path, _with_last(models, model, seen, SEEN), NODES)
    names = [*before.names, *sorted(names_of(call) - set(before.names))][-NAMES:]
    versions = _with_versions(before.versions, call.get("versions", {}))
    return Fingerprint(nodes, versions, step, names, before.spent.add(call))


def _with_versions(seen: Mapping[str, Sequence[str]], versions: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    if all(version in seen.get(name, ()) for name, version in versions.items()):
        return seen
    found = dict(seen)
    for name, version in versions.items():
        others = [other for other in seen.get(name, ()) if other != version]
        found[name] = [*others, version][-SEEN:]
    return found


def _with_value(values: Mapping[str, int | None], value: str | None, step: int | None) -> Mapping[str, int | None]:
    return values if value is None else _with_last(values, value, step, SEEN)


def _with_last(values: Mapping[str, T], key: str, value: T, most: int) -> dict[str, T]:
    """Return a mapping with one more item at the end, without the oldest above `most`."""
    if len(values) <= 1 and key in values:
        return {key: value}
    others = [(other, kept) for other, kept in values.items() if other != key]
    return dict([*others, (key, value)][-most:])


def _compare_versions(before: Fingerprint, versions: Mapping[str, str]) -> list[Change]:
    return [
        Change(name, before.versions[name][-1] or None, version or None, before.step)
        for name, version in versions.items()
        if version not in before.versions.get(name, (version,))
    ]


def _compare_call(before: Fingerprint, call: Record) -> list[Change]:
    path, model = call.get("path", ""), call.get("model", "")
    models = before.nodes.get(path)
    if models is None:
        return []
    seen = models.get(model)
    if seen is None:
        was, last = list(models.items())[-1]
        return [Change("model", was or None, model or None, last.step, path)]
    return [
        *_compare_value("served_model", seen.served, call.get("served_model"), path),
        *_compare_value("system_fingerprint", seen.fingerprints, call.get("system_fingerprint"), path),
        *(
            Change(f"tool {name}", seen.tools[name][-1], schema, seen.step, path)
            for name, schema in call.get("tools", {}).items()
            if schema not in seen.tools.get(name, (schema,))
        ),
    ]


def _compare_value(what: str, seen: Mapping[str, int | None], now: str | None, path: str) -> list[Change]:
    if now is None or now in seen or not seen:
        return []
    was, since = list(seen.items())[-1]
    return [Change(what, was, now, since, path)]
