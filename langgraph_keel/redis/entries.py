"""Replies: what the scripts answer, as records. What is no reply of theirs is damage, and named so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from langgraph_keel.core.bodies import restored
from langgraph_keel.core.records import Address, Batch, Entry, Found, Graph, Kind, Node, Ref, Row, Run, Stamp
from langgraph_keel.errors import CorruptStore
from langgraph_keel.redis.names import unnamed

P = ParamSpec("P")
T = TypeVar("T")
Rows = dict[tuple[str, str], list[Row]]


def names_damage(parse: Callable[P, T]) -> Callable[P, T]:
    """Make a parser raise `CorruptStore` for what it cannot parse."""

    @wraps(parse)
    def parsing(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return parse(*args, **kwargs)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise CorruptStore(f"what the server returned does not parse: {error!r}") from error

    return parsing


class Line(NamedTuple):
    """The words of an entry's line, as they stand there."""

    state: str
    ns: str
    id: str
    parent: str
    run: str
    at: str
    made: str
    refs: str

    @property
    def token(self) -> str:
        """What tells the entry from any other with its number."""
        return self.made.partition(",")[0]


class Mark(NamedTuple):
    """A stamp, in its parts.

    Attributes:
        epoch: The life of the thread; no other ever has the same.
        seq: The sequence number in it. A server that lost what was put last (a failover, a power cut) uses it again.
        token: What tells those apart, so that nothing is built on an entry that was lost.
    """

    epoch: str = ""
    seq: str = ""
    token: str = ""

    @property
    def place(self) -> str:
        """The entry within its life, as scripts name it."""
        return f"{self.seq}.{self.token}" if self.seq else ""


def stamp_of(epoch: bytes, seq: int, token: str) -> str:
    """Return the stamp of an entry."""
    return f"{epoch.decode()}.{seq}.{token}"


def mark_of(stamp: Stamp | None) -> Mark:
    """Return the parts of a stamp; empty ones if it is `None`."""
    return Mark(*str(stamp).split(".")) if stamp else Mark()


def line_of(value: bytes) -> tuple[Line, bytes]:
    """Return the line and the header of an entry."""
    line, found, header = value.partition(b"\n")
    if not found:
        raise ValueError("an entry has no line")
    return Line(*f"{line.decode()} ".split(" ", 7)), header


def refs_of(text: str) -> dict[str, Ref]:
    """Return the refs of a line."""
    refs = {}
    for part in filter(None, text.split(" ")):
        channel, kind, *runs = part.split(":")
        refs[unnamed(channel)] = Ref(Kind(int(kind)), tuple(map(_run, runs[0].split(","))) if runs else ())
    return refs


def _run(text: str) -> Run:
    lo, hi = text.split("-")
    return int(lo), int(hi)


@names_damage
def entry_of(thread_id: str, epoch: bytes, seq: int, value: bytes, parent: bytes) -> Entry:
    """Return an entry as it is read: its parent is what the script says of it."""
    line, header = line_of(value)
    return Entry(
        Address(thread_id, unnamed(line.ns), unnamed(line.id)),
        unnamed(parent.decode()) or None,
        stamp_of(epoch, seq, line.token),
        restored(header),
        refs_of(line.refs),
        unnamed(line.run) if line.run else None,
    )


@names_damage
def rows_of(logs: Iterable[Sequence[Any]]) -> Rows:
    """Return rows per (namespace, channel), in order."""
    rows: Rows = {}
    for ns, channel, *flat in logs:
        pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
        rows[unnamed(ns.decode()), unnamed(channel.decode())] = [_row(lo, value) for lo, value in pairs]
    return rows


def _row(lo: int, value: bytes) -> Row:
    count, _, body = value.partition(b" ")
    return Row(lo, int(count), restored(body))


@names_damage
def batches_of(values: Iterable[bytes]) -> list[Batch]:
    """Return batches, in order."""
    return [_batch(*value.split(b" ", 2)) for value in values]


def _batch(task: bytes, path: bytes, body: bytes) -> Batch:
    return Batch(unnamed(task.decode()), unnamed(path.decode()), restored(body))


def found_of(entry: Entry, rows: Rows, batches: Iterable[bytes]) -> Found:
    """Return an entry with what it needs of the rows that were read for several."""
    ns = entry.address.checkpoint_ns
    needed = {channel: rows.get((ns, channel), []) for channel, ref in entry.refs.items() if ref.runs}
    return Found(entry, {channel: got for channel, got in needed.items() if got}, batches_of(batches))


@names_damage
def graph_of(thread_id: str, epoch: bytes, entries: Sequence[Any], ends: Sequence[Any], heads: Sequence[int]) -> Graph:
    """Return a thread at one moment."""
    lines = {seq: line_of(value) for seq, value in sorted(entries)}
    nodes = [_node(thread_id, epoch, seq, lines, seq in heads) for seq in lines]
    return Graph(nodes, {(unnamed(ns.decode()), unnamed(ch.decode())): end for ns, ch, end in ends}, epoch.decode())


def _node(thread_id: str, epoch: bytes, seq: int, lines: dict[int, tuple[Line, bytes]], is_head: bool) -> Node:
    line, header = lines[seq]
    parent = line.parent
    if parent.startswith("#"):
        of = lines.get(int(parent[1:]))
        parent = of[0].id if of else ""
    return Node(
        Address(thread_id, unnamed(line.ns), unnamed(line.id)),
        unnamed(parent) or None,
        stamp_of(epoch, seq, line.token),
        restored(header),
        refs_of(line.refs),
        unnamed(line.run) if line.run else None,
        is_head,
        line.state == "ghost",
    )
