"""The rows of a timeline: the text of each column and the lines of the tree.

Terminals and notebooks share them. The path to the head is lane 0; each branch has its own lane, a subgraph one further
in than its caller. If no lane is free, a branch is drawn without lines, so the number of lines in a row is bounded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, TypeAlias

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.approvals.interrupts import describe_question
from langgraph_keel.display.text import count_of, format_size, one_line, plain, short_ids
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import BRANCHED_FROM, FORKED_FROM, REWOUND_TO
from langgraph_keel.history.records import MomentRecord
from langgraph_keel.upgrades.bulk import UPGRADED

MOST_LANES = 8
"""Maximum branches drawn side by side."""

MOST = 8
"""Maximum tools, questions, errors and names listed in a row."""
_NAME, _TEXT = 60, 200

PRUNED = "its parent was pruned"


@dataclass(frozen=True, slots=True)
class Line:
    """A line between rows; `is_call` if it leads to the moments of a subgraph."""

    lane: int
    is_call: bool = False


@dataclass(frozen=True, slots=True)
class TreeRow:
    """The place of one moment in the tree, and the lines that cross its row."""

    moment: MomentRecord
    line: Line
    is_newer: bool = False  # its line continues towards newer moments
    is_older: bool = False
    through: tuple[Line, ...] = ()  # lines that pass by
    joins: tuple[Line, ...] = ()  # lines of newer moments that continue this one
    cuts: tuple[Line, ...] = ()  # lines that end here because their origin is not shown
    begins: bool = True  # whether it is the first moment on its line


@dataclass(slots=True)
class _Path:
    """Consecutive moments in one lane; places are counted from the oldest moment."""

    first: int
    last: int
    origin: int | None = None
    is_call: bool = False
    is_cut: bool = False
    lane: int = MOST_LANES

    @property
    def start(self) -> int:
        """Return the place from which it occupies its lane, up to `last`."""
        return self.first - self.is_cut if self.origin is None else self.origin

    @property
    def line(self) -> Line:
        return Line(self.lane, self.is_call)


def tree_rows(moments: Sequence[MomentRecord]) -> list[TreeRow]:
    """Return the row of each moment, in the order of `moments`."""
    if len(moments) > 1 and moments[0].position > moments[-1].position:
        return tree_rows(moments[::-1])[::-1]
    paths, path_of = _paths(moments)
    ends = [-2] * MOST_LANES
    for number, path in enumerate(paths):  # each gets a lane that is free along it; the first gets lane 0
        inner = 0 if path.origin is None else path_of[path.origin].lane
        free = (lane for lane in (*range(inner + 1, MOST_LANES), *range(1, inner)) if ends[lane] < path.start)
        path.lane = next(free, MOST_LANES) if number else 0
        if path.lane < MOST_LANES:
            ends[path.lane] = path.last
    return list(_rows(moments, paths, path_of))


def lane_count(rows: Iterable[TreeRow]) -> int:
    """Return the number of lanes of some rows."""
    return 1 + max((line.lane for row in rows for line in (row.line, *row.joins, *row.cuts)), default=-1)


def callers_of(moment: MomentRecord) -> Mapping[str, str]:
    """Return the ids of a subgraph's callers by namespace, outermost graph first."""
    parents = moment.metadata.get("parents")
    if not moment.namespace or not isinstance(parents, Mapping):
        return {}
    known = {ns: id_ for ns, id_ in parents.items() if isinstance(ns, str) and isinstance(id_, str)}
    return dict(sorted(known.items(), key=lambda item: (bool(item[0]), item[0].count(NS_SEP))))


@dataclass(slots=True)
class _Origins:
    """The parent and the caller of each moment, by place; `None` if not shown."""

    places: dict[Address, int] = field(default_factory=dict)
    parents: list[int | None] = field(default_factory=list)
    callers: list[int | None] = field(default_factory=list)

    def add(self, moment: MomentRecord, moments: Sequence[MomentRecord]) -> None:
        """Find the parent and the caller of the next moment."""
        callers = callers_of(moment)
        parent = self._place(moment, moment.namespace, moment.parent)
        if callers and parent is not None and callers_of(moments[parent]) != callers:
            parent = None  # a subgraph with its own memory, called again: it is shown below this call
        shown = [place for ns, id_ in callers.items() if (place := self._place(moment, ns, id_)) is not None]
        self.callers.append(shown[-1] if shown and parent is None else None)
        self.parents.append(parent)
        self.places[moment.address] = len(self.parents) - 1

    def _place(self, moment: MomentRecord, ns: str, checkpoint_id: str | None) -> int | None:
        return self.places.get(replace(moment.address, checkpoint_ns=ns, checkpoint_id=checkpoint_id))


def _paths(moments: Sequence[MomentRecord]) -> tuple[list[_Path], list[_Path]]:
    """Return the paths, the one to the head first, and the path of each moment."""
    origins = _Origins()
    for moment in moments:
        origins.add(moment, moments)
    trunk = _trunk(moments)
    main = _main_children(moments, origins.parents, trunk)
    path_of: list[_Path] = []
    for place, moment in enumerate(moments):
        parent, caller = origins.parents[place], origins.callers[place]
        if parent is not None and main[parent] == place:
            path_of.append(path_of[parent])
            path_of[-1].last = place
        else:
            is_cut = moment.parent is not None or bool(callers_of(moment))
            origin = caller if parent is None else parent
            path_of.append(_Path(place, place, origin, bool(moment.namespace), is_cut))
    paths = {id(path): path for path in path_of}.values()
    return sorted(paths, key=lambda path: (path is not path_of[trunk], path.start, path.first)), path_of


def _trunk(moments: Sequence[MomentRecord]) -> int:
    """Return the place of the head, or else of the outermost graph's newest moment."""
    depths = (moment.namespace.count(NS_SEP) + bool(moment.namespace) for moment in moments)
    ranks = [(-depth, moment.is_head, place) for place, (depth, moment) in enumerate(zip(depths, moments, strict=True))]
    return max(ranks)[2] if ranks else -1


def _main_children(moments: Sequence[MomentRecord], parents: Sequence[int | None], trunk: int) -> dict[int, int]:
    """Return each moment's successor in its lane: towards a head, or else the oldest."""
    kept: set[int] = set()  # the ancestors of heads
    for place, moment in enumerate(moments):
        at: int | None = place if moment.is_head or place == trunk else None
        while at is not None and at not in kept:
            kept.add(at)
            at = parents[at]
    main: dict[int, int] = {}
    for place, parent in enumerate(parents):
        if parent is not None and (parent not in main or (place in kept and main[parent] not in kept)):
            main[parent] = place
    return main


def _rows(moments: Sequence[MomentRecord], paths: Iterable[_Path], path_of: Sequence[_Path]) -> Iterator[TreeRow]:
    begun: dict[int, list[_Path]] = defaultdict(list)
    for path in paths:
        if path.lane < MOST_LANES:
            begun[path.start].append(path)
    running = {path.lane: path for path in begun[-1]}
    for place, moment in enumerate(moments):
        own = path_of[place]
        running |= {path.lane: path for path in begun[place] if path.first == place}
        yield _row(moment, place, own, running.values(), begun[place])
        ended = [lane for lane, path in running.items() if path.last <= place]
        for lane in ended:
            del running[lane]
        running |= {path.lane: path for path in begun[place] if path.first > place}


def _row(moment: MomentRecord, place: int, own: _Path, running: Iterable[_Path], begun: Iterable[_Path]) -> TreeRow:
    is_apart = own.lane == MOST_LANES
    later = [path for path in begun if path.first > place]
    return TreeRow(
        moment=moment,
        line=own.line,
        is_newer=own.last > place and not is_apart,
        is_older=own.start < place and not is_apart,
        through=tuple(path.line for path in running if path.lane != own.lane),
        joins=tuple(path.line for path in later if path.origin == place),
        cuts=tuple(path.line for path in later if path.origin is None),
        begins=own.first == place,
    )


Tone: TypeAlias = Literal[
    "label", "origin", "summary", "tool", "replayed", "pending", "waits", "asked", "failed", "drift", "next", "not read"
]


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on a moment."""

    tone: Tone
    text: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of a timeline as text; every text is on one line and safe to print."""

    tree: TreeRow
    place: str
    step: str
    id: str  # the shortest unique end of its id
    time: str
    where: str  # the path of its namespace
    nodes: str
    notes: tuple[Note, ...]
    model: str
    size: str

    @property
    def is_head(self) -> bool:
        """Whether a run without an id continues from here."""
        return self.moment.is_head and not self.where

    @property
    def moment(self) -> MomentRecord:
        """The moment."""
        return self.tree.moment


def timeline_rows(moments: Sequence[MomentRecord], others: Sequence[MomentRecord] = ()) -> list[TimelineRow]:
    """Return the rows of a timeline, newest first, for moments in any order."""
    oldest_first = moments if len(moments) < 2 or moments[0].position <= moments[-1].position else moments[::-1]
    ids: list[str] = []
    for moment in moments:
        known = moment.parent, (twin_of(moment) or ("", None))[1]
        ids += [moment.id, *(id_ for id_ in known if id_), *callers_of(moment).values()]
    short = short_ids(ids)
    names = _Names({moment.address: f"#{moment.position}" for moment in (*others, *moments)}, short)
    days = {moment.time.astimezone().date() for moment in moments if moment.time}
    before: dict[tuple[str, str], MomentRecord] = {}
    rows = []
    for row in tree_rows(oldest_first):
        moment = row.moment
        place = moment.thread_id, moment.namespace
        match moment.metadata.get(UPGRADED):
            case [start, end]:
                nodes = one_line(f"upgraded {start} → {end}", _NAME)
            case _:
                nodes = join_names(moment.nodes) or one_line(moment.source, _NAME)
        time = "%H:%M:%S" if len(days) < 2 else "%Y-%m-%d %H:%M"
        rows.append(
            TimelineRow(
                tree=row,
                place=str(moment.position),
                step="" if moment.step is None else one_line(str(moment.step), 12),
                id=one_line(names.ids[moment.id], _NAME),
                time=f"{moment.time.astimezone():{time}}" if moment.time else "",
                where=path_of(moment.namespace),
                nodes=nodes,
                notes=tuple(_notes(row, before.get(place), names)),
                model=join_names(moment.models),
                size=format_size(moment.bytes),
            )
        )
        before[place] = moment
    return rows[::-1]


def heading(moments: Sequence[MomentRecord]) -> tuple[str, str]:
    """Return the name of the thread, and the number of moments shown."""
    threads = dict.fromkeys(moment.thread_id for moment in moments)
    name = one_line(next(iter(threads), ""), _NAME) if len(threads) < 2 else f"{len(threads)} threads"
    days = {f"{moment.time.astimezone():%Y-%m-%d}" for moment in moments if moment.time}
    return name, " · ".join([count_of(len(moments), "moment"), *(days if len(days) == 1 else ())])


def footing(moments: Sequence[MomentRecord], older: int | None) -> str:
    """Return the line below the oldest moment; empty if there are no older ones."""
    oldest = min(moments, key=lambda moment: moment.position, default=None)
    if older == 0 or (older is None and not (oldest and (oldest.parent or oldest.namespace))):
        return ""
    count = "older moments" if older is None else count_of(older, "older moment")
    return f"… {count}: keel timeline --all, or timeline[:] in Python"


def twin_of(moment: MomentRecord) -> tuple[str, str | None] | None:
    """Return why a moment is a twin, and the original's id (`None`: not run yet)."""
    for name, why in ((REWOUND_TO, "rewound to"), (BRANCHED_FROM, "branched from")):
        if name in moment.metadata:
            id_ = moment.metadata[name]
            return why, id_ if isinstance(id_, str) and id_ else None
    return None


def lost_parent(moment: MomentRecord) -> bool:
    """Return whether a moment had a parent that was removed."""
    is_later = isinstance(moment.step, int) and moment.step > (-1 if moment.source == "input" else 0)
    return moment.parent is None and (is_later or moment.source == "loop") and fork_source(moment) == ""


def fork_source(moment: MomentRecord) -> str:
    """Return the thread from which a moment was forked; empty if it was not."""
    source = moment.metadata.get(FORKED_FROM)
    return str(source.get("thread_id", "")) if isinstance(source, Mapping) else ""


def path_of(namespace: str) -> str:
    """Return the nodes of a namespace, without the ids of their tasks."""
    nodes = (part.partition(NS_END)[0] for part in namespace.split(NS_SEP))
    return " › ".join(one_line(node, _NAME) for node in nodes) if namespace else ""


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of moments in rows: the position if shown, else the end of the id."""

    places: Mapping[Address, str]
    ids: Mapping[str, str]

    def of(self, moment: MomentRecord, checkpoint_id: str, namespace: str) -> str:
        address = Address(moment.thread_id, namespace, checkpoint_id)
        return self.places.get(address) or one_line(self.ids.get(checkpoint_id, checkpoint_id), _NAME)


def _notes(row: TreeRow, before: MomentRecord | None, names: _Names) -> Iterator[Note]:
    moment = row.moment
    yield from (Note("label", one_line(label, _NAME)) for label in moment.labels)
    if origin := _origin(row, before, names):
        yield Note("origin", origin)
    if moment.summary:
        yield Note("summary", one_line(moment.summary, _TEXT))
    yield from _tools(moment)
    yield from problem_notes(moment)
    if moment.is_leaf and moment.next:
        yield Note("next", f"next: {join_names(moment.next)}")
    elif moment.is_head and not moment.namespace and not moment.next:
        yield Note("next", "done")


def _origin(row: TreeRow, before: MomentRecord | None, names: _Names) -> str:
    """Return the origin of a moment that does not continue the moment before it."""
    moment = row.moment
    if twin := twin_of(moment):
        why, id_ = twin
        return f"{why} {names.of(moment, id_, moment.namespace) if id_ else 'the start'}"
    if source := fork_source(moment):
        return f"forked from thread {one_line(source, _NAME)}"
    callers = callers_of(moment)
    if callers and (before is None or callers_of(before) != callers):
        namespace, caller = list(callers.items())[-1]
        return f"called at {names.of(moment, caller, namespace)}"
    if before is None or moment.parent == before.id:
        return ""
    if moment.parent is None:
        return PRUNED if lost_parent(moment) else "starts over"
    parent = names.of(moment, moment.parent, moment.namespace)
    return f"branch from {parent}" if row.begins else f"continues {parent}"


def _tools(moment: MomentRecord) -> Iterator[Note]:
    counts = Counter(moment.tools)
    for tool, count in islice(counts.items(), MOST):
        name = one_line(tool.name, _NAME) + (f" ×{count:,}" if count > 1 else "")
        yield Note("replayed", f"{name} (replayed)") if tool.is_replayed else Note("tool", name)
    if len(counts) > MOST:
        yield Note("tool", f"… {count_of(len(counts) - MOST, 'more tool')}")


def problem_notes(moment: MomentRecord) -> Iterator[Note]:
    """Yield pending tasks, questions, failures, drift and unread values of a moment."""
    if moment.pending and moment.is_leaf:
        yield Note("pending", f"{len(moment.pending)} written: {join_names(moment.pending)}")
    waits = moment.interrupts if moment.is_leaf else ()
    asked = [question for question in moment.asked or moment.interrupts if question not in waits]
    yield from _notes_of("waits", [describe_question(question.value) for question in waits])
    yield from _notes_of("asked", [describe_question(question.value) for question in asked])
    yield from _notes_of("failed", moment.errors)
    yield from _notes_of("drift", moment.drift)
    yield from _notes_of("not read", moment.unread)


def _notes_of(tone: Tone, texts: Sequence[str]) -> Iterator[Note]:
    """Yield a note for each text, at most `MOST`, and the number of the others."""
    yield from (Note(tone, f"{tone}: {one_line(text, _TEXT)}") for text in texts[:MOST])
    if len(texts) > MOST:
        yield Note(tone, f"{tone}: … {len(texts) - MOST:,} more")


def join_names(names: Sequence[str]) -> str:
    """Return names on one line, at most `MOST`, and the number of the others."""
    more = [f"… {len(names) - MOST:,} more"] if len(names) > MOST else []
    return ", ".join([*(one_line(name, _NAME) or plain(repr(name)) for name in names[:MOST]), *more])
