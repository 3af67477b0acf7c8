"""The Redis layout: the scripts that each operation runs.

A thread is one hash (`scripts/fields.lua`); its cells are other keys of its bucket (`scripts/cells.lua`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from langgraph_keel.backends.redis.driver import Argument, Call, Request
from langgraph_keel.backends.redis.entries import (
    BUCKETS,
    Keys,
    as_corrupt_store,
    batches_of,
    bucket_of,
    copied_member,
    entry_of,
    entry_with_rows,
    graph_of,
    mark_of,
    member_of,
    name,
    name_or_mark,
    parse_member,
    parse_name,
    refs_text,
    rows_of,
    runs_text,
    stamp_of,
    word,
)
from langgraph_keel.backends.resent import Resent
from langgraph_keel.engine.cells import BLOCK, Cell, Search, Shelf, Swap, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import RAW, restore_frame, shrink
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import (
    NEW,
    BaseGone,
    Batch,
    Copied,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Listed,
    Moved,
    NewEntry,
    Occupied,
    Outcome,
    Page,
    Query,
    Replacement,
    Row,
    Run,
    Stamp,
    Stored,
    ThreadInfo,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore

_log = logging.getLogger(__name__)

_NO_CELL = b"", b""
SHARED = ""
"""Thread id of the cells that all threads share; no thread has it."""
# 16 threads of 1000 messages each occupy the server for 30 ms.
SEARCHED = 16
"""Maximum threads in a call that reads all their entries."""
ASKED = 256
"""Maximum threads in a call that reads one or two fields of each."""
PAGE = 4096
"""Maximum threads per check whether they have checkpoints."""
ALL = -1
SHARE = 4
"""Minimum threads that each of the 256 buckets is asked for, per page."""

Replies: TypeAlias = list[Any]


def cell_name(shelf: Shelf, key: str) -> str:
    """Return the name of a cell within its thread; no part contains the separator."""
    return f"{shelf.kind}:{key}"


@as_corrupt_store
def key_of(named: bytes) -> str:
    """Return the key in a cell's name."""
    return named.partition(b":")[2].decode()


def page_of(shelf: Shelf, prefix: str, after: str | None) -> tuple[str, str]:
    """Return the first and last name of a page, for ZRANGEBYLEX; DEL sorts last."""
    first = cell_name(shelf, prefix)
    begin = f"[{first}" if after is None or after < prefix else f"({cell_name(shelf, after)}"
    return begin, f"({first}\x7f"


def value_of(cell: Cell) -> tuple[bytes, bytes]:
    """Return the value of a cell, and its body."""
    expiry = "" if cell.expires_at is None else cell.expires_at
    # The header is not compressed: a tool call's would shrink from 413 bytes to 316, but every hit of the tool cache
    # (100 µs) would take 15 to 30 µs longer.
    ranked = "" if cell.rank is None else " ".join(["", str(cell.rank), *cell.marks])
    value = f"{cell.token} {expiry} {name(cell.origin)}{ranked}\n".encode() + cell.header
    # Only raw frames are compressed: `shrink` would turn a compressed one into other bytes of the same content.
    return value, shrink(cell.body) if cell.body[:1] == RAW else cell.body


@as_corrupt_store
def cell_of(value: bytes, body: bytes | None = None) -> Cell:
    """Return a cell from its value and body."""
    line, _, header = value.partition(b"\n")
    token, expiry, origin, *ranked = line.decode().split(" ")
    cell = Cell(token, header, restore_frame(body or b""), parse_name(origin), int(expiry) if expiry else None)
    return replace(cell, rank=int(ranked[0]), marks=tuple(ranked[1:])) if ranked else cell


def selection(query: Query) -> tuple[str, ...]:
    """Return the script arguments that select the entries of a query."""
    has_ns = "" if query.checkpoint_ns is None else "1"
    return has_ns, name(query.checkpoint_ns or ""), name(query.checkpoint_id or ""), name(query.before or "")


def _read_members(
    keys: Keys, after: bytes = b"", limit: int = ALL, marks: Sequence[str] = (), oldest_first: bool = False
) -> StorePlan[Request, Replies, list[bytes]]:
    """Read index members after `after`, in order; may return more than `limit`."""
    # Names are spread evenly, so each bucket is asked for about its share. A bucket that may have more of the page is
    # asked again; for pages of 50 threads, one list in a hundred does.
    part = limit if limit == ALL else min(limit, SHARE + limit // 64)
    asked, found = dict.fromkeys(BUCKETS, after), list[bytes]()
    way = "up" if oldest_first else "down"

    def is_past(member: bytes, place: bytes) -> bool:
        return member > place if oldest_first else member < place

    while asked:
        calls = (
            Call("find_narrowed", (keys.index(bucket), keys.marks(bucket)), (last, part, way, *marks))
            if marks
            else Call("find_threads", (keys.index(bucket),), (last, part, way))
            for bucket, last in asked.items()
        )
        replies = yield Request(tuple(calls))
        more = {}
        for (bucket, last), (are_all, members) in zip(asked.items(), replies, strict=True):
            found += [member for member in members if not last or is_past(member, last)]
            if not are_all:
                more[bucket] = members[-1]
        found.sort(reverse=not oldest_first)
        asked = {bucket: last for bucket, last in more.items() if len(found) < limit or is_past(found[limit - 1], last)}
    return found


def _is_member(member: bytes) -> bool:
    try:
        return len(parse_member(member)) == 3
    except UnicodeDecodeError:
        return False


def _read_threads_of(keys: Keys) -> StorePlan[Request, Replies, list[bytes]]:
    members = yield from _read_members(keys)
    _check_members(members)
    return members


def _check_members(members: Iterable[bytes]) -> None:
    for member in members:
        if not _is_member(member):
            raise CorruptStore(f"the index of threads has an invalid member: {member!r:.300}")


def _groups(members: Iterable[bytes], size: int) -> Iterator[tuple[str, list[bytes]]]:
    """Group members for calls: a bucket, and at most `size` of its members."""
    buckets: dict[str, list[bytes]] = {}
    for member in members:
        buckets.setdefault(bucket_of(parse_member(member)[1]), []).append(member)
    for bucket, inside in buckets.items():
        for start in range(0, len(inside), size):
            yield bucket, inside[start : start + size]


def _calls(
    keys: Keys, members: Iterable[bytes], size: int, script: str, *args: Argument
) -> tuple[list[list[str]], tuple[Call, ...]]:
    """Return the threads of each call, and the calls, with the epochs of the index."""
    threads, calls = list[list[str]](), list[Call]()
    for bucket, group in _groups(members, size):
        _, names, epochs = zip(*map(parse_member, group), strict=True)
        threads.append([*names])
        calls.append(Call(script, (*map(keys.thread, names), keys.index(bucket)), (*args, *epochs)))
    return threads, tuple(calls)


def _place(entry: Entry) -> tuple[str, str, int]:
    mark = mark_of(entry.stamp)
    return str(entry.address.checkpoint_id), mark.epoch, int(mark.seq)


def _damaged_in(found: Mapping[bytes, Sequence[Any]]) -> list[str]:
    """Return the threads that the script could not read."""
    return [parse_member(member)[1] for member, told in found.items() if told == [None]]


def _show(member: bytes, found: Sequence[Any]) -> Listed:
    try:
        return _info(member, found)
    except CorruptStore as error:
        updated_at, thread_id, _ = parse_member(member)
        _log.warning("thread %r is listed without its latest checkpoint: %s", thread_id, error)
        return ThreadInfo(thread_id, found[0], updated_at, None, None), None


def _read_summaries(keys: Keys, members: Sequence[bytes]) -> StorePlan[Request, Replies, dict[bytes, Any]]:
    groups = [group for _, group in _groups(members, ASKED)]
    _, calls = _calls(keys, members, ASKED, "read_threads")
    replies = yield Request(calls)
    return {
        member: info
        for group, reply in zip(groups, replies, strict=True)
        for member, info in zip(group, reply, strict=True)
    }


@as_corrupt_store
def _info(member: bytes, found: Sequence[Any]) -> Listed:
    # The time from the index: that of a later write would break the order of the page.
    updated_at, thread_id, _ = parse_member(member)
    checkpoints, latest, *head = found
    info = ThreadInfo(thread_id, checkpoints, updated_at, parse_name(latest.decode()) or None, None)
    return info, entry_of(thread_id, *head) if latest else None


def find_damaged(keys: Keys) -> StorePlan[Request, Replies, Sequence[str]]:
    """Find listed threads whose key has other content; reads all threads."""
    members = [member for member in (yield from _read_members(keys)) if _is_member(member)]
    damaged: list[str] = []
    for start in range(0, len(members), ASKED):
        damaged += _damaged_in((yield from _read_summaries(keys, members[start : start + ASKED])))
    return damaged


class Mislisted(NamedTuple):
    """A thread whose index entry differs from its own data, and the repair."""

    thread_id: str
    said: str
    advice: str


def find_mislisted(keys: Keys) -> StorePlan[Request, Replies, Sequence[Mislisted]]:
    """Find wrong entries in the indexes of threads; reads all threads."""
    found: list[Mislisted] = []
    members = (member for member in (yield from _read_members(keys)) if _is_member(member))
    for bucket, group in _groups(members, ASKED):
        threads = [parse_member(member)[1] for member in group]
        index, marks = keys.index(bucket), keys.marks(bucket)
        (reply,) = yield Request((Call("find_mislisted", (index, marks, *map(keys.thread, threads)), tuple(group)),))
        for number, what, right in reply:
            member = group[number]
            at, _, epoch = parse_member(member)
            if what == b"place":
                said = f"the index lists its last write at {at}, which differs from the thread's own record"
                again = [f"ZADD {quote(index.encode())} 0 {quote(right)}"] if right else []
                advice = "with redis-cli: " + "; ".join([*again, f"ZREM {quote(index.encode())} {quote(member)}"])
            elif what == b"marks":
                said = "its search terms are stored for another place in the index"
                advice = f"with redis-cli: HDEL {quote(marks.encode())} {epoch}: searches then read the thread itself"
            else:
                said = f"the index lists its last write at {at}, but its newest checkpoint has {right.decode()}"
                advice = "write to the thread, which corrects the index"
            found.append(Mislisted(threads[number], said, advice))
    return found


def quote(text: bytes) -> str:
    """Return bytes quoted for redis-cli."""
    return (
        '"' + "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in text) + '"'
    )


def find_unlisted(keys: Keys) -> StorePlan[Request, Replies, Sequence[str]]:
    """Find threads with checkpoints that no index lists; scans all keys of the server."""
    names = yield Request((), pattern=keys.of_threads)
    # Read after the names: a thread created in between is in neither.
    listed = {parse_member(member)[1] for member in (yield from _read_members(keys)) if _is_member(member)}
    found = {keys.thread_in(name.decode(errors="replace")) for name in names}
    threads = sorted(name for name in found if name and name not in listed)
    strays: set[str] = set()
    for start in range(0, len(threads), PAGE):
        strays.update((yield from _find_strays(keys, threads[start : start + PAGE])))
    return [name for name in threads if name not in strays]


@as_corrupt_store
def _name_of(text: bytes) -> str:
    return parse_name(text.decode())


def _find_strays(keys: Keys, threads: Sequence[str]) -> StorePlan[Request, Replies, list[str]]:
    buckets: dict[str, list[str]] = {}
    for thread_id in threads:
        buckets.setdefault(bucket_of(thread_id), []).append(thread_id)
    calls = tuple(Call("find_strays", tuple(map(keys.thread, group))) for group in buckets.values())
    replies = yield Request(calls)
    return sorted(group[number] for group, reply in zip(buckets.values(), replies, strict=True) for number in reply)


def new_epoch() -> str:
    """Return a new epoch: the time, so that epochs sort by age, and 48 random bits."""
    return f"{time.time_ns():016x}{secrets.token_hex(6)}"


class RedisStore(Store[Request, Replies]):
    """All threads under one prefix, of one tenant or of none. Stateless.

    `ttl` is the default time to live after a write, in milliseconds; `None` leaves the expiry unchanged.
    """

    def __init__(
        self,
        prefix: str = "keel",
        ttl: int | None = None,
        refresh_on_read: bool = False,
        read_only: bool = False,
        tenant: str = "",
    ) -> None:
        self.keys = Keys(prefix, tenant)
        self._ttl = "" if ttl is None else str(ttl)
        self._refreshes = refresh_on_read and not read_only
        self._read_only = read_only
        self._settings = (ttl, refresh_on_read, read_only)

    def of_tenant(self, tenant: str) -> RedisStore:
        return RedisStore(self.keys.prefix, *self._settings, tenant=tenant)

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Request, Replies, Sequence[str]]:
        names = yield Request((), pattern=self.keys.of_tenants)
        found = {self.keys.tenant_in(name.decode(errors="replace")) for name in names} - {None}
        return sorted(name for name in found if name and name > (after or ""))[:limit]

    def _change(self, thread_id: str, script: str, *args: Argument) -> StorePlan[Request, Replies, Any]:
        [reply] = yield Request((Call(script, self.keys.of(thread_id), args),), writes=True)
        return reply

    def _read(self, thread_id: str, script: str, *args: Argument) -> StorePlan[Request, Replies, Any]:
        [reply] = yield Request((Call(script, (self.keys.thread(thread_id),), args),))
        return reply

    def write_entry(self, new: NewEntry) -> StorePlan[Request, Replies, Outcome]:
        address = new.address
        # Distinguishes a repeat of this request from another write of the same checkpoint.
        token = secrets.token_hex(4)
        args = (
            new_epoch(),
            name(address.checkpoint_ns),
            name(str(address.checkpoint_id)),
            name(new.parent or ""),
            "" if new.run_id is None else name_or_mark(new.run_id),
            word(new.updated_at),
            token,
            refs_text(new.refs, NEW),
            shrink(new.header),
            *mark_of(new.base),
            new.on_conflict if new.checked else "",
            member_of(new.updated_at, address.thread_id),
            self._ttl,
            "" if address.checkpoint_ns else f"={' '.join(new.terms)}",
            *_words_of(new.appends),
            "",
            *_words_of(new.repacks, are_numbered=True),
        )
        replies = yield Request((Call("write_entry", self.keys.of(address.thread_id), args),), writes=True)
        return _outcome(replies[0], token, new.appends, isinstance(replies, Resent))

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Replies, None]:
        place = name(address.checkpoint_ns), name(str(address.checkpoint_id))
        value = f"{word(batch.task_id)} {word(batch.task_path)} ".encode() + shrink(batch.body)
        late = " ".join(batch.terms)
        yield from self._change(address.thread_id, "write_batch", new_epoch(), *place, self._ttl, value, late)

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Replies, Any]:
        wanted = name(address.checkpoint_ns), name(address.checkpoint_id or ""), str(known or "")
        if self._refreshes:
            reply = yield from self._change(address.thread_id, "read_entry", *wanted, "1", self._ttl)
        else:
            reply = yield from self._read(address.thread_id, "read_entry", *wanted)
        if not reply:
            return None
        epoch, seq, value, parent, logs, batches = reply
        found = entry_with_rows(entry_of(address.thread_id, epoch, seq, value, parent), rows_of(logs), batches)
        return Unchanged(found.entry.parent, found.batches) if found.entry.stamp == known else found

    def scan(self, query: Query) -> StorePlan[Request, Replies, Sequence[Entry]]:
        thread_id, last = query.thread_id, query.after
        after = mark_of(last.stamp if last else None)
        if thread_id is None:
            # No index orders checkpoints across threads: it would be half as large as the entries, and would not expire
            # with them. So each page reads every entry of every thread.
            members = yield from _read_threads_of(self.keys)
            place = name(str(last.address.checkpoint_id)) if last else "", after.epoch, after.seq
            threads, calls = _calls(self.keys, members, SEARCHED, "search", *selection(query), *place, query.limit)
            replies = yield Request(calls)
            entries = [
                entry_of(group[number], *entry)
                for group, reply in zip(threads, replies, strict=True)
                for number, *entry in reply
            ]
            return sorted(entries, key=_place, reverse=True)[: query.limit]
        reply = yield from self._read(thread_id, "scan", *selection(query), after.epoch, after.seq, query.limit)
        if not reply:
            return []
        epoch, found = reply
        return [entry_of(thread_id, epoch, *each) for each in found]

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Request, Replies, Sequence[Found]]:
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            groups.setdefault((entry.address.thread_id, mark_of(entry.stamp).epoch), []).append(entry)
        calls = [
            Call("read_values", (self.keys.thread(thread),), (epoch, *(mark_of(entry.stamp).place for entry in group)))
            for (thread, epoch), group in groups.items()
        ]
        replies = yield Request(tuple(calls))
        found: dict[Stamp, Found] = {}
        for (logs, batches), group in zip(replies, groups.values(), strict=True):
            rows, there = rows_of(logs), dict(batches)
            for entry in group:
                seq = int(mark_of(entry.stamp).seq)
                if seq in there:
                    found[entry.stamp] = entry_with_rows(entry, rows, there[seq])
        return [found[entry.stamp] for entry in entries if entry.stamp in found]

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Request, Replies, Sequence[Found]]:
        place = name(address.checkpoint_ns), name(address.checkpoint_id or "")
        reply = yield from self._read(address.thread_id, "read_history", *place, *map(name_or_mark, channels))
        if not reply:
            return []
        epoch, ancestors, logs = reply
        rows = rows_of(logs)
        return [
            entry_with_rows(entry_of(address.thread_id, epoch, *entry), rows, batches) for *entry, batches in ancestors
        ]

    def read_graph(self, thread_id: str) -> StorePlan[Request, Replies, Graph]:
        reply = yield from self._read(thread_id, "read_graph")
        return graph_of(thread_id, *reply) if reply else Graph([], {}, None)

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Replies, None]:
        epochs = {mark_of(stamp).epoch for stamp in (*gone, *ghosts)}
        kept = [
            part
            for stamp, channels in ghosts.items()
            for part in (mark_of(stamp).place, f" {' '.join(map(name_or_mark, channels))} ")
        ]
        places = [mark_of(stamp).place for stamp in gone]
        yield from self._change(thread_id, "remove_entries", max(epochs, default=""), len(places), *places, *kept)

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Request, Replies, int]:
        if graph.epoch is None:
            return 0
        logs = [
            part
            for (ns, channel), end in graph.ends.items()
            for part in (f"{name(ns)}:{name_or_mark(channel)}", end, runs_text(sorted(live.get((ns, channel), ()))))
        ]
        removed: int = yield from self._change(thread_id, "remove_rows", str(graph.epoch), *logs)
        return removed

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Replies, bool]:
        # Two calls, because shared cells may be on another node of a Cluster. Each is atomic; after an error, one may
        # have run. With `last`, two round trips: shared cells are deleted only if the thread is.
        shared = Call("delete_shared", self._cell_keys(SHARED), (name(thread_id),))
        if last is None:
            yield Request((shared, Call("delete_thread", self.keys.of(thread_id))), writes=True)
            return True
        mark = mark_of(last)
        if not (yield from self._change(thread_id, "delete_unchanged", mark.epoch, mark.place)):
            return False
        yield Request((shared,), writes=True)
        return True

    def delete_all(self, limit: int) -> StorePlan[Request, Replies, int]:
        if not self.keys.tenant:
            return (yield from super().delete_all(limit))
        names = yield Request((), pattern=self.keys.of_threads)
        buckets: dict[str, list[str]] = {}
        for each in sorted({found.decode(errors="surrogateescape") for found in names}):
            if bucket := self.keys.bucket_in(each):
                buckets.setdefault(bucket, []).append(each)
        groups = [keys[at : at + ASKED] for keys in buckets.values() for at in range(0, len(keys), ASKED)]
        for start in range(0, len(groups), len(BUCKETS)):
            calls = [Call("forget_keys", tuple(group)) for group in groups[start : start + len(BUCKETS)]]
            yield Request(tuple(calls), writes=True)
        return sum(":thread:" in key for group in groups for key in group)

    def copy_thread(
        self, source: str, target: str, upto: Entry | None = None
    ) -> StorePlan[Request, Replies, CopyOutcome]:
        # Two round trips, because the threads may be on different nodes; the second creates the whole copy.
        if upto is None:
            flat = yield from self._read(source, "read_thread")
        else:
            mark = mark_of(upto.stamp)
            flat = yield from self._read(
                source, "read_upto", mark.epoch, mark.place, shrink(upto.header), word(upto.updated_at)
            )
        if not flat:
            is_there = yield from self._read(target, "has_thread")
            return Occupied() if is_there else Copied() if upto is None else BaseGone()
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        member = copied_member(fields[b"thread"], target)
        reply = yield from self._change(target, "write_thread", new_epoch(), member, self._ttl, *flat)
        return Copied() if reply else Occupied()

    def list_writes(
        self, thread_id: str, after: Writes | None, limit: int
    ) -> StorePlan[Request, Replies, Sequence[Writes]]:
        flat = yield from self._read(thread_id, "list_writes", str(after.stamp) if after else "", limit)
        return [_writes(thread_id, *pair) for pair in zip(flat[::2], flat[1::2], strict=True)]

    def list_kinds(self, thread_id: str | None) -> StorePlan[Request, Replies, Sequence[str]]:
        kinds: list[bytes] = yield from self._cells(Shelf(thread_id, "any"), "list_kinds")
        return [_name_of(kind) for kind in kinds]

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Request, Replies, None]:
        marks = [(mark_of(stamp), header) for stamp, header in new.headers.items()]
        records = [(f"entry:{mark.seq}", mark.token, header) for mark, header in marks]
        for (ns, channel), rows in new.rows.items():
            log = f"item:{name(ns)}:{name_or_mark(channel)}"
            records += [(f"{log}:{row.lo}", str(row.count), row.body) for row in rows]
        records += [(str(each.stamp), "", each.batch.body) for each in new.writes]
        words = [word for record in records for word in record]
        yield from self._change(thread_id, "replace_plain", str(new.epoch), *words)

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Request, Replies, Sequence[str]]:
        members = yield from _read_threads_of(self.keys)
        threads, calls = _calls(self.keys, members, ASKED, "find_runs", *map(name_or_mark, run_ids))
        replies = yield Request(calls)
        return [group[number] for group, reply in zip(threads, replies, strict=True) for number in reply]

    def read_threads(self, page: Page) -> StorePlan[Request, Replies, Sequence[Listed]]:
        after, passes = page.after, page.tolerant
        listed: list[Listed] = []
        # A member is its place, a NUL and the epoch: this skips all lives of that thread.
        last = member_of(*after) + (b"\1" if page.oldest_first else b"") if after else b""
        while len(listed) < page.limit:
            wanted = page.limit - len(listed)
            read = (yield from _read_members(self.keys, last, wanted, page.terms, page.oldest_first))[:wanted]
            members = [member for member in read if not passes or _is_member(member)]
            for member in sorted({*read} - {*members}):
                _log.warning("a thread is not listed because its index entry is damaged: %r", member)
            _check_members(members)
            found = yield from _read_summaries(self.keys, members)
            damaged = _damaged_in(found)
            if damaged and not passes:
                raise CorruptStore(f"the keys of these threads have damaged content: {', '.join(map(repr, damaged))}")
            for thread_id in damaged:
                _log.warning("thread %r is not listed: the content of its key is damaged", thread_id)
            read_info = _show if passes else _info
            listed += [read_info(member, found[member]) for member in members if len(found[member]) > 1]
            expired = [member for member in members if not found[member]]
            if expired and not self._read_only:
                yield from self._forget(expired)
            if len(read) < wanted:
                break
            last = read[-1]
        return listed

    def _forget(self, members: Iterable[bytes]) -> StorePlan[Request, Replies, None]:
        """Remove expired threads from the indexes."""
        calls = []
        for bucket, group in _groups(members, ASKED):
            indexes = self.keys.index(bucket), self.keys.expiring(bucket), self.keys.marks(bucket)
            threads = (self.keys.thread(parse_member(member)[1]) for member in group)
            calls.append(Call("forget_threads", (*indexes, *threads), tuple(group)))
        yield Request(tuple(calls), writes=True)

    def _cell_keys(self, thread_id: str) -> tuple[str, ...]:
        return *self.keys.cells(thread_id), self.keys.thread(thread_id)

    def _cells(
        self, shelf: Shelf, script: str, *args: Argument, writes: bool = False
    ) -> StorePlan[Request, Replies, Any]:
        keys = self._cell_keys(shelf.thread_id or SHARED)
        [reply] = yield Request((Call(script, keys, args),), writes)
        return reply

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Request, Replies, Swapped]:
        (swapped,) = yield from self.swap_cells(shelf, [(key, expected, new)])
        return swapped

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Request, Replies, Sequence[Swapped]]:
        ttl = "" if shelf.thread_id is None else self._ttl  # shared cells do not expire
        keys = self._cell_keys(shelf.thread_id or SHARED)
        calls = (
            Call("swap_cell", keys, (cell_name(shelf, key), expected or "", *(value_of(new) if new else _NO_CELL), ttl))
            for key, expected, new in swaps
        )
        replies = yield Request(tuple(calls), writes=True)
        return [Swapped(bool(done), cell_of(*held) if held else None) for done, *held in replies]

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Request, Replies, Mapping[str, Cell]]:
        reply = yield from self._cells(shelf, "read_cells", *(cell_name(shelf, key) for key in keys))
        return {key: cell_of(*held) for key, held in zip(keys, reply, strict=True) if held}

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Request, Replies, Sequence[tuple[str, Cell]]]:
        page = yield from self._cells(shelf, "list_cells", *page_of(shelf, prefix, after), limit)
        return [(key_of(named), cell_of(value)) for named, value in page]

    def find_cells(self, shelf: Shelf, search: Search) -> StorePlan[Request, Replies, Sequence[tuple[str, Cell]]]:
        # With less than two blocks, all cells of the prefix are read, in pages: their names do not sort by rank.
        if search.is_grouped or len(search.prefix) < 2 * BLOCK:
            return (yield from super().find_cells(shelf, search))
        head, after = cell_name(shelf, search.prefix[: 2 * BLOCK]), ""
        if search.after:
            rank, last = search.after
            # As `ranked` in `cells.lua`; the last cell may belong to another head.
            after = f"^{head}:{9_000_000_000_000_000 - rank:016d}:{last[-2 * BLOCK :]}"
        found: list[tuple[str, Cell]] = []
        while True:
            rest = search.limit - len(found)
            place = cell_name(shelf, search.prefix), head, after
            page, after = yield from self._cells(shelf, "find_cells", *place, rest, int(search.is_bare), *search.marks)
            found += ((key_of(named), cell_of(value)) for named, value in page)
            if not after or len(found) >= search.limit:
                return found

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Request, Replies, int]:
        pairs = [part for key, token in tokens.items() for part in (cell_name(shelf, key), token)]
        removed: int = yield from self._cells(shelf, "remove_cells", *pairs, writes=True)
        return removed

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Request, Replies, Sequence[str]]:
        names = yield Request((), pattern=self.keys.of_threads)
        found = {self.keys.thread_in(each.decode(errors="replace")) for each in names} - {None, ""}
        shared = self._cell_keys(SHARED)
        page = [b""]
        while page:
            [page] = yield Request((Call("find_origins", shared, (page[-1], ASKED)),))
            found |= {*map(_name_of, page)}
        threads = sorted(each for each in found if each and each > (after or ""))
        strays: list[str] = []
        for start in range(0, len(threads), PAGE):
            strays += yield from _find_strays(self.keys, threads[start : start + PAGE])
            if len(strays) >= limit:
                break
        return strays[:limit]

    def set_ttl(self, thread_id: str, ttl: int | None) -> StorePlan[Request, Replies, bool]:
        """Set a thread's time to live, in milliseconds; return whether the thread exists."""
        reply = yield from self._change(thread_id, "set_ttl", ttl or 0)
        return bool(reply)


@as_corrupt_store
def _writes(thread_id: str, field: bytes, value: bytes) -> Writes:
    _, ns, checkpoint_id, _ = field.decode().split(":")
    return Writes(field.decode(), Address(thread_id, parse_name(ns), parse_name(checkpoint_id)), *batches_of([value]))


def _words_of(logs: Mapping[str, Sequence[Row]], are_numbered: bool = False) -> list[Argument]:
    """Return rows by channel as script arguments, with first numbers if known."""
    words: list[Argument] = []
    for channel, rows in logs.items():
        words += [name_or_mark(channel), len(rows)]
        for row in rows:
            numbers = (row.lo, row.count) if are_numbered else (row.count,)
            words += [*numbers, shrink(row.body)]
    return words


@as_corrupt_store
def _outcome(reply: Sequence[Any], token: str, appends: Mapping[str, Sequence[Row]], is_resent: bool) -> Outcome:
    kind, *words = reply
    if kind == b"gone":
        return BaseGone(is_resent)
    if kind == b"moved":
        return Moved(parse_name(words[0].decode()) or None, is_resent)
    epoch, seq, *first = words
    return Stored(stamp_of(epoch, seq, token), dict(zip(appends, first, strict=True)))
