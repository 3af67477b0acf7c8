"""Reading damaged data returns the right value or a named error, on every backend.

A store with some of everything (`golden`) is damaged at one place, read in all ways, and repaired.
`KEEL_DAMAGES=20000 pytest tests/backends/test_damage.py` tests for an hour, and reports a failure with its seed.

Stored values have a checksum. Columns (names, numbers and times; in Redis also the names of fields and the members of
indexes) have none, so damage may assign a row to another thread or item. For columns, the tests require that reads of
other threads are right, that items still make the right values, and that errors are named.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from golden import KINDS, VERSIONS, loaded
from golden.kinds import TYPES
from golden.seen import thread_config
from support.backends.damage import OF_ITEMS, TOLD, BadText, damage_one, spots_of, ways
from support.places import Place
from support.tiers import sized

from langgraph_keel import CorruptStore, KeelError

DAMAGES = int(os.environ.get("KEEL_DAMAGES", sized(2, 4, 300)))
TOUCHED = 2
"""Threads that one damage may affect: its own, and the one to which it is now assigned."""


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    given: dict[str, Any] = {}
    if request.param in ("postgres", "redis"):
        given["url"] = request.getfixturevalue(f"{request.param}_url")
    if request.param == "redis":
        given["prefix"] = request.getfixturevalue("redis_prefix")
    return loaded(VERSIONS[-1], request.param, tmp_path, **given)


def look(place: Place, threads: list[str]) -> dict[str, Any]:
    """Return the result of each way to read, or the class of a named error."""
    found: dict[str, Any] = {}
    with place.open(read_only=True, types=TYPES) as saver:
        for name, read in ways(saver, threads):
            try:
                found[name] = read()
            except KeelError as error:
                found[name] = type(error)
    return found


@pytest.mark.slow
def test_reads_of_damaged_data_return_the_right_value_or_a_named_error(stored: Place) -> None:
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    right = look(stored, threads)
    assert not [name for name, value in right.items() if isinstance(value, type)]
    with spots_of(stored) as spots:
        for seed in range(DAMAGES):
            random = Random(f"{stored.kind} {seed}")
            spot, new = damage_one(spots, random, has_checksum=seed % 2 == 0)
            told = f"seed {seed}: {spot.kind}, {spot.where} was {spot.value!r:.120} and is {new!r:.120}"
            try:
                found = look(stored, threads)
            except Exception as error:
                raise AssertionError(told) from error
            changed = {name: value for name, value in found.items() if value != right[name]}
            listed = found.pop("threads")
            check_listing(listed, threads, told, in_order=spot.has_checksum)
            check_named(stored, set(threads) - set(listed), set(listed) - set(threads), told)
            changed.pop("threads", None)
            owners = {name.partition(" of ")[2] for name in changed} - {""}
            assert len(owners) <= TOUCHED, f"{told}; {owners}"
            wrong = {
                name: value
                for name, value in changed.items()
                if not isinstance(value, type) and not name.startswith(TOLD)
            }
            assert not wrong or not (spot.has_checksum or spot.kind in OF_ITEMS), f"{told}; {wrong!r:.500}"
            spot.write(spot.value)
    assert look(stored, threads) == right


def check_listing(listed: Any, threads: list[str], told: str, *, in_order: bool) -> None:
    """Check that all other threads are listed, whatever is damaged."""
    assert not isinstance(listed, type), f"{told}; {listed}"
    lost = [thread for thread in threads if thread not in listed]
    assert len(lost) <= TOUCHED, f"{told}; not listed: {lost}"
    assert not in_order or listed == [thread for thread in threads if thread in listed], told


def check_named(place: Place, lost: set[str], new: set[str], told: str) -> None:
    """Check that `keel check` finds unlisted threads.

    Threads that have another name now do not count.
    """
    if len(lost) > len(new):
        with place.open(read_only=True, types=TYPES) as saver:
            assert [each for each in saver.check() if each.kind != "harmless"], f"{told}; nobody names {lost}"


def spoil_listing(place: Place) -> None:
    """Damage the data from which one thread is listed.

    This is its name, its member of the index, its log, or its latest checkpoint.
    """
    with spots_of(place) as spots:
        if place.kind == "sqlite":
            spot = next(each for each in spots if each.kind == "thread_index.name" and each.value == "chat")
            spot.write(BadText(b"ch\xfft"))
        elif place.kind == "redis":
            spot = next(each for each in spots if each.kind == "member of threads" and b"\0chat\0" in each.value)
            spot.write(spot.value.replace(b"chat", b"ch\xfft"))
        elif place.kind == "files":
            *_, spot = (each for each in spots if "threads/chat/" in each.where and each.where.startswith("5 of"))
            spot.write(b"?\n")
        else:
            for spot in (each for each in spots if each.kind == "keel_entries.header"):
                spot.write(b"\x02 no frame at all")


def test_a_damaged_thread_does_not_stop_a_listing(stored: Place, caplog: pytest.LogCaptureFixture) -> None:
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    spoil_listing(stored)
    left = threads if stored.kind == "postgres" else [each for each in threads if each != "chat"]
    with stored.open(read_only=True, types=TYPES) as saver:
        assert [each.thread_id for each in saver.threads()] == left
        assert "thread" in caplog.text
        for limit in (1, 2, len(left)):  # a damaged thread does not make a page shorter
            assert [each.thread_id for each in saver.threads(limit)] == left[:limit]
        told: list[int] = []
        assert [each for each in saver.check(lambda done, total: told.append(done)) if each.kind != "harmless"]
        assert told[-1] >= len(left)
        # Callers that must not miss a thread are notified.
        with suppress(CorruptStore):
            assert not saver.retention.erase(user_id="nobody", dry_run=True).complete


@pytest.mark.parametrize("stored", ["redis"], indirect=True)
def test_a_thread_with_a_damaged_epoch_is_named_and_not_removed(
    stored: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    with spots_of(stored) as spots:
        spot = next(each for each in spots if each.kind == "thread" and each.value.endswith(b"\0chat"))
        spot.write(b"x" + spot.value)
        with stored.open(types=TYPES) as saver:  # it may change the index, and removes threads that do not exist
            assert [each.thread_id for each in saver.threads()] == [each for each in threads if each != "chat"]
            assert "thread 'chat' is not listed" in caplog.text
            assert "chat" in [each.thread_id for each in saver.check() if each.kind == "lost"]
            with pytest.raises(CorruptStore, match="chat"):
                saver.retention.erase(user_id="nobody", dry_run=True)
        spot.write(spot.value)
    with stored.open(read_only=True) as saver:
        assert [each.thread_id for each in saver.threads()] == threads


@pytest.mark.parametrize("stored", ["postgres"], indirect=True)
@pytest.mark.parametrize("column", ["token", "seq"])
def test_a_damaged_number_of_a_checkpoint_does_not_stop_a_listing(
    stored: Place, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    with spots_of(stored) as spots:
        for spot in (each for each in spots if each.kind == f"keel_entries.{column}"):
            spot.write(-spot.value)
    with stored.open(read_only=True, types=TYPES) as saver:
        assert [each.thread_id for each in saver.threads()] == threads
        assert [each for each in saver.check() if each.kind != "harmless"]
        with pytest.raises(CorruptStore):
            saver.get_tuple(thread_config("chat"))


@pytest.mark.parametrize("stored", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("column", "new"),
    [("name", b"\xff"), ("name", BadText(b"\xff")), ("id", 1 << 33)],
    ids=["bytes", "bad text", "a number past all keys"],
)
def test_an_invalid_channel_raises_corrupt_store(stored: Place, column: str, new: Any) -> None:
    with spots_of(stored) as spots:
        named = {spot.where for spot in spots if spot.kind == "channels.name" and spot.value == "messages"}
        for count, spot in enumerate(
            each for each in spots if each.kind == f"channels.{column}" and each.where in named
        ):
            spot.write(new + count if isinstance(new, int) else new)
    with stored.open(read_only=True, types=TYPES) as saver, pytest.raises(CorruptStore):
        list(saver.list(thread_config("chat")))
