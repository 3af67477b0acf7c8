"""Where moments stand in a drawn tree: the lane of each, and the lines that cross its row.

The way to the head is lane 0. What was left behind and what branches off stands in lanes of its own, from the moment
that it continues; a subgraph stands further in than the step that called it, from that step. Lanes are few: where more
branches run side by side, the others stand apart, without lines, and only words say where they come from. So a row
has a bounded number of lines, and the whole takes time and space that grow with the number of moments alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from langgraph_keel.core.records import Address
from langgraph_keel.timeline.moment import Moment

MOST_LANES = 8
"""Branches that are drawn side by side; wider trees say nothing to the eye, and cost the width of the page."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line between rows.

    Attributes:
        lane: Where it runs.
        is_call: Whether it leads to the moments of a subgraph.
    """

    lane: int
    is_call: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one moment.

    Attributes:
        moment: The moment.
        line: The line on which it stands.
        is_newer: Whether that line goes on towards newer moments.
        is_older: Whether it goes on towards older ones.
        through: The lines of others, from newer moments to older ones.
        joins: The lines of others that come from newer moments and end here, since they continue this one.
        cuts: The lines of others that end before this row: what they continue is not shown.
        begins: Whether it is the first that is shown on its way.
    """

    moment: Moment
    line: Line
    is_newer: bool = False
    is_older: bool = False
    through: tuple[Line, ...] = ()
    joins: tuple[Line, ...] = ()
    cuts: tuple[Line, ...] = ()
    begins: bool = True


@dataclass(slots=True)
class _Path:
    """Moments that continue each other in one lane; places are counted from the oldest moment."""

    first: int
    last: int
    origin: int | None = None
    is_call: bool = False
    is_cut: bool = False
    lane: int = MOST_LANES

    @property
    def start(self) -> int:
        """Return the place from which its lane is taken: up to `last`."""
        return self.first - self.is_cut if self.origin is None else self.origin

    @property
    def line(self) -> Line:
        """Return the line along which it is drawn."""
        return Line(self.lane, self.is_call)


def rows_of(moments: Sequence[Moment]) -> list[Row]:
    """Return the row of each moment, in the order of `moments`: oldest first or newest first."""
    if len(moments) > 1 and moments[0].position > moments[-1].position:
        return rows_of(moments[::-1])[::-1]
    paths, path_of = _paths(moments)
    _take_lanes(paths, path_of)
    return list(_rows(moments, paths, path_of))


def width_of(rows: Iterable[Row]) -> int:
    """Return how many lanes the rows take."""
    return 1 + max((line.lane for row in rows for line in (row.line, *row.joins, *row.cuts)), default=-1)


def callers_of(moment: Moment) -> Mapping[str, str]:
    """Return the checkpoints at which the graphs around a subgraph stood, by namespace; the outermost first."""
    parents = moment.metadata.get("parents")
    if not moment.namespace or not isinstance(parents, Mapping):
        return {}
    known = {ns: id_ for ns, id_ in parents.items() if isinstance(ns, str) and isinstance(id_, str)}
    return dict(sorted(known.items(), key=lambda item: (bool(item[0]), item[0].count("|"))))


# -- paths -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Origins:
    """What each moment continues, or is called by, of those that are shown and older."""

    places: dict[Address, int] = field(default_factory=dict)
    parents: list[int | None] = field(default_factory=list)
    callers: list[int | None] = field(default_factory=list)

    def add(self, moment: Moment, moments: Sequence[Moment]) -> None:
        """Find those of the next moment."""
        callers = callers_of(moment)
        parent = self._place(moment, moment.namespace, moment.parent)
        if callers and parent is not None and callers_of(moments[parent]) != callers:
            parent = None  # a subgraph with a memory of its own, called again: it stands below this call
        shown = [place for ns, id_ in callers.items() if (place := self._place(moment, ns, id_)) is not None]
        self.callers.append(shown[-1] if shown and parent is None else None)
        self.parents.append(parent)
        self.places[moment.address] = len(self.parents) - 1

    def _place(self, moment: Moment, ns: str, checkpoint_id: str | None) -> int | None:
        return self.places.get(replace(moment.address, checkpoint_ns=ns, checkpoint_id=checkpoint_id))


def _paths(moments: Sequence[Moment]) -> tuple[list[_Path], list[_Path]]:
    """Return the paths, that to the head first, and of each moment the one on which it stands."""
    origins = _Origins()
    for moment in moments:
        origins.add(moment, moments)
    trunk = _trunk(moments)
    main = _main_children(origins.parents, _kept(moments, origins.parents, trunk))
    path_of: list[_Path] = []
    for place, moment in enumerate(moments):
        parent = origins.parents[place]
        if parent is not None and main[parent] == place:
            path_of.append(path_of[parent])
            path_of[-1].last = place
        else:
            path_of.append(_begin(place, moment, origins))
    paths = {id(path): path for path in path_of}.values()
    return sorted(paths, key=lambda path: (path is not path_of[trunk], path.start, path.first)), path_of


def _begin(place: int, moment: Moment, origins: _Origins) -> _Path:
    parent, caller = origins.parents[place], origins.callers[place]
    is_cut = moment.parent is not None or bool(callers_of(moment))
    origin = caller if parent is None else parent
    return _Path(place, place, origin, bool(moment.namespace), is_cut)


def _trunk(moments: Sequence[Moment]) -> int:
    """Return the place of the head; of the newest moment of the outermost graph if it is not shown; -1 if none is."""
    depths = (moment.namespace.count("|") + bool(moment.namespace) for moment in moments)
    ranks = [(-depth, moment.is_head, place) for place, (depth, moment) in enumerate(zip(depths, moments, strict=True))]
    return max(ranks)[2] if ranks else -1


def _kept(moments: Sequence[Moment], parents: Sequence[int | None], trunk: int) -> set[int]:
    """Return the places of the moments that lead to a head."""
    kept: set[int] = set()
    for place, moment in enumerate(moments):
        at: int | None = place if moment.is_head or place == trunk else None
        while at is not None and at not in kept:
            kept.add(at)
            at = parents[at]
    return kept


def _main_children(parents: Sequence[int | None], kept: set[int]) -> dict[int, int]:
    """Return of each moment the one that goes on in its lane: towards the head, else the first that continued it."""
    main: dict[int, int] = {}
    for place, parent in enumerate(parents):
        if parent is not None and (parent not in main or (place in kept and main[parent] not in kept)):
            main[parent] = place
    return main


# -- lanes -----------------------------------------------------------------------------------------------------


def _take_lanes(paths: Sequence[_Path], path_of: Sequence[_Path]) -> None:
    """Give each path a lane that is free where it runs, the first one lane 0; where there is none, it stands apart."""
    ends = [-2] * MOST_LANES
    for number, path in enumerate(paths):
        inner = 0 if path.origin is None else path_of[path.origin].lane
        free = (lane for lane in (*range(inner + 1, MOST_LANES), *range(1, inner)) if ends[lane] < path.start)
        path.lane = next(free, MOST_LANES) if number else 0
        if path.lane < MOST_LANES:
            ends[path.lane] = path.last


def _rows(moments: Sequence[Moment], paths: Iterable[_Path], path_of: Sequence[_Path]) -> Iterator[Row]:
    """Yield the rows, the oldest first."""
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


def _row(moment: Moment, place: int, own: _Path, running: Iterable[_Path], begun: Iterable[_Path]) -> Row:
    is_apart = own.lane == MOST_LANES
    later = [path for path in begun if path.first > place]
    return Row(
        moment=moment,
        line=own.line,
        is_newer=own.last > place and not is_apart,
        is_older=own.start < place and not is_apart,
        through=tuple(path.line for path in running if path.lane != own.lane),
        joins=tuple(path.line for path in later if path.origin == place),
        cuts=tuple(path.line for path in later if path.origin is None),
        begins=own.first == place,
    )
