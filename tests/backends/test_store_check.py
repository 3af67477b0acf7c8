"""`saver.check()` on every backend: a sound store is clean, visible damage found."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from golden.kinds import TYPES
from langgraph.checkpoint.base import empty_checkpoint
from redis import Redis
from support.backends.damage import damaged_bytes, spots_of
from support.places import Place
from support.tiers import sized
from test_damage import look, stored

from langgraph_keel import CorruptStore, KeyMissing, Keyring, LocalKey, MemorySaver, SqliteSaver
from langgraph_keel.engine.records import Page
from langgraph_keel.retention.check import Finding

DAMAGES = int(os.environ.get("KEEL_DAMAGES", sized(2, 4, 300)))
__all__ = ["stored"]


def found_in(place: Place) -> list[Finding]:
    with place.open(read_only=True, types=TYPES) as saver:
        return [finding for finding in saver.check() if finding.kind != "harmless"]


def test_a_sound_store_is_clean_and_unchanged(stored: Place) -> None:
    told: list[int] = []
    with stored.open(read_only=True, types=TYPES) as saver:
        threads = list(saver.threads())
        assert [each for each in saver.check(lambda done, total: told.append(done)) if each.kind != "harmless"] == []
        assert list(saver.threads()) == threads
    assert told[-1] == len(threads)
    with stored.open(read_only=True) as saver:  # without the classes of the program
        assert [each for each in saver.check() if each.kind != "harmless"] == []


@pytest.mark.slow
def test_damage_that_affects_a_read_is_found(stored: Place) -> None:
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    with spots_of(stored) as all_spots:
        spots = [spot for spot in all_spots if spot.has_checksum]
        for seed in range(DAMAGES):
            random = Random(f"check {stored.kind} {seed}")
            spot = random.choice(spots)
            new = damaged_bytes(spot.value, spots, random)
            spot.write(new)
            findings = found_in(stored)
            is_met = any(isinstance(value, type) for value in look(stored, threads).values())
            spot.write(spot.value)
            assert findings or not is_met, (
                f"seed {seed}: {spot.kind}, {spot.where} was {spot.value[:60]!r} and is {new[:60]!r}"
            )
    assert found_in(stored) == []


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["sqlite", "postgres", "redis"], indirect=True)  # where cells are in columns
def test_a_missing_body_is_found(stored: Place) -> None:
    """Most records have none; no existing body may be missing."""
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    missed = []
    with spots_of(stored) as spots:
        named = [(spot, spot.kind + spot.where) for spot in spots if spot.value]
        bodies = [spot for spot, name in named if "cells" in name and "body" in name and "name of" not in name]
        for spot in bodies[:: sized(5, 5, 1)]:
            spot.write(b"")
            missed.append(any(isinstance(value, type) for value in look(stored, threads).values()))
            assert found_in(stored) or not missed[-1], (spot.kind, spot.where)
            spot.write(spot.value)
    assert any(missed)


def lose_from_index(place: Place) -> None:
    """Remove a thread from the list of threads, but keep its checkpoints."""
    if place.kind == "sqlite":
        with sqlite3.connect(place.url.removeprefix("sqlite:///")) as connection:
            for table in ("threads", "thread_index"):
                connection.execute(f"DELETE FROM {table} WHERE name = 'chat'")
    elif place.kind == "postgres":
        with psycopg.connect(place.url) as connection:
            connection.execute("DELETE FROM keel_threads WHERE thread_id = 'chat'")
    else:
        with Redis.from_url(place.url) as client:
            for key in client.scan_iter(match=f"{place.options['prefix']}:*:threads"):
                for member in client.zrange(key, 0, -1):
                    client.zrem(key, *([member] if b"chat" in member else []) or [b"nobody"])


# A file store lists its directory.
@pytest.mark.parametrize("stored", ["sqlite", "postgres", "redis"], indirect=True)
def test_a_thread_missing_from_the_index_is_found(stored: Place) -> None:
    lose_from_index(stored)
    with stored.open(read_only=True) as saver:
        assert "chat" not in [each.thread_id for each in saver.threads()]
    assert any("thread" in finding.message for finding in found_in(stored))


@pytest.mark.parametrize("stored", ["postgres"], indirect=True)
def test_a_wrong_thread_row_of_postgres_is_found_and_repaired(stored: Place) -> None:
    with stored.open(read_only=True) as saver:
        listed = [(info.thread_id, info.updated_at) for info in saver.threads()]
    with psycopg.connect(stored.url) as connection:
        connection.execute("UPDATE keel_threads SET put_at = '2099' WHERE thread_id = 'chat'")
    (finding,) = found_in(stored)
    assert (finding.kind, finding.thread_id, finding.path) == ("decide", "chat", "keel_threads")
    assert f"last write at 2099, but its newest checkpoint is of {dict(listed)['chat']}" in finding.message
    with psycopg.connect(stored.url) as connection:
        connection.execute(finding.advice.encode())
    assert found_in(stored) == []
    with stored.open(read_only=True) as saver:
        assert [(info.thread_id, info.updated_at) for info in saver.threads()] == listed
    with psycopg.connect(stored.url) as connection:
        connection.execute("UPDATE keel_threads SET name = 'somebody' WHERE thread_id = 'chat'")
    assert any("the name of another thread: 'somebody'" in each.message for each in found_in(stored))


@pytest.mark.parametrize("stored", ["postgres"], indirect=True)
def test_overlapping_item_rows_of_postgres_are_an_error(stored: Place) -> None:
    moved = "UPDATE keel_items SET lo = 0, count = count + 1000 WHERE thread_id = 'chat' AND channel = 'messages'"
    with psycopg.connect(stored.url) as connection:
        *_, (last,) = connection.execute(
            "SELECT lo FROM keel_items WHERE thread_id = 'chat' AND ns = '' AND channel = 'messages' ORDER BY lo"
        )
        assert last > 0
        connection.execute(f"{moved} AND ns = '' AND lo = {last}".encode())
    with stored.open(read_only=True) as saver, pytest.raises(CorruptStore, match=r"'chat': two rows .* the same items"):
        saver.get_tuple({"configurable": {"thread_id": "chat"}})
    assert any("the same items" in finding.message for finding in found_in(stored))


def run_commands(client: Any, advice: str) -> None:
    """Run the commands of an advice for redis-cli."""
    for command in advice.partition(": ")[2].split(": ")[0].split("; "):
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|[^ ]+', command)]
        client.execute_command(*(word.encode().decode("unicode_escape").encode("latin-1") for word in words))


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["redis"], indirect=True)
def test_a_wrong_index_member_of_redis_is_found_and_repaired(stored: Place) -> None:
    with stored.open(read_only=True) as saver:
        listed = [(info.thread_id, info.updated_at) for info in saver.threads()]
    prefix = stored.options["prefix"]
    with Redis.from_url(stored.url) as opened:
        client: Any = opened
        (index,) = [
            each
            for each in client.scan_iter(match=f"{prefix}:*:threads")
            if b"\0chat\0" in client.zrange(each, 0, -1)[0]
        ]
        (right,) = [member for member in client.zrange(index, 0, -1) if b"\0chat\0" in member]
        epoch = right.rpartition(b"\0")[2]
        wrong = b"2099\0chat\0" + epoch
        marks, thread = index.replace(b":threads", b":marks"), index.replace(b":threads", b":thread:chat")

        client.zadd(index, {wrong: 0})
        client.zrem(index, right)
        (finding,) = found_in(stored)
        assert (finding.kind, finding.thread_id, finding.path) == ("decide", "chat", "the index of threads")
        assert "the index lists its last write at 2099" in finding.message
        run_commands(client, finding.advice)
        assert client.zrange(index, 0, -1) == [right]
        assert found_in(stored) == []
        with stored.open(read_only=True) as saver:
            assert [(info.thread_id, info.updated_at) for info in saver.threads()] == listed

        client.hset(marks, epoch, b"1||||" + wrong)
        (finding,) = found_in(stored)
        assert (finding.thread_id, "another place" in finding.message) == ("chat", True)
        run_commands(client, finding.advice)
        assert found_in(stored) == []

        held = client.hget(thread, "thread")
        member = right.rpartition(b"\0")[0]
        client.hset(thread, "thread", held.replace(member, b"2099\0chat"))
        client.zrem(index, right)
        client.zadd(index, {wrong: 0})
        (finding,) = found_in(stored)
        assert f"at 2099, but its newest checkpoint has {dict(listed)['chat']}" in finding.message
    with stored.open(types=TYPES) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": "chat"}})
        assert found
        saver.put(found.config, empty_checkpoint(), {"source": "update", "step": 9, "parents": {}}, {})
    assert found_in(stored) == []


async def test_the_asynchronous_check_finds_the_same(stored: Place) -> None:
    with spots_of(stored) as spots:
        spot = next(each for each in spots if each.has_checksum and len(each.value) > 40)
        spot.write(spot.value[:-3])
    place = stored
    findings = await asyncio.to_thread(found_in, place)
    async with place.open(read_only=True, types=TYPES) as saver:
        assert [finding async for finding in saver.acheck() if finding.kind != "harmless"] == findings != []


def test_a_store_in_memory_can_be_checked() -> None:
    with MemorySaver() as saver:
        assert list(saver.check()) == []


@pytest.mark.parametrize("stored", ["sqlite"], indirect=True)
def test_a_damaged_page_of_sqlite_is_named(stored: Place) -> None:
    path = stored.url.removeprefix("sqlite:///")
    with SqliteSaver(path) as saver:
        saver.retention.reclaim_space(full=True)
    with sqlite3.connect(path) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries_by_mark'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with open(path, "r+b") as file:
        file.seek((root - 1) * size)
        file.write(bytes(size))
    assert any(finding.path == path for finding in found_in(stored))


def test_a_row_that_looks_sealed_in_a_plain_store_is_damage(tmp_path: Path) -> None:
    """Its first byte gives the kind of its frame.

    In a sealed store, all rows have that kind.
    """
    path = tmp_path / "agent.db"
    with SqliteSaver(path) as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint = {**empty_checkpoint(), "channel_values": {"text": "long " * 50}, "channel_versions": {"text": 1}}
        saver.put(config, checkpoint, {}, {"text": 1})  # type: ignore[arg-type]
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE items SET body = x'03' || substr(body, 2)")
    connection.close()
    with SqliteSaver(path) as saver:
        assert {finding.kind for finding in saver.check()} == {"lost"}


def test_a_sealed_store_is_not_checked_without_its_key(tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with SqliteSaver(tmp_path / "agent.db", encryption=Keyring(LocalKey("k", bytes(range(32))))) as saver:
        saver.put(config, empty_checkpoint(), {}, {})
        assert list(saver.check()) == []
    with SqliteSaver(tmp_path / "agent.db") as saver, pytest.raises(KeyMissing, match="is encrypted"):
        list(saver.check())


def test_a_wrong_thread_index_is_found_and_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with SqliteSaver(path) as saver:
        for minute, thread in enumerate("abc"):
            checkpoint = {**empty_checkpoint(), "ts": f"2026-11-23T10:0{minute}:00+00:00"}
            saver.put({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, checkpoint, {}, {})  # type: ignore[arg-type]
        listed = [info.thread_id for info in saver.threads()]
        assert list(saver.check()) == []
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE thread_index SET name = 'x' WHERE name = 'a'")
        connection.execute("UPDATE thread_index SET put_at = '2000' WHERE name = 'c'")
    with SqliteSaver(path) as saver:
        assert [finding for finding in saver.check() if "wrong entries in the list" in finding.message]
        session = saver.engine.session
        named = saver.engine.run(session.store.read_threads(Page(None, 10)))
        assert [info.thread_id for info, _ in named] == listed  # callers that must not miss one do not use the index
    with connection:
        connection.execute("DROP TABLE thread_index")
    connection.close()
    with SqliteSaver(path, read_only=True) as saver:
        assert [info.thread_id for info in saver.threads()] == listed
        assert list(saver.threads(owner="nobody")) == []
    with SqliteSaver(path) as saver:
        assert [info.thread_id for info in saver.threads(status="idle")] == listed
        assert list(saver.check()) == []
