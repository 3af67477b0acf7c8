"""Retention policies, and the checkpoints that they keep. No I/O, no clock.

The rules are stable: a prune that is repeated, or continues after a crash, keeps the same checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import chain, dropwhile, islice
from typing import Any, Literal, TypeAlias, get_args

from langgraph_keel.display import html
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.lineage import Ancestry, NodeAndHeader, made_at, origin_of, step_of
from langgraph_keel.engine.misspelt import check_own_names
from langgraph_keel.engine.records import Node, Stamp
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput

Per: TypeAlias = Literal["run", "day"]

LONGEST = 1e10
"""Maximum duration, in seconds: some 300 years."""


@publish
@check_own_names
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Retention:
    """Rules for keeping checkpoints of the root graph; any rule is enough.

    Everything that a kept checkpoint needs to be read and resumed is kept too: the checkpoints of subgraphs in its
    step, the memories of stateful subgraphs at that point, and the ancestors from which delta channels are rebuilt. The
    latest checkpoint of every namespace is always kept, except of finished subgraph calls; so are tool calls whose
    results may be needed again. Without `last`, `within`, `per` and `ttl`, only the rules below them keep more. With
    `ttl` alone, the whole history is kept as long as the thread.

    Attributes:
        last: Number of newest checkpoints to keep on the path to the latest.
        within: Seconds or timedelta: keeps checkpoints made within that time or without a time, and all written after
            the first of these, including branches.
        per: Keeps the last checkpoint of each `"run"` or each `"day"` (UTC). A run ends where an input, an update or
            another run id starts something new.
        labelled: Whether to keep checkpoints with a label.
        branch_points: Whether to keep checkpoints with several children, and these children.
        waiting: Whether to keep ends of branches that wait for an answer, although the thread continued elsewhere.
        threads: Pattern of thread ids, with `*`, `?` and `[...]`. This and the next two are for `sweep` and
            `set_policy`, not for `prune`.
        idle: Seconds or timedelta: applies the policy only to threads without a write for that long.
        ttl: Seconds or timedelta after its last write when a whole thread is deleted, labels or not. It must be longer
            than the longest step and the longest wait for a person. If the thread expires during a run, the run fails
            with `CheckpointConflict`.

    Raises:
        InvalidInput: If a value is invalid, or an option does not exist.
    """

    last: int | None = None
    within: float | timedelta | None = None
    per: Per | None = None
    labelled: bool = True
    branch_points: bool = False
    waiting: bool = True
    threads: str = "*"
    idle: float | timedelta | None = None
    ttl: float | timedelta | None = None

    def __post_init__(self) -> None:
        """Validate the rules, and convert durations to seconds."""
        if self.last is not None and (type(self.last) is not int or self.last < 1):
            raise InvalidInput(f"last must be a whole number of checkpoints, at least 1, not {self.last!r}")
        if self.per is not None and self.per not in get_args(Per):
            raise InvalidInput(f"per must be 'run', 'day' or None, not {self.per!r}")
        for name in ("labelled", "branch_points", "waiting"):
            if type(getattr(self, name)) is not bool:
                raise InvalidInput(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.threads, str) or not self.threads:
            raise InvalidInput(f"threads must be a pattern such as 'chat-*', not {self.threads!r}")
        for name in ("within", "idle", "ttl"):
            object.__setattr__(self, name, seconds_of(name, getattr(self, name)))

    def fits(self, thread_id: str) -> bool:
        """Return whether the policy matches a thread id."""
        return fnmatchcase(thread_id, self.threads)

    def covers(self, other: Retention) -> bool:
        """Return whether it certainly matches all threads of another policy.

        The answer is `False` for patterns with `?` and `[...]`.
        """
        if self.threads in ("*", other.threads):
            return True
        is_plain = not set("?[]") & set(self.threads) and "[" not in other.threads
        return is_plain and self.fits(other.threads)

    @property
    def says_nothing(self) -> bool:
        """Whether it has no rule, so that it would keep only the latest checkpoint."""
        return not self.branch_points and all(rule is None for rule in (self.last, self.within, self.per, self.ttl))

    @property
    def keeps_all(self) -> bool:
        """Whether it keeps the whole history, and only limits the life of threads."""
        return self.ttl is not None and self.last is None and self.within is None and self.per is None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without defaults; durations in seconds."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Retention:
        """Return the policy that `to_dict` wrote.

        Raises:
            InvalidInput: If an option does not exist, or a value is invalid.
        """
        known = {each.name for each in fields(cls)}
        if not isinstance(said, Mapping) or set(said) - known:
            raise InvalidInput(f"the options of a policy are {', '.join(sorted(known))}; not {said!r:.200}")
        return cls(**said)

    def __str__(self) -> str:
        """Describe the policy in one line."""
        rules = [f"the last {self.last:,}"] if self.last else []
        rules += [f"those of the last {duration_text(self.within)}"] if self.within is not None else []
        rules += [f"the last of each {self.per}"] if self.per else []
        rules += ["all"] if self.keeps_all else []
        rules += [] if rules else ["the latest"]
        rules += [name for name in ("labelled", "branch_points", "waiting") if getattr(self, name)]
        idle = f" idle for {duration_text(self.idle)}" if self.idle is not None else ""
        ttl = f"; the thread goes after {duration_text(self.ttl)}" if self.ttl is not None else ""
        return f"threads {self.threads!r}{idle}: keeps {', '.join(rules).replace('_', ' ')}{ttl}"

    def __repr__(self) -> str:
        """Return the expression that creates it, without defaults."""
        return f"Retention({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def _repr_html_(self) -> str:
        return html.tag("div", html.text(str(self)))


def duration_text(wait: float | timedelta | None) -> str:
    """Return a duration as on the command line: `90s`, `15m`, `12h`, `7d`."""
    value = in_seconds(wait)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if value and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}s"


def in_seconds(wait: float | timedelta | None) -> float:
    """Return a policy's duration in seconds; none is 0."""
    return wait.total_seconds() if isinstance(wait, timedelta) else wait or 0.0


def seconds_of(name: str, given: object) -> float | None:
    """Return a duration in seconds."""
    if given is None:
        return None
    seconds = in_seconds(given) if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < LONGEST:
        raise InvalidInput(f"{name} must be seconds or a timedelta, more than 0, not {given!r}")
    return float(seconds)


def check_rules(policy: Retention) -> Retention:
    """Return a policy, after checking that it has a rule."""
    if policy.says_nothing:
        is_about = policy.threads != "*" or policy.idle is not None
        raise InvalidInput(
            f"{'this says for which threads, but not' if is_about else 'this does not say'} what to keep: add last=, "
            f"within=, per=, branch_points= or ttl=; last=1 keeps the latest. It was {policy!r}"
        )
    return policy


KEEP_LATEST = Retention(waiting=False)
"""LangGraph's own strategy: it removes branches even if they wait for an answer. Keep it as LangGraph defines it."""

DEFAULT = Retention(last=1)
"""The default of `keel prune`: keeps the latest, and branches that wait for a person."""


def pack_policies(policies: Sequence[Retention]) -> list[dict[str, Any]]:
    """Return policies in their stored form."""
    return [policy.to_dict() for policy in policies]


def unpack_policies(stored: object) -> tuple[Retention, ...]:
    """Return policies from their stored form."""
    if not isinstance(stored, list):
        raise TypeError("not a list")
    return tuple(Retention.from_dict(each) for each in stored)


# -- choosing --------------------------------------------------------------------------------------------------


def choose(policy: Retention, moments: Sequence[NodeAndHeader], now: float, named: Collection[Address]) -> set[Stamp]:
    """Return the checkpoints that rules keep, without heads and waiting branches."""
    roots = [moment for moment in moments if not moment[0].address.checkpoint_ns]
    if policy.keeps_all:
        return {node.stamp for node, _ in moments}
    kept = {node.stamp for node, _ in moments if policy.labelled and node.address in named}
    if policy.last is not None:
        kept.update(node.stamp for node in islice(trunk(roots), policy.last))
    if policy.within is not None:
        since = now - 1000 * in_seconds(policy.within)
        # Also keep everything written after a recent one: its host's clock may be behind.
        kept.update(node.stamp for node, _ in dropwhile(lambda each: (made_at(each[1]) or now) < since, roots))
    if policy.per == "run":
        by_id = {node.address.checkpoint_id: (node, header) for node, header in roots}
        continued = {node.parent for node, header in roots if _continues_run(node, header, by_id)}
        kept.update(node.stamp for node, _ in roots if node.address.checkpoint_id not in continued)
    if policy.per == "day":
        times = ((made_at(header), node.stamp) for node, header in roots)
        days = {at and datetime.fromtimestamp(at / 1000, UTC).date(): stamp for at, stamp in times}
        kept.update(days.values())
    return kept | (_find_partings(roots) if policy.branch_points else set())


def trunk(roots: Sequence[NodeAndHeader]) -> Iterator[Node]:
    """Yield the known path to the latest root checkpoint, latest first."""
    headers = {node.stamp: header for node, header in roots}
    ancestry = Ancestry(node for node, _ in roots)
    heads = (node for node, _ in roots if node.is_head)
    return chain.from_iterable(ancestry.likely_way(head, lambda node: headers[node.stamp]) for head in islice(heads, 1))


def _continues_run(node: Node, header: Header, by_id: Mapping[str | None, NodeAndHeader]) -> bool:
    """Return whether a checkpoint is the next step of the run that made its parent."""
    if node.parent not in by_id or header.metadata.get("source") != "loop":
        return False
    # With `durability="exit"` the input is not stored, but counts as a step.
    parent, before = by_id[node.parent]
    step, last = step_of(header), step_of(before)
    return node.run_id == parent.run_id and (step is None or last is None or step == last + 1)


def _find_partings(roots: Sequence[NodeAndHeader]) -> set[Stamp]:
    # Keep the children too: without them, the next prune would not recognize the branch point.
    known = {node.address.checkpoint_id for node, _ in roots}
    origins = {node.stamp: origin_of(node.parent, header.metadata, known) for node, header in roots}
    count = Counter(origin for origin in origins.values() if origin)
    parted = {origin for origin in count if count[origin] > 1 and origin in known}
    return {node.stamp for node, _ in roots if {node.address.checkpoint_id, origins[node.stamp]} & parted}
