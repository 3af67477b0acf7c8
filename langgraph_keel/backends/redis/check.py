"""Find keys of a store that are not in Keel's form; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langgraph_keel.backends.redis.driver import Call, Request
from langgraph_keel.backends.redis.entries import Keys
from langgraph_keel.backends.redis.store import ASKED, SHARED, Replies
from langgraph_keel.engine.plan import StorePlan

MOST_ODD = 100
"""Maximum damaged fields and members that are reported per thread."""


class OddKey(NamedTuple):
    """A key with a defect, and the defect."""

    thread_id: str | None
    key: str
    said: str


def find_odd_keys(keys: Keys) -> StorePlan[Request, Replies, Sequence[OddKey]]:
    """Find keys with the wrong content, and damaged fields and members of others."""
    names = yield Request((), pattern=keys.of_threads)
    found = sorted({name.decode(errors="backslashreplace") for name in names})
    kinds = {name: kind for name in found if (kind := keys.kind_in(name))}
    odd = [OddKey(None, name, "no thread has this key") for name in found if name not in kinds]
    odd += yield from _find_wrong_types(keys, kinds)
    wrong = {each.key for each in odd}
    threads = [*sorted({thread for name in kinds if (thread := keys.thread_in(name))}), SHARED]
    for start in range(0, len(threads), ASKED):
        of_each = [(thread, (keys.thread(thread), *keys.cells(thread))) for thread in threads[start : start + ASKED]]
        page = [(thread, of_thread) for thread, of_thread in of_each if wrong.isdisjoint(of_thread)]
        replies = yield Request(tuple(Call("find_odd", of_thread, (MOST_ODD,)) for _, of_thread in page))
        for (thread, of_thread), reply in zip(page, replies, strict=True):
            odd += [OddKey(thread or None, of_thread[at], said.decode(errors="backslashreplace")) for at, said in reply]
    return odd


def _find_wrong_types(keys: Keys, kinds: dict[str, str]) -> StorePlan[Request, Replies, list[OddKey]]:
    buckets: dict[str | None, list[str]] = {}
    for each in kinds:
        buckets.setdefault(keys.bucket_in(each), []).append(each)
    groups = [of[at : at + ASKED] for of in buckets.values() for at in range(0, len(of), ASKED)]
    calls = (Call("find_wrong_types", tuple(group), tuple(kinds[each] for each in group)) for group in groups)
    replies = yield Request(tuple(calls))
    wrong = [(group[at], held.decode()) for group, reply in zip(groups, replies, strict=True) for at, held in reply]
    return [OddKey(keys.thread_in(key), key, f"it holds a {held}, not a {kinds[key]}") for key, held in wrong]
