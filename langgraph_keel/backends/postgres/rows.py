"""Convert names, requests and replies for PostgreSQL; names and DDL of the tables.

PostgreSQL text cannot contain NUL, so a NUL is escaped, in a form that keeps the order. An index row has at most 2704
bytes, and three keys must fit: the key of a long name is its start and a hash, together longer than any other key. The
row of such a key also stores the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pkgutil import get_data
from typing import Any, NamedTuple, TypeAlias, cast

from langgraph_keel.backends.migrations import Migration
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import read_row, resolve, restore_frame, shrink
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import NEW, Batch, Entry, Found, Graph, Kind, NewEntry, Node, Ref, Row
from langgraph_keel.errors import CorruptStore, InvalidInput

LONGEST = 255
"""Maximum bytes of a name that is its own key."""

Names: TypeAlias = Mapping[str, str]  # key to name, for keys that differ from their names

_KINDS = {str(int(kind)): kind for kind in Kind}

BRANCH, GHOST = 1, 2

TABLES = ("threads", "entries", "items", "floors", "batches", "format", "cells")
INDEXES = ("entries_by_ns", "entries_by_seq", "entries_by_run", "cells_by_origin", "cells_by_rank")
PARAMETER = re.compile(r"%\((\w+)\)s")
MIGRATIONS: Migrations = {}
"""SQL with table names in braces, or a function that returns a plan.

SQL runs in one transaction with the new format. A plan yields `Request`s that change only rows not yet changed, so that
several processes may run it concurrently.
"""
PARTED = ("entries", "items", "floors", "batches", "cells")
"""Tables that may be partitioned."""
# Read on import: an event loop must not wait for a disk.
_SQL = cast(bytes, get_data(__package__, "schema.sql")).decode()


class Key(str):
    """A key whose name is no longer stored; it is its own key."""

    __slots__ = ()


def escape(text: str) -> str:
    """Return `text` without NUL; `unescape` reverses it."""
    if "\0" not in text and "\1" not in text:
        return text
    return text.replace("\1", "\0011").replace("\0", "\0010")


def unescape(text: str) -> str:
    """Reverse `escape`."""
    return text.replace("\0010", "\0").replace("\0011", "\1") if "\1" in text else text


def key(name: str) -> str:
    """Return the key under which a name is indexed."""
    if isinstance(name, Key):
        return str(name)
    escaped = escape(name)
    if len(escaped) * 4 <= LONGEST or len(data := escaped.encode()) <= LONGEST:
        return escaped
    return data[:LONGEST].decode(errors="ignore") + "~" + sha256(data).hexdigest()


def is_hashed(stored: str) -> bool:
    """Return whether a key differs from the escaped name."""
    return len(stored) * 4 > LONGEST and len(stored.encode()) > LONGEST


def long_names(names: Iterable[str | None]) -> list[str] | None:
    """Return the escaped names that differ from their keys; `None` if none do."""
    return [escape(name) for name in names if name and is_hashed(key(name))] or None


def names_by_key(stored: Iterable[str] | None) -> Names:
    """Return the names stored by `long_names`, by key."""
    return {key(name): name for name in [unescape(each) for each in stored if isinstance(each, str)]} if stored else {}


def name_of(stored: str, names: Names) -> str:
    """Return the name of a key."""
    if len(stored) * 4 <= LONGEST and "\1" not in stored:
        return stored
    if not is_hashed(stored):
        return unescape(stored)
    return names.get(stored) or Key(stored)


class Statement(NamedTuple):
    """One statement, and its bound parameters in order."""

    sql: bytes
    parameters: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Request:
    """Statements of one transaction, sent together; the reply is the rows of each."""

    statements: tuple[Statement, ...]
    writes: bool = False
    joins: bool = False  # whether it is short and may share a larger transaction


class Line(NamedTuple):
    """A row of a reply: an entry (`what` 0), item row (1), batch (2) or thread (3)."""

    what: int
    thread_id: str
    ns: str
    id: str
    seq: int
    n: int
    body: bytes
    parent: str | None
    run: str | None
    epoch: int
    channels: list[str]
    kinds: str
    owners: list[int]
    los: list[int]
    his: list[int]
    kept: list[str] | None
    names: list[str] | None
    name: str | None
    token: int


class Mark(NamedTuple):
    """The parts of a stamp: epoch, number, and token of the request that stored the entry.

    The token is needed because a server reuses numbers after a failover to a lagging replica.
    """

    epoch: int
    seq: int
    token: int


def stamp_of(epoch: int, seq: int, token: int) -> int:
    """Return the stamp of a mark; it is unique to an entry."""
    if (epoch | seq | token) < 0:
        raise CorruptStore(f"the number of a checkpoint is damaged: epoch {epoch}, {seq}, token {token}")
    return epoch << 128 | seq << 64 | token


def mark_of(stamp: object) -> Mark:
    """Return the parts of a stamp."""
    assert isinstance(stamp, int), f"{stamp!r} is not a stamp of this store"
    word = (1 << 64) - 1
    return Mark(stamp >> 128, stamp >> 64 & word, stamp & word)


# -- writing -----------------------------------------------------------------------------------------------------------


def place_of(address: Address) -> dict[str, Any]:
    """Return the parameters for a namespace and, if given, a checkpoint."""
    checkpoint_id = address.checkpoint_id
    return {
        "thread": key(address.thread_id),
        "ns": key(address.checkpoint_ns),
        "id": checkpoint_id if checkpoint_id is None else key(checkpoint_id),
    }


def entry_parameters(new: NewEntry) -> dict[str, Any]:
    """Return the parameters for storing an entry, except random ones."""
    address = new.address
    base = None if new.base is None else mark_of(new.base)
    names = [address.checkpoint_ns, address.checkpoint_id, new.parent, new.run_id, *new.refs]
    return {
        **place_of(address),
        "name": next(iter(long_names([address.thread_id]) or ()), None),
        "names": long_names(names),
        "base_epoch": base and base.epoch,
        "base_seq": base and base.seq,
        "base_token": base and base.token,
        "checked": new.checked,
        "forks": new.on_conflict != "raise",
        "beside": new.on_conflict == "beside",
        "parent": new.parent and key(new.parent),
        "run": new.run_id if new.run_id is None else key(new.run_id),
        "put_at": escape(new.updated_at),
        "marks": None if new.address.checkpoint_ns else " ".join(new.terms),
        "header": shrink(new.header),
        "channels": text_array(map(key, new.refs)),
        "kinds": "".join([f"{ref.kind:d}" for ref in new.refs.values()]),
        "growing": text_array(map(key, new.appends)),
        **_run_parameters(new.refs),
        **_row_parameters("row", new.appends, NEW),
        **(_row_parameters("pack", new.repacks, 0) if new.repacks else {}),
    }


def number_array(numbers: Iterable[int]) -> str:
    """Return a PostgreSQL array of numbers; faster than psycopg's conversion."""
    return f"{{{','.join(map(str, numbers))}}}"


def text_array(texts: Iterable[str | None]) -> str:
    """Return a PostgreSQL array of texts, with NULL for `None`."""
    elements = []
    for text in texts:
        if text is None:
            elements.append("NULL")
        else:
            backslashed = text.replace("\\", r"\\").replace('"', r"\"")
            elements.append(f'"{backslashed}"')
    return f"{{{','.join(elements)}}}"


def bytes_array(values: Iterable[bytes]) -> str:
    r"""Return a PostgreSQL array of bytes.

    psycopg's own array takes up to twice as long. If `standard_conforming_strings` is off, it doubles the backslash of
    `\x`, which stores other bytes.
    """
    elements = [rf'"\\x{value.hex()}"' for value in values]
    return f"{{{','.join(elements)}}}"


def _run_parameters(refs: Mapping[str, Ref]) -> dict[str, str]:
    """Return the runs of an entry; new items count from their channel's first number."""
    runs = [
        (owner, lo - NEW, hi - NEW, key(name)) if lo >= NEW else (owner, lo, hi, None)
        for owner, (name, ref) in enumerate(refs.items(), 1)
        for lo, hi in ref.runs
    ]
    owners, los, his, news = zip(*runs, strict=True) if runs else ((), (), (), ())
    return {
        "owners": number_array(owners),
        "los": number_array(los),
        "his": number_array(his),
        "news": text_array(news),
    }


def _row_parameters(kind: str, logs: Mapping[str, Sequence[Row]], origin: int) -> dict[str, str]:
    rows = [(key(name), row) for name, rows in logs.items() for row in rows]
    return {
        f"{kind}_channels": text_array(channel for channel, _ in rows),
        f"{kind}_los": number_array(row.lo - origin for _, row in rows),
        f"{kind}_counts": number_array(row.count for _, row in rows),
        f"{kind}_bodies": bytes_array(shrink(row.body) for _, row in rows),
    }


def first_numbers(new: NewEntry, los: Sequence[int]) -> dict[str, int]:
    """Return the first number of each channel's new items, from the stored runs."""
    given = [(name, lo) for name, ref in new.refs.items() for lo, _ in ref.runs]
    return {name: stored - (lo - NEW) for (name, lo), stored in zip(given, los, strict=True) if lo >= NEW}


# -- reading -----------------------------------------------------------------------------------------------------------


def entry_of(line: Line, refs: Mapping[str, Ref] | None = None) -> Entry:
    """Return the entry of a line."""
    names = names_by_key(line.names)
    address = Address(unescape(line.name or line.thread_id), name_of(line.ns, names), name_of(line.id, names))
    run = line.run if line.run is None else name_of(line.run, names)
    stamp, header = stamp_of(line.epoch, line.seq, line.token), restore_frame(line.body)
    return Entry(address, parent_of(line), stamp, header, refs_of(line) if refs is None else refs, run)


def parent_of(line: Line) -> str | None:
    """Return the id of an entry's parent."""
    return line.parent and name_of(line.parent, names_by_key(line.names))


def refs_of(line: Line) -> dict[str, Ref]:
    """Return the refs of an entry."""
    names = names_by_key(line.names)
    runs: dict[int, list[tuple[int, int]]] = {}
    try:
        for owner, lo, hi in zip(line.owners, line.los, line.his, strict=True):
            runs.setdefault(owner, []).append((lo, hi))
        return {
            name_of(channel, names): Ref(_KINDS[kind], resolve(runs.get(owner, ()), 0))
            for owner, (channel, kind) in enumerate(zip(line.channels, line.kinds, strict=True), 1)
            if line.kept is None or channel in line.kept
        }
    except (ValueError, LookupError, TypeError) as error:  # an array may contain NULL, or other arrays
        where = f"thread {unescape(line.name or line.thread_id)!r}, checkpoint {name_of(line.id, names)}"
        raise CorruptStore(f"{where}: the runs of its channels are inconsistent: {error}") from error


@dataclass(slots=True)
class Content:
    """The entries, rows and batches of a reply, by their keys."""

    entries: list[Line] = field(default_factory=list)
    rows: dict[tuple[str, str], dict[str, list[Row]]] = field(default_factory=dict)
    batches: dict[tuple[str, str, str], list[Line]] = field(default_factory=dict)

    def entry_with_rows(self, line: Line) -> Found:
        """Return an entry with its rows and batches."""
        return self.with_rows(entry_of(line), line)

    def with_rows(self, entry: Entry, line: Line) -> Found:
        """Return an entry with its rows and batches; entries of a namespace share rows."""
        logs = self.rows.get((line.thread_id, line.ns), {})
        rows = {name: logs.get(key(name), []) for name, ref in entry.refs.items() if ref.runs}
        return Found(entry, rows, self.batches_of(line))

    def batches_of(self, line: Line) -> list[Batch]:
        """Return the batches of an entry in order of arrival; the token breaks ties."""
        lines = sorted(self.batches.get((line.thread_id, line.ns, line.id), ()), key=lambda each: (each.n, each.seq))
        return [Batch(unescape(b.run or ""), unescape(b.parent or ""), restore_frame(b.body)) for b in lines]


def content_of(reply: Iterable[Sequence[Any]]) -> Content:
    """Return the content of a reply, with rows in the order of their first items."""
    content = Content()
    for line in map(Line._make, reply):
        if line.what == 0:
            content.entries.append(line)
        elif line.what == 1:
            log = content.rows.setdefault((line.thread_id, line.ns), {}).setdefault(line.id, [])
            log.append(read_row(line.seq, line.n, restore_frame(line.body)))
        else:
            content.batches.setdefault((line.thread_id, line.ns, line.id), []).append(line)
    for (thread, _), logs in content.rows.items():
        for log in logs.values():
            log.sort(key=lambda row: row.lo)
            if any(row.lo + row.count > later.lo for row, later in pairwise(log)):
                raise CorruptStore(f"thread {unescape(thread)!r}: two rows of a channel contain the same items")
    return content


def graph_of(reply: Sequence[tuple[Line, str | None]]) -> Graph:
    """Return the graph in the lines of a reply, each with its time of writing."""
    lines, times = [line for line, _ in reply], {line.seq: at for line, at in reply if line.what == 0}
    entries = sorted((line for line in lines if line.what == 0), key=lambda line: line.seq)
    heads = _heads(entries)
    names = names_by_key(name for line in entries for name in line.names or ())
    ends = {(name_of(line.ns, names), name_of(line.id, names)): line.n for line in lines if line.what == 1}
    epoch = next((line.epoch for line in lines if line.what == 3), None)
    nodes = []
    for line in entries:
        e, put_at = entry_of(line, LazyRefs(line)), unescape(times[line.seq] or "")
        seen = (line.seq in heads, line.n == GHOST, put_at, line.n == BRANCH)
        nodes.append(Node(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id, *seen))
    return Graph(nodes, ends, epoch)


def _heads(entries: Sequence[Line]) -> set[int]:
    """Return the number of each namespace's head, its newest entry (on the trunk)."""
    heads: dict[str, Line] = {}
    for line in entries:
        best = heads.get(line.ns)
        if line.n != GHOST and (best is None or line.n <= best.n):
            heads[line.ns] = line
    return {line.seq for line in heads.values()}


class LazyRefs(Mapping[str, Ref]):
    """The refs of an entry, parsed on first use: a prune needs only some."""

    __slots__ = ("_line", "_made")

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line
        self._made: Mapping[str, Ref] = {}

    def _make_refs(self) -> Mapping[str, Ref]:
        if (line := self._line) is not None:
            # The arrays are sent as text.
            owners, los, his = (
                [int(number) for number in str(array)[1:-1].split(",") if number]
                for array in (line.owners, line.los, line.his)
            )
            self._made, self._line = refs_of(line._replace(owners=owners, los=los, his=his)), None
        return self._made

    def __getitem__(self, channel: str) -> Ref:
        return self._make_refs()[channel]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make_refs())

    def __len__(self) -> int:
        return len(self._make_refs())


Migrations: TypeAlias = Mapping[int, Migration[str | Callable[["Tables"], StorePlan[Any, Any, None]]]]


def quote(name: str) -> str:
    """Quote a name for SQL."""
    if not name or len(name.encode()) > 63 or "\0" in name:
        raise InvalidInput(f"{name!r} cannot be a name in PostgreSQL: use 1 to 63 bytes without NUL")
    return '"' + name.replace('"', '""') + '"'


class PreparedStatement(NamedTuple):
    """A statement with `$1`, `$2`, ..., and the names of its parameters in order."""

    text: bytes
    names: tuple[str, ...]


class Tables:
    """Names and DDL of the tables in a schema (`None`: first of the search path).

    With `partitions`, `ddl` divides the growing tables into that many hash partitions.
    """

    def __init__(self, schema: str | None = None, partitions: int = 0, migrations: Migrations = MIGRATIONS) -> None:
        self.schema = schema
        self.partitions = partitions
        self.migrations = migrations
        self._prefix = f"{quote(schema)}." if schema is not None else ""
        self._statements: dict[str, PreparedStatement] = {}

    def prepare(self, text: str) -> PreparedStatement:
        """Return a statement with table names filled in and numbered parameters."""
        if text not in self._statements:
            # Otherwise psycopg would parse the text at every use: it caches only short statements.
            filled = self.fill_names(text)
            names = tuple(dict.fromkeys(PARAMETER.findall(filled)))
            numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", filled)
            self._statements[text] = PreparedStatement(numbered.encode(), names)
        return self._statements[text]

    def fill_names(self, text: str) -> str:
        """Return SQL with table names filled in."""
        for name in TABLES:
            text = text.replace(f"{{{name}}}", f"{self._prefix}keel_{name}")
        for name in INDEXES:
            text = text.replace(f"{{{name}}}", f"keel_{name}")
        return text

    @property
    def version_query(self) -> Request:
        """The query for the first two arguments of `ddl_for`."""
        text = b"SELECT version(), EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)"
        return Request((Statement(text, [self.schema or ""]),))

    def ddl_for(self, version: str, has_schema: bool) -> str:
        """Return the statements that create the tables of format 1 on this server."""
        lines = self._format_1().splitlines()
        if has_schema:
            # The server checks the right to create schemas first, which the owner of the schema may lack.
            lines = [line for line in lines if not line.startswith("CREATE SCHEMA")]
        if "CockroachDB" in version or "-YB-" in version:
            lines = [line for line in lines if "SET STORAGE" not in line]
        text = "\n".join(lines)
        # CockroachDB has no column collations; it sorts by bytes anyway.
        return text.replace(' COLLATE "C"', "") if "CockroachDB" in version else text

    @cached_property
    def ddl(self) -> str:
        """All statements that create the tables."""
        due = (self.script_of(number, self.migrations[number]) for number in sorted(self.migrations))
        return "\n".join([self._format_1(), *due])

    @property
    def add_ranks(self) -> str:
        """The statements that add columns and an index to tables of an earlier Keel."""
        _, name, rest = _SQL.partition("{cells_by_rank}")
        columns = "ADD COLUMN IF NOT EXISTS rank bigint, ADD COLUMN IF NOT EXISTS marks text"
        index = f"CREATE INDEX IF NOT EXISTS {name}{rest.partition(';')[0]};"
        return self.fill_names(f"ALTER TABLE {{cells}} {columns};\n{index}")

    def script_of(self, number: int, migration: Migration[Any]) -> str:
        """Return a migration as an SQL script, or as a comment if it is a plan."""
        if not isinstance(migration.work, str):
            return f"-- Format {number}: {migration.what}. It cannot be done in SQL: run `keel schema --upgrade`."
        return (
            f"-- Format {number}: {migration.what}. Division by zero: it has already been done.\n"
            f"BEGIN;\n{self.statements_of(number, migration.work)}\nCOMMIT;"
        )

    def statements_of(self, number: int, work: str) -> str:
        """Return the statements of a migration, after one that sets the format.

        The first one locks the row until the commit, so that other processes wait. It divides by zero if another
        process has already changed the format or removed the row (by two migrations).
        """
        moved = f"UPDATE {{format}} SET format = {number} WHERE format = {number - 1} RETURNING 1"
        mark = f"WITH moved AS ({moved}) SELECT 1 / count(*) FROM moved;"
        return self.fill_names(f"{mark}\n{work.strip()}")

    def grants(self, role: str, tenant: str = "") -> str:
        """Return the grants for a role to read and write the tables, or a tenant's rows.

        Grants for a tenant enable row-level security: a role without a policy that is not the owner sees no rows.
        """
        name, mark, prefix = quote(role), self.fill_names("{format}"), f"chr(31) || '{tenant}' || chr(31)"
        tables = [self.fill_names(f"{{{table}}}") for table in TABLES if table != "format"]
        lines = [f"GRANT USAGE ON SCHEMA {self._prefix[:-1]} TO {name};"] if self.schema is not None else []
        lines += [
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(tables)} TO {name};",
            f"REVOKE ALL ON {mark} FROM {name};",  # the format concerns all tenants
            f"GRANT SELECT ON {mark} TO {name};",
        ]
        policy = quote(f"keel_{sha256(f'{name} {tenant}'.encode()).hexdigest()[:16]}")
        for table in tables if tenant else ():
            shared = f" OR thread_id = '' AND starts_with(key, {prefix})" if table.endswith("keel_cells") else ""
            lines += [
                f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;",
                f"DROP POLICY IF EXISTS {policy} ON {table};",
                f"CREATE POLICY {policy} ON {table} TO {name} USING (starts_with(thread_id, {prefix}){shared});",
            ]
        return "\n".join(lines)

    def _format_1(self) -> str:
        divided = " PARTITION BY HASH (thread_id)" if self.partitions else ""
        partitions = [
            f"CREATE TABLE {self._prefix}keel_{table}_{n} PARTITION OF {{{table}}} "
            f"FOR VALUES WITH (MODULUS {self.partitions}, REMAINDER {n});"
            for table in PARTED
            for n in range(self.partitions)
        ]
        schema = [f"CREATE SCHEMA IF NOT EXISTS {self._prefix[:-1]};"] if self.schema is not None else []
        return self.fill_names("\n".join([*schema, _SQL.replace("{partitioned}", divided), *partitions]))
