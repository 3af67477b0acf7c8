"""A retention policy, and which checkpoints of a thread it keeps. No I/O, no clock.

A rule keeps what it has kept before: a prune that is repeated, or continues after a crash, chooses the same.
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
"""Seconds: some 300 years."""


@publish
@check_own_names
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Retention:
    """What of a thread stays. A checkpoint of the root graph stays if any of the rules keeps it.

    With it stays what it needs to be read and run from as before: what subgraphs have put in its step, what those with
    a memory remembered there, and the ancestors that delta channels are rebuilt from. The latest checkpoint of every
    namespace always stays, but not of subgraph calls that are over. Of tool calls, those stay that others may be
    answered with. With none of `last`, `within`, `per` and
    `ttl` nothing else does, but for what the rules below them keep; with `ttl` alone, all of the history stays as long
    as the thread does.

    Attributes:
        last: The newest so many, on the way to the latest.
        within: Those put since the first that was made less than so many seconds (or a timedelta) ago, or does not say
            when; branches too.
        per: The last one of each `"run"`, or put on each `"day"` (UTC). A run ends where an input, an update or another
            run id begins something new.
        labelled: Those with a label.
        branch_points: Those with more than one child, and these children: where ways part.
        waiting: Those that wait for a person, though the thread has gone on in another way: the ends of branches with a
            question that has no answer.
        threads: Which threads: a pattern with `*`, `?` and `[...]`. This and the next two are for `sweep` and
            `set_policy`; `prune` is told its threads.
        idle: Only threads in which nothing was put for so many seconds (or a timedelta).
        ttl: Seconds (or a timedelta) after its last put that a whole thread is deleted, labels or not. Longer than the
            longest step and the longest wait for a person: a run whose thread has gone meanwhile cannot go on
            (`CheckpointConflict`).

    Raises:
        InvalidInput: One of them cannot be meant, or there is none of that name.
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
        """Check, and turn durations into seconds."""
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
        """Return whether it is for a thread of this id."""
        return fnmatchcase(thread_id, self.threads)

    def covers(self, other: Retention) -> bool:
        """Return whether it surely fits each thread that another policy fits; of `?` and `[...]` it does not tell."""
        if self.threads in ("*", other.threads):
            return True
        is_plain = not set("?[]") & set(self.threads) and "[" not in other.threads
        return is_plain and self.fits(other.threads)

    @property
    def says_nothing(self) -> bool:
        """Whether none of its rules says what stays: all but the latest would go, which nobody may have meant."""
        return not self.branch_points and all(rule is None for rule in (self.last, self.within, self.per, self.ttl))

    @property
    def keeps_all(self) -> bool:
        """Whether nothing goes as long as the thread stays: it only says how long that is."""
        return self.ttl is not None and self.last is None and self.within is None and self.per is None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, durations in seconds, without what is as by default."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Retention:
        """Return the policy that `to_dict` has written.

        Raises:
            InvalidInput: It names something that no policy has, or a value makes no sense.
        """
        known = {each.name for each in fields(cls)}
        if not isinstance(said, Mapping) or set(said) - known:
            raise InvalidInput(f"a policy has {', '.join(sorted(known))}; not {said!r:.200}")
        return cls(**said)

    def __str__(self) -> str:
        """Say what stays, in one line."""
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
        """Return what makes it again, without what is as by default."""
        return f"Retention({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def _repr_html_(self) -> str:
        return html.tag("div", html.text(str(self)))


def duration_text(wait: float | timedelta | None) -> str:
    """Return a duration as the command line takes it: `90s`, `15m`, `12h`, `7d`."""
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
    """Return a policy, if it says what stays."""
    if policy.says_nothing:
        is_about = policy.threads != "*" or policy.idle is not None
        raise InvalidInput(
            f"{'this says for which threads, but not' if is_about else 'this does not say'} what to keep: add last=, "
            f"within=, per=, branch_points= or ttl=; last=1 keeps the latest. It was {policy!r}"
        )
    return policy


KEEP_LATEST = Retention(waiting=False)
"""LangGraph's own strategy, by its name: branches go, whatever they wait for. It must stay what LangGraph says."""

DEFAULT = Retention(last=1)
"""What `keel prune` keeps if it is told nothing: the latest, and what waits for a person."""


def pack_policies(policies: Sequence[Retention]) -> list[dict[str, Any]]:
    """Return policies as they are stored."""
    return [policy.to_dict() for policy in policies]


def unpack_policies(stored: object) -> tuple[Retention, ...]:
    """Return policies that were stored."""
    if not isinstance(stored, list):
        raise TypeError("not a list")
    return tuple(Retention.from_dict(each) for each in stored)


# -- choosing --------------------------------------------------------------------------------------------------


def choose(policy: Retention, moments: Sequence[NodeAndHeader], now: float, named: Collection[Address]) -> set[Stamp]:
    """Return what the rules keep of a thread, besides its heads and the branches that wait for somebody."""
    roots = [moment for moment in moments if not moment[0].address.checkpoint_ns]
    if policy.keeps_all:
        return {node.stamp for node, _ in moments}
    kept = {node.stamp for node, _ in moments if policy.labelled and node.address in named}
    if policy.last is not None:
        kept.update(node.stamp for node in islice(trunk(roots), policy.last))
    if policy.within is not None:
        since = now - 1000 * in_seconds(policy.within)
        # All that was put after a young one, too: a host whose clock is late is no reason to lose it.
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
    """Yield the way to the latest checkpoint of the root graph, that one first, as far as that is known."""
    headers = {node.stamp: header for node, header in roots}
    ancestry = Ancestry(node for node, _ in roots)
    heads = (node for node, _ in roots if node.is_head)
    return chain.from_iterable(ancestry.likely_way(head, lambda node: headers[node.stamp]) for head in islice(heads, 1))


def _continues_run(node: Node, header: Header, by_id: Mapping[str | None, NodeAndHeader]) -> bool:
    """Return whether a checkpoint was made by the run that made its parent: in the very next step of it."""
    if node.parent not in by_id or header.metadata.get("source") != "loop":
        return False
    # With `durability="exit"` the input is not stored, but it has taken a step.
    parent, before = by_id[node.parent]
    step, last = step_of(header), step_of(before)
    return node.run_id == parent.run_id and (step is None or last is None or step == last + 1)


def _find_partings(roots: Sequence[NodeAndHeader]) -> set[Stamp]:
    # The children stay too: without them nobody could tell the next time that ways part here.
    known = {node.address.checkpoint_id for node, _ in roots}
    origins = {node.stamp: origin_of(node.parent, header.metadata, known) for node, header in roots}
    count = Counter(origin for origin in origins.values() if origin)
    parted = {origin for origin in count if count[origin] > 1 and origin in known}
    return {node.stamp for node, _ in roots if {node.address.checkpoint_id, origins[node.stamp]} & parted}
