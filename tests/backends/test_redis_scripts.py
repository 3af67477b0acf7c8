"""Run every script of Redis on damaged keys: a right value or a named error, quickly.

The keys are damaged one by one. A script blocks all clients of its server, so none may take a second, whatever is
stored. The server is asked for the duration of the slowest script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import servers
from redis import Redis
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.saver_parts import driver_of, store_of
from support.tiers import sized

from langgraph_keel import CorruptStore, KeelError, RedisSaver, StoreBusy, StoreUnavailable
from langgraph_keel.backends.redis.check import find_odd_keys
from langgraph_keel.backends.redis.driver import _SCRIPTS, Request  # private: to check that all are run
from langgraph_keel.backends.redis.store import RedisStore, find_damaged, find_mislisted, find_unlisted
from langgraph_keel.engine.cells import BLOCK, Cell, Search, Shelf
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import body_of, frame
from langgraph_keel.engine.plan import run
from langgraph_keel.engine.records import NEW, Batch, Kind, NewEntry, Page, Query, Ref, Replacement, Row

SLOW = 1_000_000
"""Microseconds that no script may take."""
WRITES = {
    "write_entry", "write_entry, again", "write_batch", "swap_cell", "remove_cells", "set_ttl", "replace_plain",
    "remove_entries", "remove_rows", "copy_thread", "copy_thread, upto", "delete_thread", "delete_thread, last",
    "delete_all",
}  # fmt: skip
SHARED_PARTS = {"fields", "life", "lives", "order", "parents", "rows", "select", "cells", "expiry"}
NUMBERS = [b"0", b"1", b"999", b"999999999999999", b"99999999999999999999999"]
TEXTS = [b"", b"garbage", b"\xff\x00", b"0 0 0 0 0 0 0 0\n"]
STEP = sized(70, 35, 3)
"""Every how many damages one is tried."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with servers.or_skip(servers.redis(own=True)) as server:
        yield server.url


def fill(saver: RedisSaver) -> None:
    """Store two threads with lists, writes, runs, a ghost, labels, and shared cells."""
    for thread in ("t", "u"):
        config: Any = config_for(thread)
        for number in range(1, 5):
            values = {"list": [f"{each} " * 9 for each in range(number)], "other": {"a": [number] * 40}}
            metadata: Any = {**METADATA, "run_id": f"run {number % 2}", "user_id": "ada"}
            config = saver.put(config, checkpoint_of(f"{number:08}", values), metadata, {})
            saver.put_writes(config, [("a", number)], "task", "path")
            saver.put_writes(config, [("b", number)], "other")
        saver.labels.set(config, "good")
        saver.set_ttl(thread, 1000)
    shelf, cell = Shelf(None, "caches"), Cell("token", frame(b"header"), b"", "t")
    run(store_of(saver).swap_cell(shelf, "key", None, cell), driver_of(saver))


class Recorded:
    """A saver's driver that records the scripts it sends."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.scripts: set[str] = set()

    def send(self, request: Request) -> list[Any]:
        self.scripts.update(call.script for call in request.calls)
        return self._driver.send(request)  # type: ignore[no-any-return]


Verbs = dict[str, Callable[[], Any]]


def verbs_of(store: RedisStore, driver: Any) -> Verbs:
    """Return plans of every verb, and of the checks, made from a sound store."""

    def ask(plan: Any) -> Any:
        return run(plan, driver)

    keys, head, shelf = store.keys, Address("t", ""), Shelf("t", "labels")
    named, refreshing = Address("t", "", "00000003"), RedisStore(store.keys.prefix, 1000, refresh_on_read=True)
    entries = ask(store.scan(Query("t")))
    latest, older = entries[0], entries[-1]
    graph, live = ask(store.read_graph("t")), {("", "list"): [(0, 1)]}
    writes = ask(store.list_writes("t", None, 9))
    ((label, cell), *_) = ask(store.list_cells(shelf, "", None, 9))
    row = (Row(NEW, 1, body_of([b"\x01"])),)
    new = NewEntry(
        Address("t", "", "00000009"), "00000004", latest.header, {"list": Ref(Kind.LIST, ((NEW, NEW + 1),))},
        {"list": row}, {"list": (Row(0, 4, body_of([b"\x01"] * 4)),)}, latest.stamp, True, run_id="run 1",
        updated_at="2026", terms=("01234567",),
    )  # fmt: skip
    again = replace(new, address=named, parent="00000002", checked=False)
    plain = Replacement(graph.epoch, {latest.stamp: latest.header}, {}, writes)
    return {
        "read_entry": lambda: store.read_entry(head),
        "read_entry, named": lambda: store.read_entry(named),
        "read_entry, refreshing": lambda: refreshing.read_entry(head),
        "scan": lambda: store.scan(Query("t")),
        "scan all": lambda: store.scan(Query()),
        "read_values": lambda: store.read_values(entries),
        "read_history": lambda: store.read_history(head, ["list", "none"]),
        "read_graph": lambda: store.read_graph("t"),
        "list_writes": lambda: store.list_writes("t", None, 9),
        "list_kinds": lambda: store.list_kinds("t"),
        "list_kinds, shared": lambda: store.list_kinds(None),
        "list_cells": lambda: store.list_cells(shelf, "", None, 1),
        "read_cells": lambda: store.read_cells(shelf, [label]),
        "find_cells": lambda: store.find_cells(shelf, Search("0" * 2 * BLOCK)),
        "list_strays": lambda: store.list_strays(None, 9),
        "find_runs": lambda: store.find_runs(["run 1"]),
        "read_threads": lambda: store.read_threads(Page(None, 9)),
        "read_threads, narrowed": lambda: store.read_threads(Page(None, 1, ("01234567",))),
        "read_threads, oldest": lambda: store.read_threads(Page(None, 1, ("01234567",), oldest_first=True)),
        "has_thread": lambda: store.copy_thread("none", "t"),
        "find_damaged": lambda: find_damaged(keys),
        "find_mislisted": lambda: find_mislisted(keys),
        "find_unlisted": lambda: find_unlisted(keys),
        "find_odd_keys": lambda: find_odd_keys(keys),
        "write_entry": lambda: store.write_entry(new),
        "write_entry, again": lambda: store.write_entry(again),
        "write_batch": lambda: store.write_batch(named, Batch("task", "", frame(b"x"), ("01234567",))),
        "swap_cell": lambda: store.swap_cell(shelf, label, cell.token, replace(cell, token="new")),
        "remove_cells": lambda: store.remove_cells(shelf, {label: cell.token}),
        "set_ttl": lambda: store.set_ttl("t", 5),
        "replace_plain": lambda: store.replace_plain("t", plain),
        "remove_entries": lambda: store.remove_entries("t", {older.stamp}, {entries[1].stamp: ["list"]}),
        "remove_rows": lambda: store.remove_rows("t", live, graph),
        "copy_thread": lambda: store.copy_thread("t", "copy"),
        "copy_thread, upto": lambda: store.copy_thread("t", "copy", latest),
        "delete_thread": lambda: store.delete_thread("t"),
        "delete_thread, last": lambda: store.delete_thread("t", latest.stamp),
        "delete_all": lambda: RedisStore(store.keys.prefix, tenant="a").delete_all(9),
    }


def damages_of(client: Any) -> Iterator[Callable[[], object]]:
    """Yield functions that each damage one key, field or member."""
    for key in sorted(client.scan_iter()):
        if key.endswith(b":keel"):
            continue
        kind = client.type(key)
        yield partial(client.delete, key)
        yield partial(hold_a_list, client, key)
        if kind == b"hash":
            for field, value in sorted(client.hgetall(key).items()):
                yield partial(client.hdel, key, field)
                yield from (partial(client.hset, key, field, new) for new in {*TEXTS, *NUMBERS, *with_numbers(value)})
                yield from (partial(rename_field, client, key, field, new, value) for new in renamings(field))
        elif kind == b"zset":
            for member in client.zrange(key, 0, -1):
                yield from (partial(rename_member, client, key, member, new) for new in renamings(member))


def hold_a_list(client: Any, key: bytes) -> None:
    client.delete(key)
    client.rpush(key, b"other")


def rename_field(client: Any, key: bytes, field: bytes, new: bytes, value: bytes) -> None:
    client.hdel(key, field)
    client.hset(key, new, value)


def rename_member(client: Any, key: bytes, member: bytes, new: bytes) -> None:
    client.zrem(key, member)
    client.zadd(key, {new: 0})


def with_numbers(value: bytes) -> Iterator[bytes]:
    """Yield values with another number in a leading word, or in the last run."""
    line, end, rest = value.partition(b"\n")
    words = line.split(b" ", 9)
    for at in range(len(words)):
        for number in (b"0", b"9" * 12, b"9" * 22):
            parts = words[at].rpartition(b"-") if b"-" in words[at] else (b"", b"", b"")
            yield b" ".join([*words[:at], parts[0] + parts[1] + number, *words[at + 1 :]]) + end + rest


def renamings(name: bytes) -> set[bytes]:
    """Return variants of a name that are damaged in one byte, or invalid."""
    return {
        name.replace(b":", b";", 1),
        name.replace(b"\0", b" ", 1),
        name.replace(b"@", b"A", 1),
        name[:-1],
        name[:-1] + b"\xff",
        b"@" + name.replace(b":", b"", 1),
        b"\xff",
    } - {name, b""}


@contextmanager
def filled(url: str) -> Iterator[tuple[RedisSaver, Any]]:
    with Redis.from_url(url) as client, RedisSaver(url, durability="any", timeout=5) as saver:
        client.flushall()
        fill(saver)
        client.config_set("slowlog-log-slower-than", SLOW)
        client.slowlog_reset()
        yield saver, client


def test_these_tests_run_every_script(url: str) -> None:
    with filled(url) as (saver, client):
        driver = Recorded(driver_of(saver))
        # Without a thread of the tenant, `delete_all` finds no keys and sends no script.
        saver.for_tenant("a").put(config_for("t"), checkpoint_of("00000001", {"n": 1}), METADATA, {})
        held = {key: client.dump(key) for key in client.scan_iter()}
        for verb in verbs_of(store_of(saver), driver).values():
            run(verb(), driver)
            restore(client, held)
        assert run(find_odd_keys(store_of(saver).keys), driver) == []
        client.delete(store_of(saver).keys.thread("t"))
        run(store_of(saver).read_threads(Page(None, 9)), driver)
    assert {*_SCRIPTS} - SHARED_PARTS == driver.scripts


@pytest.mark.slow
def test_scripts_on_damaged_keys_end_with_a_named_error(url: str) -> None:
    """Exceptions other than `KeelError` fail the test.

    A timeout means that the server was busy.
    """
    with filled(url) as (saver, client):
        store, driver = store_of(saver), Recorded(driver_of(saver))
        verbs = verbs_of(store, driver)
        held = {key: client.dump(key) for key in client.scan_iter()}
        for damage in [*damages_of(client)][::STEP]:
            is_damaged = False
            for name, verb in verbs.items():
                if not is_damaged or name in WRITES:
                    restore(client, held)
                    damage()
                    is_damaged = True
                try:
                    run(verb(), driver)
                except (StoreUnavailable, StoreBusy):
                    with suppress(Exception):
                        client.execute_command("SCRIPT", "KILL")
                    raise AssertionError(name) from None
                except KeelError:
                    pass
        assert client.slowlog_get() == []


def restore(client: Any, held: dict[bytes, bytes]) -> None:
    pipeline = client.pipeline()
    pipeline.flushdb()
    for key, value in held.items():
        pipeline.restore(key, 0, value)
    pipeline.execute()


def test_a_damaged_name_of_a_cell_is_skipped_and_reported(url: str) -> None:
    """One changed byte made a script loop forever, which blocked all clients."""
    with filled(url) as (saver, client):
        (key,) = client.scan_iter(match="*:names:t")
        (member,) = (each for each in client.zrange(key, 0, -1) if each.startswith(b"labels:"))
        client.zrem(key, member)
        client.zadd(key, {member.replace(b":", b";"): 0})
        assert "labels" not in run(store_of(saver).list_kinds("t"), driver_of(saver))
        found = [(each.thread_id, each.path, each.message) for each in saver.check()]
        damaged = ("t", key.decode(), f'the member "{member.decode().replace(":", ";")}" is damaged')
        assert damaged in found
        assert ("t", key.decode(), f'the member of "{member.decode()}" is missing') in found
        assert client.ping()


@pytest.mark.parametrize(
    ("pattern", "thread", "said"),
    [
        ("*:thread:t", "t", "it holds a list, not a hash"),
        ("*:cells:t", "t", "it holds a list, not a hash"),
        ("*:names:", None, "it holds a list, not a zset"),
        ("*:threads", None, "it holds a list, not a zset"),
        ("*:marks", None, "it holds a list, not a hash"),
    ],
)
def test_a_key_of_another_type_is_named(url: str, pattern: str, thread: str | None, said: str) -> None:
    with filled(url) as (saver, client):
        key = next(client.scan_iter(match=pattern))
        client.delete(key)
        client.rpush(key, b"something else")
        assert (thread, key.decode(), said) in [(each.thread_id, each.path, each.message) for each in saver.check()]


def test_the_check_accepts_the_keys_of_a_tenant(url: str) -> None:
    with filled(url) as (saver, client):
        theirs = saver.for_tenant("acme")
        theirs.put(config_for("t"), checkpoint_of("00000001", {}), METADATA, {})
        theirs.labels.set(config_for("t"), "here")
        assert [*client.scan_iter(match="acme#*:names:t")]
        assert [each for each in theirs.check() if each.kind != "harmless"] == []


@pytest.mark.parametrize("field", ["head:", "id::00000003", "entry:3", "end::list", "item::list:0", "run:run%201"])
def test_a_damaged_field_of_a_thread_is_named(url: str, field: str) -> None:
    with filled(url) as (saver, client):
        assert [each for each in saver.check() if each.kind != "harmless"] == []
        (key,) = client.scan_iter(match="*:thread:t")
        assert client.hget(key, field)
        client.hset(key, field, b"garbage")
        assert f'the field "{field}" is damaged' in [each.message for each in saver.check() if each.thread_id == "t"]


def test_a_changed_byte_in_the_line_of_a_checkpoint_is_detected(url: str) -> None:
    """It names the items of a value and the parent; no header's checksum covers it."""
    with filled(url) as (saver, client):
        (key,) = client.scan_iter(match="*:thread:t")
        for number in (3, 4):
            held = client.hget(key, f"entry:{number}")
            for place in range(held.index(b"\n") + 1):
                client.hset(key, f"entry:{number}", held[:place] + bytes([held[place] ^ 1]) + held[place + 1 :])
                with pytest.raises(CorruptStore, match="the line of a checkpoint"):
                    saver.get_tuple(config_for("t"))  # of which 3 is the parent
            assert f'the field "entry:{number}" is damaged' in [each.message for each in saver.check()]
            client.hset(key, f"entry:{number}", held)
        assert [each for each in saver.check() if each.kind != "harmless"] == []


def test_a_ghost_stays_hidden_if_the_field_of_its_id_is_damaged(url: str) -> None:
    with filled(url) as (saver, client):
        (key,) = client.scan_iter(match="*:thread:t")
        store, driver = store_of(saver), driver_of(saver)
        first = run(store.scan(Query("t")), driver)[-1]
        run(store.remove_entries("t", (), {first.stamp: ["list"]}), driver)
        assert client.hget(key, "id::00000001") == b"1 ghost"
        client.hset(key, "id::00000001", b"1 ghosu")
        assert saver.get_tuple(config_for("t", "00000001")) is None
        assert 'the field "id::00000001" is damaged' in [each.message for each in saver.check()]


@pytest.mark.slow
def test_a_write_with_a_changed_task_is_detected(url: str) -> None:
    """The id and the path of a task are stored before the body, in plain text."""
    with filled(url) as (saver, client):
        (key,) = client.scan_iter(match="*:thread:t")
        field = "write::00000004:0"
        held = client.hget(key, field)
        assert held.startswith(b"task path ")
        for new in (held.replace(b"task ", b"tasl ", 1), held.replace(b"path ", b"pati ", 1)):
            client.hset(key, field, new)
            with pytest.raises(KeelError, match="another task"):
                saver.get_tuple(config_for("t"))
            assert any("another task" in each.message for each in saver.check())
