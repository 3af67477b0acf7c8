"""Convert names and keys to their form in Redis, and script replies to records.

Ids are percent-encoded. A key is `<prefix>:{<bucket>}:thread:<id>`. The bucket, two hexadecimal digits of a checksum of
the id, is the hash tag: on a Cluster all keys of a bucket are on one node, so the script that changes a thread can also
change the bucket's index of threads. A stamp is `<epoch>.<sequence number>.<token>` (`Mark`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import unquote
from zlib import crc32

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import read_row, restore_frame
from langgraph_keel.engine.records import Batch, Entry, Found, Graph, Kind, Node, Ref, Row, Run, Stamp
from langgraph_keel.errors import CorruptStore, InvalidInput

BUCKETS = [f"{number:02x}" for number in range(256)]

# Separators in keys and fields (':', and ' ' in an entry's line), the braces of a hash tag, '#' (a parent given by its
# sequence number), control characters, and '%' itself. The rest of UTF-8 is unchanged.
_NEVER = re.compile(r"[\x00-\x20\x7f%:{}#]")
_GLOB = re.compile(r"[*?\[\]\\^-]")
_NEVER_IN_TEXT = re.compile(r"[\x00-\x20\x7f%]")
_ESCAPE = re.compile(rb"\x01([\x01\x02])")

P = ParamSpec("P")
T = TypeVar("T")


def escape_glob(text: str) -> str:
    """Return a pattern that matches only this text."""
    return _GLOB.sub(r"\\\g<0>", text)


def _percent(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def name(text: str) -> str:
    """Encode an id for keys and fields: reversible, and without separators."""
    return _NEVER.sub(_percent, text)


def word(text: str) -> str:
    """Encode a text for a line, whose words are separated by spaces."""
    return _NEVER_IN_TEXT.sub(_percent, text)


def name_or_mark(text: str) -> str:
    """Return `name(text)`, or `%` for the empty id, where an empty text means `None`."""
    return name(text) or "%"


def parse_name(text: str) -> str:
    """Reverse `name`, `name_or_mark` or `word`."""
    if "%" not in text:
        return text
    return unquote(text, errors="strict") if text != "%" else ""


def member_of(*parts: str) -> bytes:
    """Return (time, id, epoch) as a member of an index; it sorts as the parts do."""
    return b"\0".join(text.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") for text in parts)


def parse_member(member: bytes) -> list[str]:
    """Return the parts of a member."""
    return [_ESCAPE.sub(_unescape, part).decode() for part in member.split(b"\0")]


def _unescape(found: re.Match[bytes]) -> bytes:
    return b"\0" if found[1] == b"\1" else b"\1"


def copied_member(life: bytes, thread_id: str) -> bytes:
    """Return the member for a copy of a thread; empty if its `life` has none."""
    member = life.split(b" ", 3)[3]
    return member_of(parse_member(member)[0], thread_id) if member else b""


def runs_text(runs: Sequence[Run], above: int | None = None) -> str:
    """Return runs as `lo-hi,lo-hi`; those from `above` on (new items) as `+lo-hi`."""
    return ",".join(
        f"+{lo - above}-{hi - above}" if above is not None and lo >= above else f"{lo}-{hi}" for lo, hi in runs
    )


def refs_text(refs: Mapping[str, Ref], above: int | None = None) -> str:
    """Return refs for a line: `channel:kind:runs`, without runs for header values."""
    return " ".join(
        f"{name_or_mark(channel)}:{int(ref.kind)}" + (f":{runs_text(ref.runs, above)}" if ref.runs else "")
        for channel, ref in refs.items()
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one store, or of one of its tenants."""

    prefix: str
    tenant: str = ""

    def __post_init__(self) -> None:
        if not self.prefix or _NEVER.search(self.prefix.replace(":", "")):
            raise InvalidInput(f"prefix must be text without spaces, %, {{, }} and #, not {self.prefix!r}")

    @property
    def start(self) -> str:
        """The start of all keys; no prefix contains `#`."""
        return f"{self.tenant}#{self.prefix}" if self.tenant else self.prefix

    @property
    def format(self) -> str:
        """The key of the format number."""
        return f"{self.start}:keel"

    @property
    def channel(self) -> str:
        """The channel (not a key) that notifies workers of a reviewer's decision."""
        return f"{self.start}:approvals"

    def index(self, bucket: str) -> str:
        """Return the key of a bucket's index of threads."""
        return f"{self.start}:{{{bucket}}}:threads"

    def expiring(self, bucket: str) -> str:
        """Return the key of a bucket's index of expiring threads."""
        return f"{self.start}:{{{bucket}}}:expiring"

    def marks(self, bucket: str) -> str:
        """Return the key of the search terms of a bucket's threads."""
        return f"{self.start}:{{{bucket}}}:marks"

    def thread(self, thread_id: str) -> str:
        """Return the key of a thread."""
        return f"{self.start}:{{{bucket_of(thread_id)}}}:thread:{name(thread_id)}"

    def cells(self, thread_id: str) -> tuple[str, str]:
        """Return the keys of a thread's cells and their names (empty id: shared cells)."""
        bucket, tail = bucket_of(thread_id), name(thread_id)
        return f"{self.start}:{{{bucket}}}:cells:{tail}", f"{self.start}:{{{bucket}}}:names:{tail}"

    def of(self, thread_id: str) -> tuple[str, ...]:
        """Return all keys that a change of a thread touches."""
        bucket = bucket_of(thread_id)
        indexes = self.index(bucket), self.expiring(bucket)
        return self.thread(thread_id), *indexes, *self.cells(thread_id), self.marks(bucket)

    @property
    def of_threads(self) -> str:
        """A pattern for the keys of threads and cells; also matches others (`thread_in`)."""
        return f"{escape_glob(self.start)}:{{??}}:*"

    def thread_in(self, key: str) -> str | None:
        """Return the thread of a thread's or cells' key; `None` for any other key."""
        kinds = "(?:thread|cells|names)"
        found = re.fullmatch(rf"{re.escape(self.start)}:\{{([0-9a-f]{{2}})\}}:{kinds}:(.+)", key, re.DOTALL)
        thread_id = unquote(found[2], errors="replace") if found else ""
        return thread_id if found and bucket_of(thread_id) == found[1] else None

    def bucket_in(self, key: str) -> str | None:
        """Return the bucket of a Keel key of this prefix; `None` for any other key."""
        kinds = "(?:thread|cells|names):.*|threads|expiring|marks"
        found = re.fullmatch(rf"{re.escape(self.start)}:\{{([0-9a-f]{{2}})\}}:(?:{kinds})", key, re.DOTALL)
        return found[1] if found else None

    def kind_in(self, key: str) -> str | None:
        """Return the Redis type that a key must have; `None` for keys of other stores."""
        name = key.removeprefix(self.start)[6:]
        if name in ("threads", "expiring", "marks"):
            return "hash" if name == "marks" else "zset"
        is_ours = self.bucket_in(key) and (self.thread_in(key) or key in self.cells(""))
        return ("zset" if name.startswith("names:") else "hash") if is_ours else None

    @property
    def of_tenants(self) -> str:
        """A pattern for the keys of all tenants; also matches others (`tenant_in`)."""
        return f"*#{self.of_threads}"

    def tenant_in(self, key: str) -> str | None:
        """Return the tenant of a tenant's key; `None` for any other key."""
        tenant, _, rest = key.partition("#")
        found = re.match(rf"{re.escape(self.start)}:\{{[0-9a-f]{{2}}\}}:(?:thread|cells|names):", rest)
        return tenant if tenant and ":" not in tenant and found else None

    def owner_in(self, key: str) -> tuple[Keys, str] | None:
        """Return the `Keys` and thread of a key (empty: shared cells), else `None`."""
        kinds = "(?:thread|cells|names)"
        form = rf"(?:([^#:]+)#)?{re.escape(self.start)}:\{{([0-9a-f]{{2}})\}}:{kinds}:(.+)"
        with suppress(UnicodeDecodeError):
            if found := re.fullmatch(form, key, re.DOTALL):
                thread_id = parse_name(found[3])
                owner = Keys(self.prefix, found[1]) if found[1] else self
                return (owner, thread_id) if bucket_of(thread_id) == found[2] else None
        return None

    def is_ours(self, key: str) -> bool:
        """Return whether Keel may have written this key, also under a longer prefix."""
        kinds = "(thread|cells|names):.*|threads|expiring|marks"
        ours = rf"{re.escape(self.start)}:(.*:)?(\{{[0-9a-f]{{2}}\}}:({kinds})|keel)"
        return bool(re.fullmatch(ours, key, re.DOTALL))


def bucket_of(thread_id: str) -> str:
    """Return the bucket of a thread."""
    return BUCKETS[crc32(thread_id.encode()) & 0xFF]


Rows = dict[tuple[str, str], list[Row]]


def as_corrupt_store(parse: Callable[P, T]) -> Callable[P, T]:
    """Decorate a parser to raise `CorruptStore` for invalid input."""

    @wraps(parse)
    def parsing(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return parse(*args, **kwargs)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise CorruptStore(f"the server's reply cannot be parsed: {error!r}") from error

    return parsing


class Line(NamedTuple):
    """The encoded words of an entry's line; the script has verified its checksum."""

    sum: str
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
        """Distinguishes the entry from any other with the same number."""
        return self.made.partition(",")[0]


class Mark(NamedTuple):
    """The parts of a stamp."""

    epoch: str = ""  # the life of the thread; never reused
    seq: str = ""  # in that life; a server that lost the last write (failover, power cut) reuses it
    token: str = ""  # distinguishes these two entries, so that no entry is based on the lost one

    @property
    def place(self) -> str:
        """The name of the entry within its life, in scripts."""
        return f"{self.seq}.{self.token}" if self.seq else ""


def stamp_of(epoch: bytes, seq: int, token: str) -> str:
    """Return the stamp of an entry."""
    return f"{epoch.decode()}.{seq}.{token}"


def mark_of(stamp: Stamp | None) -> Mark:
    """Return the parts of a stamp; all are empty for `None`."""
    return Mark(*str(stamp).split(".")) if stamp else Mark()


def line_of(value: bytes) -> tuple[Line, bytes]:
    """Return the line and the header of an entry."""
    line, found, header = value.partition(b"\n")
    if not found:
        raise ValueError("an entry has no line")
    return Line(*line.decode().split(" ", 8)), header


def refs_of(text: str) -> dict[str, Ref]:
    """Return the refs of a line."""
    refs = {}
    for part in filter(None, text.split(" ")):
        channel, kind, *runs = part.split(":")
        refs[parse_name(channel)] = Ref(Kind(int(kind)), tuple(map(_run, runs[0].split(","))) if runs else ())
    return refs


def _run(text: str) -> Run:
    lo, hi = text.split("-")
    return int(lo), int(hi)


@as_corrupt_store
def entry_of(thread_id: str, epoch: bytes, seq: int, value: bytes, parent: bytes) -> Entry:
    """Return an entry from its field, with the parent that the script returned."""
    line, header = line_of(value)
    return Entry(
        Address(thread_id, parse_name(line.ns), parse_name(line.id)),
        parse_name(parent.decode()) or None,
        stamp_of(epoch, seq, line.token),
        restore_frame(header),
        refs_of(line.refs),
        parse_name(line.run) if line.run else None,
    )


@as_corrupt_store
def rows_of(logs: Iterable[Sequence[Any]]) -> Rows:
    """Return rows by (namespace, channel), in order."""
    rows: Rows = {}
    for ns, channel, *flat in logs:
        pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
        rows[parse_name(ns.decode()), parse_name(channel.decode())] = [_row(lo, value) for lo, value in pairs]
    return rows


def _row(lo: int, value: bytes) -> Row:
    count, _, body = value.partition(b" ")
    return read_row(lo, int(count) if count.isdigit() else count, restore_frame(body))


@as_corrupt_store
def batches_of(values: Iterable[bytes]) -> list[Batch]:
    """Return batches, in order."""
    parts = (value.split(b" ", 2) for value in values)
    return [
        Batch(parse_name(task.decode()), parse_name(path.decode()), restore_frame(body)) for task, path, body in parts
    ]


def entry_with_rows(entry: Entry, rows: Rows, batches: Iterable[bytes]) -> Found:
    """Return an entry with its rows, selected from all rows that were read."""
    ns = entry.address.checkpoint_ns
    needed = {channel: rows.get((ns, channel), []) for channel, ref in entry.refs.items() if ref.runs}
    return Found(entry, {channel: got for channel, got in needed.items() if got}, batches_of(batches))


@as_corrupt_store
def graph_of(thread_id: str, epoch: bytes, entries: Sequence[Any], ends: Sequence[Any], heads: Sequence[int]) -> Graph:
    """Return a thread at one moment."""
    lines = {seq: line_of(value) for seq, value in sorted(entries)}
    nodes = [_node(thread_id, epoch, seq, lines, seq in heads) for seq in lines]
    return Graph(
        nodes, {(parse_name(ns.decode()), parse_name(ch.decode())): end for ns, ch, end in ends}, epoch.decode()
    )


def _node(thread_id: str, epoch: bytes, seq: int, lines: dict[int, tuple[Line, bytes]], is_head: bool) -> Node:
    line, header = lines[seq]
    parent = line.parent
    if parent.startswith("#"):
        of = lines.get(int(parent[1:]))
        parent = of[0].id if of else ""
    return Node(
        Address(thread_id, parse_name(line.ns), parse_name(line.id)),
        parse_name(parent) or None,
        stamp_of(epoch, seq, line.token),
        restore_frame(header),
        refs_of(line.refs),
        parse_name(line.run) if line.run else None,
        is_head,
        line.state == "ghost",
        parse_name(line.at),
        line.state == "branch",
    )
