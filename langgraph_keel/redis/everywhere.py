"""Verbs about all threads: a trip to the indexes of all buckets, and one to the threads they name.

Nothing orders checkpoints or runs across threads: that would be an index as large as half of what it points to, which
would not expire with it. So `scan` of all threads looks at every entry for every page, and `find_runs` asks every
thread; both in calls of a few threads each, between which the server serves others. No put pays for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from langgraph_keel.core.bodies import restored
from langgraph_keel.core.plan import Plan
from langgraph_keel.core.records import Entry, Query, ThreadInfo
from langgraph_keel.redis.cells import SHARED
from langgraph_keel.redis.entries import entry_of, line_of, mark_of, names_damage
from langgraph_keel.redis.names import BUCKETS, Keys, bucket_of, member_of, name, some_name, unmember, unnamed
from langgraph_keel.redis.requests import Argument, Call, Request

Replies: TypeAlias = list[Any]
SEARCHED = 16
"""Threads to a call that looks at all their entries: of 1000 messages each, some 30 ms in which the server does nothing
else."""
ASKED = 256
"""Threads to a call that looks at a field or two of each."""
PAGE = 4096
"""Threads that are asked in one go whether they show a checkpoint."""
ALL = -1


def selection(query: Query) -> tuple[str, ...]:
    """Return what entries a query means, as the scripts are told."""
    has_ns = "" if query.checkpoint_ns is None else "1"
    return has_ns, name(query.checkpoint_ns or ""), name(query.checkpoint_id or ""), name(query.before or "")


def _members(keys: Keys, after: bytes = b"", limit: int = ALL) -> Plan[Request, Replies, list[bytes]]:
    """Read the members of all buckets, last activity first."""
    replies = yield Request(tuple(Call("find_threads", (keys.index(bucket),), (after, limit)) for bucket in BUCKETS))
    return sorted((member for members in replies for member in members), reverse=True)


def _groups(members: Iterable[bytes], size: int) -> Iterator[tuple[str, list[bytes]]]:
    """Sort members into calls: the bucket, and as many of its members as one call takes."""
    buckets: dict[str, list[bytes]] = {}
    for member in members:
        buckets.setdefault(bucket_of(unmember(member)[1]), []).append(member)
    for bucket, inside in buckets.items():
        for start in range(0, len(inside), size):
            yield bucket, inside[start : start + size]


def _calls(
    keys: Keys, members: Iterable[bytes], size: int, script: str, *args: Argument
) -> tuple[list[list[str]], tuple[Call, ...]]:
    """Return the threads of each call, and the calls: each is told which lives of its threads the index has."""
    groups = [[unmember(member) for member in group] for _, group in _groups(members, size)]
    threads = [[thread for _, thread, _ in group] for group in groups]
    epochs = [[epoch for _, _, epoch in group] for group in groups]
    calls = (
        Call(script, tuple(map(keys.thread, group)), (*args, *lives))
        for group, lives in zip(threads, epochs, strict=True)
    )
    return threads, tuple(calls)


def scan(keys: Keys, query: Query) -> Plan[Request, Replies, Sequence[Entry]]:
    """See `Store.scan`, of all threads."""
    members = yield from _members(keys)
    last = query.after
    mark = mark_of(last.stamp if last else None)
    after = name(str(last.address.checkpoint_id)) if last else "", mark.epoch, mark.seq
    threads, calls = _calls(keys, members, SEARCHED, "search", *selection(query), *after, query.limit)
    replies = yield Request(calls)
    entries = [
        entry_of(group[number], *entry)
        for group, reply in zip(threads, replies, strict=True)
        for number, *entry in reply
    ]
    return sorted(entries, key=_place, reverse=True)[: query.limit]


def _place(entry: Entry) -> tuple[str, str, int]:
    mark = mark_of(entry.stamp)
    return str(entry.address.checkpoint_id), mark.epoch, int(mark.seq)


def find_runs(keys: Keys, run_ids: Collection[str]) -> Plan[Request, Replies, Sequence[str]]:
    """See `Store.find_runs`."""
    members = yield from _members(keys)
    threads, calls = _calls(keys, members, ASKED, "find_runs", *map(some_name, run_ids))
    replies = yield Request(calls)
    return [group[number] for group, reply in zip(threads, replies, strict=True) for number in reply]


def read_threads(
    keys: Keys, after: tuple[str, str] | None, limit: int, may_forget: bool
) -> Plan[Request, Replies, Sequence[tuple[ThreadInfo, bytes]]]:
    """See `Store.read_threads`. Takes those that are no more out of the index, if it may."""
    page: list[tuple[ThreadInfo, bytes]] = []
    last = member_of(*after) if after else b""
    while len(page) < limit:
        wanted = limit - len(page)
        members = (yield from _members(keys, last, wanted))[:wanted]
        found = yield from _summaries(keys, members)
        page += [_info(member, found[member]) for member in members if found[member]]
        gone = [member for member in members if not found[member]]
        if gone and may_forget:
            yield _forgetting(keys, gone)
        if len(members) < wanted:
            break
        last = members[-1]
    return page


def _summaries(keys: Keys, members: Sequence[bytes]) -> Plan[Request, Replies, dict[bytes, Any]]:
    groups = [group for _, group in _groups(members, ASKED)]
    _, calls = _calls(keys, members, ASKED, "read_threads")
    replies = yield Request(calls)
    return {
        member: info
        for group, reply in zip(groups, replies, strict=True)
        for member, info in zip(group, reply, strict=True)
    }


@names_damage
def _info(member: bytes, found: Sequence[Any]) -> tuple[ThreadInfo, bytes]:
    # As the index has it: what was put meanwhile must not bring the page out of its order.
    updated_at, thread_id, _ = unmember(member)
    checkpoints, latest, entry = found
    info = ThreadInfo(thread_id, checkpoints, updated_at, unnamed(latest.decode()) or None, None)
    return info, restored(line_of(entry)[1]) if entry else b""


def list_strays(keys: Keys, after: str | None, limit: int) -> Plan[Request, Replies, Sequence[str]]:
    """See `Store.list_strays`. Looks at the names of all keys of the server, in one go, for every page."""
    names = yield Request((), pattern=keys.of_threads)
    found = {keys.thread_in(name.decode(errors="replace")) for name in names} - {None}
    threads = sorted(name for name in {*filter(None, found), *(yield from _origins(keys))} if name > (after or ""))
    strays: list[str] = []
    for start in range(0, len(threads), PAGE):
        strays += yield from _without_checkpoints(keys, threads[start : start + PAGE])
        if len(strays) >= limit:
            break
    return strays[:limit]


def _origins(keys: Keys) -> Plan[Request, Replies, list[str]]:
    """Name the threads that have shared cells."""
    origins: list[str] = []
    shared = *keys.cells(SHARED), keys.thread(SHARED)
    page = [b""]
    while page:
        [page] = yield Request((Call("find_origins", shared, (page[-1], ASKED)),))
        origins += [unnamed(origin.decode()) for origin in page]
    return origins


def _without_checkpoints(keys: Keys, threads: Sequence[str]) -> Plan[Request, Replies, list[str]]:
    buckets: dict[str, list[str]] = {}
    for thread_id in threads:
        buckets.setdefault(bucket_of(thread_id), []).append(thread_id)
    calls = tuple(Call("find_strays", tuple(map(keys.thread, group))) for group in buckets.values())
    replies = yield Request(calls)
    return sorted(group[number] for group, reply in zip(buckets.values(), replies, strict=True) for number in reply)


def _forgetting(keys: Keys, members: Iterable[bytes]) -> Request:
    calls = [
        Call(
            "forget_threads",
            (keys.index(bucket), keys.expiring(bucket), *(keys.thread(unmember(member)[1]) for member in group)),
            tuple(group),
        )
        for bucket, group in _groups(members, ASKED)
    ]
    return Request(tuple(calls), writes=True)
