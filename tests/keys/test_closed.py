"""Encryption fails closed: without keys, with another tenant's, and for copies."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis
from support.cli_threads import keel, keel_json
from support.places import Place
from support.stores import MemoryUnderTest

from langgraph_keel import InvalidInput, KeelSaver, KeyMissing, Keyring, LocalKey, SealBroken, SqliteSaver, TieredSaver
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.testing.faults import Counter, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))
DAMAGE = (SealBroken, KeyMissing)


def put(saver: KeelSaver, text: str, number: int = 1, thread: str = "t") -> Any:
    values: Any = {"text": text, "list": [text] * 3}
    before = at(thread, "", f"{number - 1:08}" if number > 1 else None)
    checkpoint: Any = checkpoint_of(f"{number:08}", values)
    return saver.put(before, checkpoint, {}, dict.fromkeys(values, 1))


def text_of(saver: KeelSaver, thread: str = "t") -> Any:
    found = saver.get_tuple(at(thread))
    return found and found.checkpoint["channel_values"]["text"]


EMPTY: Any = checkpoint_of("1", {})
CALLS: list[Callable[[KeelSaver], Any]] = [
    lambda saver: put(saver, "plain", thread="new"),
    lambda saver: asyncio.run(saver.aput(at("new"), EMPTY, {}, {})),
    lambda saver: saver.put_writes(at("new", "", "1"), [("a", 1)], "task"),
    lambda saver: asyncio.run(saver.aput_writes(at("new", "", "1"), [("a", 1)], "task")),
    lambda saver: saver.retention.set_policy([]),
    lambda saver: text_of(saver, "new"),
    lambda saver: list(saver.threads()),
]
"""Operations with which a program may start."""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("tenant", ["", "acme", "new"])
def test_a_saver_without_keys_is_refused_before_it_writes(
    place: Place, tenant: str, call: Callable[[KeelSaver], Any]
) -> None:
    with place.open(encryption=KEYRING) as saver:
        put(saver.for_tenant("acme"), "sealed")  # the only checkpoint in the store
    with place.open() as forgotten:
        theirs = forgotten.for_tenant(tenant) if tenant else forgotten
        for _ in range(2):  # the second call must fail as well
            with pytest.raises(KeyMissing, match="is encrypted"):
                call(theirs)
    with place.open(encryption=KEYRING) as saver:
        theirs = saver.for_tenant(tenant) if tenant else saver
        assert text_of(theirs) == ("sealed" if tenant == "acme" else None)
        assert [each.thread_id for each in theirs.threads()] == (["t"] if tenant == "acme" else [])


def test_memory_and_tiered_savers_without_keys_are_refused(tmp_path: Path) -> None:
    def tiers(name: str, **options: Any) -> KeelSaver:
        hot, cold = (SqliteSaver(tmp_path / each) for each in (f"{name}.hot", f"{name}.cold"))
        return TieredSaver(hot=hot, cold=cold, **options)

    memory = MemoryUnderTest()
    for opened in (memory.open, lambda **options: tiers("a", **options)):
        with opened(encryption=KEYRING) as saver:
            put(saver, "sealed")
        with opened() as forgotten, pytest.raises(KeyMissing, match="is encrypted"):
            put(forgotten, "plain", thread="new")
        with opened(encryption=KEYRING) as saver:
            assert text_of(saver) == "sealed"


def test_writes_of_an_earlier_saver_without_keys_are_detected(place: Place) -> None:
    """As `keys/README.md` documents: a check at each write would cost a round trip."""
    with place.open() as early:
        text_of(early)
        with place.open(encryption=KEYRING) as saver:
            put(saver, "sealed")
            put(early, "plain", thread="new")
            assert type(_error_of(lambda: text_of(saver, "new"))) is SealBroken
            assert "new" in [finding.thread_id for finding in saver.check() if finding.kind == "lost"]


def _error_of(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        call()
    return raised.value


def test_the_check_for_encryption_adds_no_round_trip_to_a_put(place: Place) -> None:
    counter = Counter()
    with place.open() as saver:
        tapped = with_tap(saver, counter)
        for number in range(1, 4):
            put(tapped, "x", number)
            assert counter.taken() == 1
        assert saver.for_tenant("acme").engine.is_same_place(saver.engine)


# -- tenants -----------------------------------------------------------------------------------------------------------


def exchange(place: Place) -> None:
    """Exchange the data of two tenants, as an attacker with access but no key could."""
    steps = [("acme", "passing"), ("globex", "acme"), ("passing", "globex")]
    if place.kind == "files":
        tenants = Path(place.url.removeprefix("files:")) / "tenants"
        for old, new in steps:
            os.rename(tenants / old, tenants / new)
    elif place.kind == "redis":
        prefix = place.options["prefix"]
        with Redis.from_url(place.url) as client:
            for old, new in steps:
                for key in [*client.scan_iter(match=f"{old}#{prefix}:*", count=1000)]:
                    client.rename(key, key.replace(old.encode(), new.encode(), 1))
    elif place.kind == "sqlite":
        columns = {"threads": ["name"], "thread_index": ["name"], "shelves": ["thread"], "cells": ["key", "origin"]}
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as database:
            for old, new in steps:
                for table, names in columns.items():
                    for name in names:
                        database.execute(f"UPDATE {table} SET {name} = replace({name}, '{old}', '{new}')")
            database.commit()
    else:
        tables = ["threads", "entries", "items", "floors", "batches", "cells"]
        columns = {table: ["thread_id"] for table in tables} | {"cells": ["thread_id", "key", "origin"]}
        with psycopg.connect(place.url) as database:
            for old, new in steps:
                for table, names in columns.items():
                    for name in names:
                        statement = f"UPDATE keel_{table} SET {name} = replace({name}, '{old}', '{new}')"
                        database.execute(statement.encode())


def test_exchanging_the_data_of_two_tenants_is_detected(place: Place) -> None:
    with place.open(encryption=KEYRING) as saver:
        for tenant in ("acme", "globex"):
            put(saver.for_tenant(tenant), f"payroll of {tenant}")
    exchange(place)
    with place.open(encryption=KEYRING) as saver:
        for tenant in ("acme", "globex"):
            theirs = saver.for_tenant(tenant)
            with pytest.raises(DAMAGE, match="tenant"):
                text_of(theirs)
            with pytest.raises(DAMAGE, match="tenant"):
                put(theirs, "new", thread="new")
            with pytest.raises(DAMAGE, match="tenant"):
                asyncio.run(theirs.aget_tuple(at("t")))
            assert "tenant" in " ".join(finding.message for finding in theirs.check())
    exchange(place)  # restores the original state
    with place.open(encryption=KEYRING) as saver:
        assert text_of(saver.for_tenant("acme")) == "payroll of acme"


# -- copies ------------------------------------------------------------------------------------------------------------


def graft(place: Place, source: str, target: str) -> None:
    """Replace the latest header of a thread by another thread's, with SQL."""
    with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as database:
        latest = "SELECT {} FROM entries WHERE key >> 32 = (SELECT id FROM threads WHERE name = ?) ORDER BY key DESC"
        ((header, refs),) = database.execute(latest.format("header, refs") + " LIMIT 1", [source]).fetchall()
        ((key,),) = database.execute(latest.format("key") + " LIMIT 1", [target]).fetchall()
        database.execute("UPDATE entries SET header = ?, refs = ? WHERE key = ?", [header, refs, key])
        database.commit()


@pytest.mark.parametrize("way", ["copy", "fork"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_key_of_a_copy_does_not_open_later_data_of_its_source(tmp_path: Path, way: str, elsewhere: bool) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path}/keel.db")
    keyring = Keyring(LocalKey("k1", bytes(range(32))), refresh=0)
    with place.open(encryption=keyring) as saver, place.open(encryption=keyring) as other:
        put(saver, "before", thread="mine")
        text_of(other, "mine")  # it has the key in its cache
        if way == "copy":
            saver.copy_thread("mine", "shared")
        else:
            saver.fork(at("mine"), "shared")
        writer = other if elsewhere else saver
        put(saver, "shared", 2, thread="shared")
        put(writer, "my pin is 4711", 2, thread="mine")
        assert text_of(saver, "mine") == "my pin is 4711"
        assert text_of(saver, "shared") == "shared"
    graft(place, "mine", "shared")
    with place.open(encryption=keyring) as saver:
        with pytest.raises(DAMAGE):
            text_of(saver, "shared")
        assert "shared" in [finding.thread_id for finding in saver.check()]
        assert text_of(saver, "mine") == "my pin is 4711"


def test_copies_and_renewals_leave_everything_readable(place: Place) -> None:
    with place.open(encryption=KEYRING) as saver:
        put(saver, "first", thread="a")
        saver.copy_thread("a", "b")
        saver.keys.renew()
        put(saver, "second", 2, thread="a")
        saver.copy_thread("b", "c")
        saver.copy_thread("a", "d")
    with place.open(encryption=KEYRING) as saver:
        assert [text_of(saver, name) for name in "abcd"] == ["second", "first", "first", "second"]
        assert list(saver.check()) == []


# -- output of commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["2026", "2027"])
def test_keys_show_tries_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    url = f"sqlite:///{tmp_path}/keel.db"
    monkeypatch.setenv("KEEL_KEYS", new_key("2027"))
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring.from_env()) as saver:
        put(saver, "x")
    monkeypatch.setenv("KEEL_KEYS", new_key(other))
    said = keel("keys", "show", "--url", url, status=1).output
    assert "does not open the store" in " ".join(said.split())
    assert "rotate" not in said
    shown = keel_json("keys", "show", "--url", url, status=1)
    assert (shown["needed"], shown["is_current"], bool(shown["fault"])) == ("2027", False, True)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("cryptography", lambda path: LocalKey("k", bytes(range(32)))),
        ("obstore", lambda path: SqliteSaver(path / "keel.db", blobs="s3://bucket/prefix")),
    ],
)
def test_install_advice_names_the_real_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, call: Callable[[Path], Any]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "langgraph_keel.blobs.driver", raising=False)
    with pytest.raises(InvalidInput, match=f"pip install '{package}>=") as raised:
        call(tmp_path)
    assert "langgraph-keel[" not in str(raised.value)
