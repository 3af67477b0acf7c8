"""RedisSaver: cells, their lifetimes, their remnants, and their owners."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import servers
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from support.backends.redis_steps import Open, behind, keys, opened, put
from typing_extensions import TypedDict

from langgraph_keel import CorruptStore, NotAKeelStore, NotFound, ReadOnlyStore, RedisSaver, request_approval
from langgraph_keel.backends.redis.entries import Keys
from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.encoding.bodies import frame
from langgraph_keel.testing.contract_cells import cell
from langgraph_keel.testing.rig import FACES, at

__all__ = ["behind", "opened"]  # fixtures


class Said(TypedDict):
    said: str


MINE, SHARED = Shelf("t", "tool"), Shelf(None, "tool")
ORIGINS = ["t", "t:tool", "t;", "@t", "t ", "T", "ä", "t\x00", "%", "t:tool:k0"]


def swap(saver: RedisSaver, key: str, expected: str | None, new: Cell | None, shelf: Shelf = MINE) -> Swapped:
    return saver.engine.run(saver.engine.session.store.swap_cell(shelf, key, expected, new))


def listed(saver: RedisSaver, shelf: Shelf = MINE, size: int = 100) -> list[str]:
    return [key for key, _ in saver.engine.run(saver.engine.session.store.list_cells(shelf, "", None, size))]


def held(saver: RedisSaver, key: str, shelf: Shelf = MINE) -> Cell | None:
    return saver.engine.run(saver.engine.session.store.read_cells(shelf, [key])).get(key)


def cell_keys(prefix: str, thread: str = "t") -> tuple[str, str]:
    return Keys(prefix).cells(thread)


def left(behind: Any, prefix: str, thread: str = "t") -> float:
    """Return the time to live of a thread's cells, in seconds; negative if they stay.

    All keys have the same.
    """
    seconds = [behind.pttl(key) / 1000 for key in cell_keys(prefix, thread)]
    assert max(seconds) - min(seconds) < 0.05
    return float(max(seconds))


def shorten(behind: Any, prefix: str, thread: str = "t") -> None:
    for key in (Keys(prefix).thread(thread), *cell_keys(prefix, thread)):
        behind.pexpire(key, 5000)


# -- lifetimes -------------------------------------------------------------------------------------------------

LETS_LIVE: dict[str, Callable[[RedisSaver], object]] = {
    "put": lambda saver: put(saver, 2),
    "put_writes": lambda saver: saver.put_writes(at("t", "", "0001"), [("a", 1)], "task"),
    "get_tuple": lambda saver: saver.get_tuple(at()),
    "set_ttl": lambda saver: saver.set_ttl("t", 100),
    "swap": lambda saver: swap(saver, "other", None, cell("2")),
}


@pytest.mark.parametrize("act", LETS_LIVE)
def test_renewing_a_thread_renews_its_cells(opened: Open, behind: Any, redis_prefix: str, act: str) -> None:
    saver = opened(ttl=100, refresh_ttl_on_read=True)
    put(saver, 1)
    swap(saver, "k", None, cell("1"))
    shorten(behind, redis_prefix)
    LETS_LIVE[act](saver)
    assert 99 < left(behind, redis_prefix) <= 100


def test_a_thread_and_its_cells_expire_together(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=0.3)
    swap(saver, "k", None, cell("1"))
    put(saver, 1)
    deadline = time.monotonic() + 10
    while keys(behind, redis_prefix, ":thread:"):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert not behind.exists(*cell_keys(redis_prefix))
    assert listed(saver) == []
    assert swap(saver, "k", None, cell("2")) == Swapped(True)
    assert listed(saver) == ["k"]


def test_cells_without_a_thread_have_the_ttl_of_the_saver(opened: Open, behind: Any, redis_prefix: str) -> None:
    swap(opened(), "k", None, cell("1"))
    assert left(behind, redis_prefix) < 0
    swap(opened(ttl=100), "k", "1", cell("2"))
    assert 99 < left(behind, redis_prefix) <= 100
    with pytest.raises(NotFound):
        opened().set_ttl("t", 5)


def test_cells_follow_a_ttl_set_for_their_thread(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=10)
    put(saver, 1)
    swap(saver, "k", None, cell("1"))
    saver.set_ttl("t", 1000)
    assert 990 < left(behind, redis_prefix) <= 1000
    shorten(behind, redis_prefix)
    swap(saver, "k", "1", cell("2"))
    assert 990 < left(behind, redis_prefix) <= 1000
    saver.set_ttl("t", None)
    assert left(behind, redis_prefix) < 0
    swap(saver, "other", None, cell("1"))
    assert left(behind, redis_prefix) < 0


@pytest.mark.parametrize("ttl", [None, 10])
def test_a_saver_with_a_shorter_ttl_does_not_expire_cells_early(
    opened: Open, behind: Any, redis_prefix: str, ttl: float | None
) -> None:
    """A saver with a shorter time to live, or none, must not let cells expire early.

    Cells live at least as long as their thread.
    """
    put(opened(ttl=1000), 1)
    swap(opened(ttl=ttl), "k", None, cell("1"))
    assert 990 < left(behind, redis_prefix) <= 1000


def test_a_claim_outlives_an_expiring_thread(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=100)
    put(saver, 1)
    behind.pexpire(Keys(redis_prefix).thread("t"), 1000)
    swap(saver, "k", None, cell("1"))
    assert 99 < left(behind, redis_prefix) <= 100
    assert behind.pttl(Keys(redis_prefix).thread("t")) <= 1000


def test_a_copy_keeps_the_cells_it_had(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=100)
    put(saver, 1)
    swap(saver, "k", None, cell("1"), Shelf("copy", "tool"))
    shorten(behind, redis_prefix, "copy")
    saver.copy_thread("t", "copy")
    assert 99 < left(behind, redis_prefix, "copy") <= 100


def test_shared_cells_do_not_expire(opened: Open, behind: Any, redis_prefix: str) -> None:
    swap(opened(ttl=100), "k", None, cell("1", origin="t", expires_at=1), SHARED)
    assert left(behind, redis_prefix, "") < 0


# -- remnants --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_a_deleted_thread_leaves_no_key(opened: Open, behind: Any, redis_prefix: str, face: str) -> None:
    saver = opened()
    caller = FACES[face](lambda: saver)
    put(saver, 1)
    for shelf in (MINE, SHARED):
        swap(saver, "k", None, cell("1", b"body", origin="t"), shelf)
    assert len(keys(behind, redis_prefix, "")) == 1 + 1 + 1 + 1 + 2 + 2  # the format, thread, index, marks; cells
    caller.delete_thread("t")
    assert keys(behind, redis_prefix, "") == [f"{redis_prefix}:keel".encode()]
    caller.close()


@pytest.mark.parametrize("empty", ["swap", "remove"])
def test_emptied_cells_leave_no_key(opened: Open, behind: Any, redis_prefix: str, empty: str) -> None:
    saver = opened()
    for shelf in (MINE, SHARED):
        swap(saver, "k", None, cell("1", b"body", origin="t"), shelf)
        if empty == "swap":
            swap(saver, "k", "1", None, shelf)
        else:
            saver.engine.run(saver.engine.session.store.remove_cells(shelf, {"k": "1"}))
    assert keys(behind, redis_prefix, "") == [f"{redis_prefix}:keel".encode()]


@pytest.mark.parametrize("origin", ORIGINS, ids=ascii)
def test_shared_cells_of_other_threads_are_kept(opened: Open, origin: str) -> None:
    saver = opened()
    for number, each in enumerate(ORIGINS):
        swap(saver, f"k{number}", None, cell(f"{number}", origin=each), SHARED)
    saver.delete_thread(origin)
    assert listed(saver, SHARED) == [f"k{n}" for n, each in enumerate(ORIGINS) if each != origin]
    assert [held(saver, f"k{n}", SHARED) for n, each in enumerate(ORIGINS) if each != origin] == [
        cell(f"{n}", origin=each) for n, each in enumerate(ORIGINS) if each != origin
    ]


def test_a_shared_cell_belongs_to_its_last_writer(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    for expected, token, origin in ((None, "1", "t"), ("1", "2", "u"), ("2", "3", "u")):
        swap(saver, "k", expected, cell(token, origin=origin), SHARED)
    saver.delete_thread("t")
    assert listed(saver, SHARED) == ["k"]
    swap(saver, "k", "3", cell("4"), SHARED)
    saver.delete_thread("u")
    assert held(saver, "k", SHARED) == cell("4")
    assert behind.zrange(cell_keys(redis_prefix, "")[1], 0, -1) == [b"tool:k"]


def test_a_body_is_deleted_when_it_becomes_empty(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    swap(saver, "k", None, cell("1", b"body"))
    swap(saver, "k", "1", replace(cell("2"), body=b""))
    assert behind.hkeys(cell_keys(redis_prefix)[0]) == [b"tool:k"]


def test_names_without_a_cell_are_skipped(opened: Open, behind: Any, redis_prefix: str) -> None:
    """A user who may write sorted sets, but not hashes, leaves them (ACL)."""
    saver = opened()
    for key in "be":
        swap(saver, key, None, cell("1"))
    behind.zadd(cell_keys(redis_prefix)[1], {f"tool:{key}": 0 for key in "acdf"})
    assert listed(saver, size=2) == ["b", "e"]
    assert listed(saver, size=1) == ["b"]


# -- storage ---------------------------------------------------------------------------------------------------


def test_a_cell_can_be_read_in_redis_cli(opened: Open, behind: Any, redis_prefix: str) -> None:
    header, body = bytes(range(200)), bytes(range(100))
    swap(opened(), "k", None, Cell("1a", frame(header), frame(body), "a b", 1_800_000_000_000))
    hashed, names = cell_keys(redis_prefix)
    assert re.fullmatch(rf"{redis_prefix}:{{[0-9a-f]{{2}}}}:cells:t", hashed)
    fields = behind.hgetall(hashed)
    assert fields == {b"tool:k": b"1a 1800000000000 a%20b\n" + frame(header), b"tool:k:body": frame(body)}
    assert behind.zrange(names, 0, -1, withscores=True) == [(b"@a%20b:tool:k", 0), (b"tool:k", 0)]


def test_small_bodies_are_stored_smaller(opened: Open, behind: Any, redis_prefix: str) -> None:
    text = b'{"thread_id": "t", "checkpoint_ns": ""}' * 9
    saver = opened()
    swap(saver, "k", None, Cell("1", frame(text), frame(text)))
    assert behind.hstrlen(cell_keys(redis_prefix)[0], "tool:k:body") < len(text) / 2
    assert held(saver, "k") == Cell("1", frame(text), frame(text))


@pytest.mark.parametrize("damaged", [b"", b"\n", b"token \n", b"token when origin\n", b"\xff  \n"], ids=ascii)
def test_a_damaged_cell_raises_corrupt_store(opened: Open, behind: Any, redis_prefix: str, damaged: bytes) -> None:
    saver = opened()
    swap(saver, "k", None, cell("1"))
    behind.hset(cell_keys(redis_prefix)[0], "tool:k", damaged)
    for call in (lambda: held(saver, "k"), lambda: listed(saver), lambda: swap(saver, "k", "1x", cell("2"))):
        with pytest.raises(CorruptStore):
            call()


@pytest.mark.parametrize("where", ["resume:run", "approvals:", "audithead:head"])
def test_a_damaged_token_raises_an_error_instead_of_looping(
    opened: Open, behind: Any, redis_prefix: str, where: str
) -> None:
    """Lua and Python read damaged tokens differently.

    Lua reads the leading letters and digits, Python reads to the blank.
    """
    saver = opened()
    graph = asking(saver)
    graph.invoke({"said": ""}, at())
    (request,) = saver.approvals.pending()
    go_on: Callable[[], object] = partial(saver.approvals.approve, request.id, by="ann")
    if where == "resume:run":
        over = Cell("x" * 32, saver.engine.session.codec.encode(["h", "r", 0, "", 0]))
        swap(saver, "run", None, over, Shelf("t", "resume"))
        go_on = partial(graph.invoke, Command(resume="yes"), at())
    (key, field, header) = next(
        (key, field, header)
        for key in keys(behind, redis_prefix, "cells")
        if behind.type(key) == b"hash"
        for field, header in behind.hgetall(key).items()
        if field.decode().startswith(where) and not field.endswith(b":body")
    )
    behind.hset(key, field, header[:8] + b"-" + header[9:])
    with pytest.raises(CorruptStore, match="token"):
        go_on()


def asking(saver: RedisSaver) -> Any:
    builder = StateGraph(Said).add_node("ask", lambda _: {"said": request_approval("pay", {"n": 1}).kind})
    return builder.add_edge(START, "ask").compile(checkpointer=saver)


def every_verb(saver: RedisSaver) -> list[Callable[[], object]]:
    return [
        lambda: swap(saver, "k", None, cell("1")),
        lambda: held(saver, "k"),
        lambda: saver.engine.run(saver.engine.session.store.remove_cells(MINE, {"k": "1"})),
    ]


def test_keys_of_other_programs_are_not_touched(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    saver.setup()
    hashed, names = cell_keys(redis_prefix)
    for key, calls in ((hashed, every_verb(saver)), (names, [every_verb(saver)[0], lambda: listed(saver)])):
        behind.set(key, "theirs")
        for call in calls:
            with pytest.raises(NotAKeelStore):
                call()
        assert len(keys(behind, redis_prefix, "")) == 2
        assert behind.getdel(key) == b"theirs"
    behind.set(Keys(redis_prefix).thread("t"), "theirs")
    for call in (every_verb(saver)[0], lambda: saver.delete_thread("t")):
        with pytest.raises(NotAKeelStore):
            call()
    assert len(keys(behind, redis_prefix, "")) == 2


def test_cells_are_recognized_without_the_format_mark(opened: Open, behind: Any, redis_prefix: str) -> None:
    for shelf in (MINE, SHARED):
        swap(opened(), "k", None, cell("1"), shelf)
    behind.delete(f"{redis_prefix}:keel")
    opened().setup()
    assert held(opened(), "k") == cell("1")


def test_a_read_only_saver_refuses_swaps(opened: Open) -> None:
    swap(opened(), "k", None, cell("1"))
    reader = opened(read_only=True)
    for call in (every_verb(reader)[0], every_verb(reader)[-1]):
        with pytest.raises(ReadOnlyStore):
            call()
    assert held(reader, "k") == cell("1")
    assert listed(reader) == ["k"]


@pytest.mark.parametrize("face", FACES)
def test_each_cell_verb_takes_one_round_trip_on_the_wire(redis_url: str, redis_prefix: str, face: str) -> None:
    host, port = re.fullmatch(r"redis://(.*):(\d+)/0", redis_url).groups()  # type: ignore[union-attr]
    with servers.proxy(host, int(port)) as proxy:
        saver = RedisSaver(proxy.url_for(redis_url), prefix=redis_prefix, ttl=100)
        caller = FACES[face](lambda: saver)
        calls: list[Callable[[int], object]] = [
            lambda n: caller.verb("swap_cell", MINE, f"k{n}", None, cell(f"{n}", origin="t")),
            lambda n: caller.verb("swap_cell", MINE, f"k{n}", None, cell("other")),
            lambda n: caller.verb("swap_cell", SHARED, f"k{n}", None, cell(f"{n}", origin="t")),
            lambda n: caller.verb("read_cells", MINE, [f"k{n}", "k0", "none"]),
            lambda n: caller.verb("list_cells", MINE, "k", None, 2),
            lambda n: caller.verb("remove_cells", MINE, {f"k{n}": f"{n}", "k0": "x"}),
            lambda n: caller.delete_thread("t"),
        ]
        for n in range(3):
            for call in calls:
                before = proxy.round_trips
                call(n)
                # A deletion asks whether a person is on hold.
                assert n == 0 or proxy.round_trips - before == (2 if call is calls[-1] else 1)
        caller.close()
        saver.close()
