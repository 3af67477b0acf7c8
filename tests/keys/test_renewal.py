"""Renewed keys: the holder of all earlier keys cannot read new data.

Renewals run with concurrent writers, and are cut off at any request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from threading import Event
from typing import Any

import pytest
from support.cli_threads import keel, keel_json
from support.retention.threads import BACKENDS
from support.tiers import sized
from test_rotation import length, put

from langgraph_keel import (
    CorruptStore,
    InvalidInput,
    KeelSaver,
    KeyMissing,
    Keyring,
    LocalKey,
    MemorySaver,
    Retention,
    SealBroken,
    SqliteSaver,
)
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import open_frame, raw_frame
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.keys.datakeys import KEY, KIND, STORE
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.keys.sealing import Sealer, pack, place_of, unpack
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of

OLD, NEW = (LocalKey(name, bytes(range(first, first + 32))) for name, first in (("old", 0), ("new", 100)))
WRITERS = 8
FIRST: Any = checkpoint_of("1", {"a": 1})
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The secret of each key that seals or wraps data from now on."""
    found: list[bytes] = []
    seal = Sealer.seal

    def tell(self: Sealer, data: bytes, place: bytes) -> bytes:
        found.append(self.secret)
        return seal(self, data, place)

    monkeypatch.setattr(Sealer, "seal", tell)
    return found


def views(saver: KeelSaver) -> list[KeelSaver]:
    return [saver, saver.for_tenant("acme")]


def work(saver: KeelSaver, number: int) -> None:
    """Write each kind of record, to the first thread and to a new one."""
    put(saver, "t", number)
    put(saver, f"new {number}", 1)
    saver.labels.set(at("t"), f"label {number}")
    saver.retention.set_policy(Retention(last=number))
    saver.copy_thread("t", f"copy {number}")
    saver.prune(["t"], strategy="keep_latest")


def read(saver: KeelSaver, number: int) -> None:
    for thread in ("t", *(f"copy {nth}" for nth in range(1, number + 1))):
        assert length(saver, thread) == (number if thread == "t" else int(thread.split()[1]))
    assert {label.name for label in saver.labels.list("t")} <= {f"label {nth}" for nth in range(1, number + 1)}


@each_backend
def test_new_data_is_not_sealed_with_earlier_keys(store: Any, backend: str, sealed: list[bytes]) -> None:
    """Checks all earlier secrets, more than the old master key and a copy reveal."""
    with store.open(encryption=Keyring(OLD, refresh=0)) as saver:
        for each in views(saver):
            work(each, 1)
    before = {*sealed}
    both = Keyring(NEW, OLD, refresh=0)
    with store.open(encryption=both) as busy, store.open(encryption=both) as saver:
        for each in views(busy):
            read(each, 1)  # it caches the earlier keys
        done = saver.keys.renew()
        assert done == (2 * 3, {}, "new")
        del sealed[:]
        for number in (2, 3):
            for each in views(busy if number == 2 else saver):
                work(each, number)
                read(each, number)
        assert sealed
        assert not before & {*sealed}
    with store.open(encryption=Keyring(NEW)) as saver:  # with no other keys
        for each in views(saver):
            read(each, 3)
    assert not before & {*sealed}
    with store.open(encryption=Keyring(OLD)) as saver, pytest.raises(KeyMissing, match="'new'"):
        read(saver, 3)


@each_backend
def test_earlier_keys_open_nothing_in_a_later_copy(store: Any, backend: str) -> None:
    """Neither the new store key nor later data keys, which were wrapped again."""
    with store.open(encryption=Keyring(OLD)) as saver:
        put(saver, "t", 1)
        (stolen,) = keys_of_store(saver).values()
        put(saver, "later", 1)  # after the copy, before the renewal
        saver_keys = [each for thread in ("t", "later") for each in parts_of(saver, thread)]
        assert [opens(stolen, part) for part in saver_keys] == [True, True]
    with store.open(encryption=Keyring(NEW, OLD)) as saver:
        saver.keys.renew()
        put(saver, "t", 2)
        put(saver, "new", 1)
        parts = [each for thread in ("t", "later", "new") for each in parts_of(saver, thread)]
        assert len(parts) == 2 + 2 + 1
        assert not any(opens(stolen, part) for part in parts)
        (current, *_) = keys_of_store(saver).values()
        assert all(opens(current, part) for part in parts)
        store_id, (_, master, *_), shared, *_ = unpack(open_frame(cell_of(saver, STORE).header))
        assert (master, len(shared)) == ("new", 2)
        places = [place_of(store_id, "data key", None, None, part[0], *filter(None, part[4:])) for part in shared]
        parts = [[*part[:3], place] for part, place in zip(shared, places, strict=True)]
        assert [[opens(key, part) for part in parts] for key in (stolen, current)] == [[False] * 2, [True] * 2]
        with pytest.raises(SealBroken):
            OLD.unwrap(*wrapped_in(saver))


def keys_of_store(saver: KeelSaver) -> Mapping[bytes, Sealer]:
    chest = saver.engine.session.store.chest  # type: ignore[attr-defined]
    saver.engine.run(chest.shared())
    wrappers: Mapping[bytes, Sealer] = chest._own.wrappers  # private: an attacker inside the process has these
    return wrappers


def cell_of(saver: KeelSaver, shelf: Shelf) -> Cell:
    cells: Mapping[str, Cell] = saver.engine.run(saver.engine.session.store.inner.read_cells(shelf, [KEY]))  # type: ignore[attr-defined]
    return cells[KEY]


def replace_cell(saver: KeelSaver, shelf: Shelf, parts: Any) -> None:
    cell = replace(cell_of(saver, shelf), header=raw_frame(pack(parts)), token="other")
    inner = saver.engine.session.store.inner  # type: ignore[attr-defined]
    assert saver.engine.run(inner.swap_cell(shelf, KEY, cell_of(saver, shelf).token, cell)).done


def parts_of(saver: KeelSaver, thread_id: str) -> Sequence[Any]:
    """The keys in a thread's cell, each with the context that it is bound to."""
    store_id = saver.engine.session.store.chest.store_id  # type: ignore[attr-defined]
    parts: Sequence[Any] = unpack(open_frame(cell_of(saver, Shelf(thread_id, KIND)).header))
    return [
        [*part[:3], place_of(store_id, "data key", thread_id, part[1], part[0], *filter(None, part[4:]))]
        for part in parts
    ]


def wrapped_in(saver: KeelSaver) -> tuple[bytes, bytes]:
    store_id, (tenant, _, wrapped, *renewed), *_ = unpack(open_frame(cell_of(saver, STORE).header))
    return wrapped, place_of(store_id, "tenant key", tenant, renewed[0], renewed[2])


def opens(key: Sealer, part: Sequence[Any]) -> bool:
    """Whether a store's key opens a data key."""
    try:
        return bool(key.open(part[2], part[3]))
    except SealBroken:
        return False


@pytest.mark.slow
@each_backend
def test_eight_writers_continue_during_a_renewal(store: Any, backend: str) -> None:
    puts, both = sized(3, 6, 40), [Keyring(NEW, OLD), Keyring(NEW, OLD, refresh=0), Keyring(OLD, NEW)]
    with store.open(encryption=Keyring(OLD)) as saver:
        for view in views(saver):
            put(view, "before", 1)
    is_renewed = Event()

    def write(number: int) -> None:
        """Write with one open saver, or with a new one each time, under either key."""
        with store.open(encryption=both[number % 3]) as going:
            for nth in range(1, puts + 1):
                assert nth == 1 or is_renewed.wait(60)
                with store.open(encryption=both[nth % 3]) as anew:
                    saver = going if number < 4 else anew
                    view = saver.for_tenant("acme") if number % 4 == 3 else saver
                    put(view, f"t{number}", nth)
                    put(view, f"{number} {nth}", 1)

    renewed = 0
    with ThreadPoolExecutor(WRITERS + 1) as pool:
        working = [pool.submit(write, number) for number in range(WRITERS)]
        while renewed < 2 or not all(each.done() for each in working):
            with store.open(encryption=Keyring(NEW, OLD)) as saver, store.open(encryption=Keyring(NEW, OLD)) as other:
                at_once: Any = pool.submit(other.keys.renew)
                assert not saver.keys.renew().failed
                assert not at_once.result().failed
            renewed += 1
            is_renewed.set()
        for each in working:
            each.result()

    with store.open(encryption=Keyring(NEW, OLD)) as saver:
        saver.keys.renew()
    with store.open(encryption=Keyring(NEW)) as saver:
        acme = saver.for_tenant("acme")
        assert [length(view, "before") for view in (saver, acme)] == [1, 1]
        for number in range(WRITERS):
            view = acme if number % 4 == 3 else saver
            assert length(view, f"t{number}") == puts
            assert {length(view, f"{number} {nth}") for nth in range(1, puts + 1)} == {1}
        for view in (saver, acme):
            (current, *_) = keys_of_store(view)
            for info in view.threads():
                parts = unpack(open_frame(cell_of(view, Shelf(info.thread_id, KIND)).header))
                assert parts[0][3:] == [current, current]


@each_backend
@pytest.mark.parametrize("lost_reply", [False, True], ids=["before", "after"])
def test_a_renewal_interrupted_at_any_request_is_resumed(stores: Any, backend: str, lost_reply: bool) -> None:
    store, cut, was_cut, counter = stores[backend], 0, True, Counter()
    both = Keyring(NEW, OLD)
    while was_cut:
        store.wipe()
        with store.open(encryption=Keyring(OLD)) as saver:
            for view in views(saver):
                for thread in ("t", "u", "v"):
                    put(view, thread, 1)
        was_cut = False
        with store.open(encryption=both) as saver:
            try:
                with_tap(saver, Fault(cut, lost_reply=lost_reply)).keys.renew()
            except Injected:
                was_cut = True
            assert [length(view, thread) for view in views(saver) for thread in "tuv"] == [1] * 6
            put(saver, "t", 2)
        with store.open(encryption=both) as saver:
            done = with_tap(saver, counter).keys.renew()
            assert not done.failed
        with store.open(encryption=Keyring(NEW)) as saver:
            for view in views(saver):
                ids = [*keys_of_store(view)]
                # A resumed renewal continues with its first key; a repeated one adds a second.
                assert len(ids) in ({2, 3} if was_cut else {3})
                for thread in "tuv":
                    parts = unpack(open_frame(cell_of(view, Shelf(thread, KIND)).header))
                    assert {part[3] for part in parts} == {ids[0]}
                    assert len({part[4] for part in parts}) == len(parts)
                    assert parts[0][4] == ids[0]
            assert [length(saver, thread) for thread in "tuv"] == [2, 1, 1]
        cut += sized(5, 5, 1)
    assert cut > 15
    store.wipe()


def test_a_resumed_renewal_skips_renewed_threads(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(OLD)) as saver:
        for number in range(20):
            put(saver, f"t{number}", 1)
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(NEW, OLD)) as saver:
        with pytest.raises(Injected):
            with_tap(saver, Fault(30)).keys.renew()
        (id, *earlier) = keys_of_store(saver)
        left = saver.keys.renew().threads
        assert 0 < left < 15
        assert [*keys_of_store(saver)] == [id, *earlier]
    third = LocalKey("third", token_bytes(32))
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(third, NEW)) as saver, pytest.raises(Injected):
        with_tap(saver, Fault(30)).keys.renew()
    fourth = LocalKey("fourth", token_bytes(32))
    # The renewal was started under a master key that is no longer current: its holder must not read new data.
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(fourth, third)) as saver:
        assert saver.keys.renew() == (20, {}, "fourth")
        assert len(keys_of_store(saver)) == 4
        assert {length(saver, f"t{number}") for number in range(20)} == {1}


# -- open savers -------------------------------------------------------------------------------------------------------


def test_an_open_saver_checks_for_renewed_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("langgraph_keel.keys.datakeys.monotonic", lambda: now)
    counter, both = Counter(), Keyring(NEW, OLD)
    with (
        SqliteSaver(tmp_path / "keel.db", encryption=both) as opened,
        SqliteSaver(tmp_path / "keel.db", encryption=both) as other,
    ):
        saver = with_tap(opened, counter)
        put(saver, "t", 1)
        chest: Any = saver.engine.session.store.chest  # type: ignore[attr-defined]

        def key() -> bytes:
            found: bytes = next(iter(chest._threads["t"].keys))  # private: the key in its cache, without a request
            return found

        (first, now) = (key(), now + 59)
        other.keys.renew()
        put(saver, "t", 2)
        assert key() == first
        now += 1
        counter.taken()
        saver.put_writes(saver.get_tuple(at("t")).config, [("a", 1)], "more")  # type: ignore[union-attr]
        assert counter.taken() == 1 + 3  # the store's cell, the thread's cell, and the writes
        assert key() != first
        now += 59
        saver.put_writes(saver.get_tuple(at("t")).config, [("a", 1)], "more")  # type: ignore[union-attr]
        assert counter.taken() == 2


def test_a_saver_without_the_new_master_key_raises_key_missing(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(OLD, refresh=0)) as saver:
        put(saver, "t", 1)
        with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(NEW, OLD)) as other:
            other.keys.rotate()
            put(saver, "t", 2)  # the key of the store is the same
            other.keys.renew()
        assert length(saver, "t") == 2
        with pytest.raises(KeyMissing, match="'new', which the keyring lacks"):
            put(saver, "t", 3)


@pytest.mark.parametrize("trip", range(10))
def test_a_thread_first_stored_during_a_renewal_stays_readable(tmp_path: Path, trip: int) -> None:
    both = Keyring(NEW, OLD, refresh=0)
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(OLD)) as saver:
        put(saver, "other", 1)
    with SqliteSaver(tmp_path / "keel.db", encryption=both) as other:
        with SqliteSaver(tmp_path / "keel.db", encryption=both) as saver:
            meanwhile = Meanwhile(trip, other.keys.renew)
            put(with_tap(saver, meanwhile), "t", 1)
            assert meanwhile.happened is (trip < 9)
            other.keys.renew()
            put(saver, "t", 2)
        assert length(other, "t") == 2
        assert unpack(open_frame(cell_of(other, Shelf("t", KIND)).header))[0][4] == next(iter(keys_of_store(other)))


@pytest.mark.parametrize("trip", range(8))
def test_a_renewal_does_not_recreate_keys_of_a_deleted_thread(tmp_path: Path, trip: int) -> None:
    both = Keyring(NEW, OLD)
    with (
        SqliteSaver(tmp_path / "keel.db", encryption=both) as saver,
        SqliteSaver(tmp_path / "keel.db", encryption=both) as other,
    ):
        put(saver, "t", 1)
        with_tap(saver, Meanwhile(trip, lambda: other.delete_thread("t"))).keys.renew()
        inner = saver.engine.session.store.inner  # type: ignore[attr-defined]
        other.delete_thread("t")
        assert saver.engine.run(inner.read_cells(Shelf("t", KIND), [KEY])) == {}


# -- an attacker with the earlier keys and write access ----------------------------------------------------------------


@pytest.fixture
def renewed() -> Iterator[tuple[KeelSaver, Sealer, Any]]:
    """A saver on a renewed store; the earlier store key and cell of a thread."""
    saver = MemorySaver(encryption=Keyring(NEW, OLD, refresh=0))
    put(saver, "t", 1)
    (stolen,) = keys_of_store(saver).values()
    cell = unpack(open_frame(cell_of(saver, Shelf("t", KIND)).header))
    saver.keys.renew()
    put(saver, "t", 2)
    yield saver, stolen, cell
    saver.close()


def current_key(saver: KeelSaver, thread_id: str) -> Any:
    saver.engine.session.store.chest.forget(thread_id)  # type: ignore[attr-defined]
    return saver.engine.run(saver.engine.session.store.chest.make(thread_id)).current  # type: ignore[attr-defined]


def test_an_old_key_does_not_become_the_current_one(renewed: Any) -> None:
    saver, _, before = renewed
    parts = unpack(open_frame(cell_of(saver, Shelf("t", KIND)).header))
    new, old = parts
    assert old[0] == before[0][0]
    for changed in ([old, new], [old], before, [before[0], new]):
        replace_cell(saver, Shelf("t", KIND), changed)
        assert current_key(saver, "t").id not in (old[0],)
        replace_cell(saver, Shelf("t", KIND), parts)


def test_a_forged_key_does_not_become_the_current_one(renewed: Any) -> None:
    saver, stolen, _ = renewed
    chest: Any = saver.engine.session.store.chest
    id, *earlier = keys_of_store(saver)
    secret, name = bytes(range(32)), b"fake"
    for since in (id, *earlier):
        place = place_of(chest.store_id, "data key", "t", "t", name, *([since] if since else []))
        for wrapper in (id, *earlier):
            replace_cell(saver, Shelf("t", KIND), [[name, "t", stolen.seal(secret, place), wrapper, since]])
            try:
                assert current_key(saver, "t").sealer.secret != secret
            except SealBroken:
                pass
            else:  # accepted only as an earlier key, which seals nothing any more
                assert (since, wrapper) == (earlier[0], earlier[0])


def test_an_old_shared_key_does_not_become_the_current_one(renewed: Any) -> None:
    saver, *_ = renewed
    store_id, tenant, (new, old), *rest = unpack(open_frame(cell_of(saver, STORE).header))
    for shared in ([old, new], [old], [old[:3]], [[*old[:4], new[4]]]):
        replace_cell(saver, STORE, [store_id, tenant, shared, *rest])
        with MemorySaver(encryption=Keyring(NEW, OLD)) as other:
            other = with_engine(other, other.engine.with_drivers(saver.engine.driver, saver.engine.async_driver))
            with pytest.raises(SealBroken, match="shared records"):
                other.engine.run(other.engine.session.store.chest.shared_to_seal())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "change",
    [
        lambda tenant: [*tenant[:3], b"other id", *tenant[4:]],
        lambda tenant: [*tenant[:3], b"", *tenant[4:]],
        lambda tenant: tenant[:3],
        lambda tenant: [*tenant[:5], not tenant[5]],
        lambda tenant: [*tenant[:4], [[b"", tenant[4][0][1][:-1] + bytes([tenant[4][0][1][-1] ^ 1])]], tenant[5]],
        lambda tenant: [*tenant[:4], [[b"x", tenant[4][0][1]]], tenant[5]],
        lambda tenant: [*tenant[:4], [["", tenant[4][0][1]]], tenant[5]],
        lambda tenant: [*tenant[:4], 3, tenant[5]],
        lambda tenant: [*tenant, 3],
    ],
)
def test_a_changed_key_cell_of_the_store_is_refused(renewed: Any, change: Any) -> None:
    saver, *_ = renewed
    store_id, tenant, *rest = unpack(open_frame(cell_of(saver, STORE).header))
    replace_cell(saver, STORE, [store_id, change(tenant), *rest])
    with MemorySaver(encryption=Keyring(NEW, OLD)) as other:
        other = with_engine(other, other.engine.with_drivers(saver.engine.driver, saver.engine.async_driver))
        with pytest.raises((CorruptStore, KeyMissing), match="key"):
            length(other, "t")


# -- formats and user errors -------------------------------------------------------------------------------------------

CELLS = {
    STORE: (
        "00bf2fbda393d920666138666566636265656131396435663963306433336338333732663564636193a0a26b31c43c2fe5e420e784db033b"
        "49ca6738622f4f25fa57677cfd60defa330dcc32ad5494ba1ca4f2f7bda2a708f5f897e758a7d6611df938599276e6f6e7a4259193c404fc"
        "302546c0c43c5c4b6e5dbf26b250574bd7f6daea2b00e61c2f3ecd7567b8037fcb997c1a5afc366860eaa3e3dc3761842b9aa353610442db"
        "a9af01441cb3755878b2"
    ),
    Shelf("t", KIND): (
        "00f978b3d59193c40432b16235a174c43c1a6d4cf7be31445535facdd1522a423a06511b392306a7026ca68c75c0f824b43600e6f4797731"
        "a36e05a34fe602076d9d2947ca6d37a78843e9a125"
    ),
}
"""The cells of a store and of a thread, as the first version wrote them."""
SECRETS = (
    "e9def72e1c05ba6059281e4075a9bf84ab7fb29035a4e75bee897be4a53fc32b",
    "d10ee7380abb67c64ce54692a91fe5a82b2c1402da863fd2a8882544366a623d",
)


def test_keys_of_the_first_version_are_read_and_renewed() -> None:
    saver = MemorySaver(encryption=Keyring(OLD))
    saver = MemorySaver(encryption=Keyring(LocalKey("k1", bytes(range(32)))))
    inner, chest = saver.engine.session.store.inner, saver.engine.session.store.chest  # type: ignore[attr-defined]
    for shelf, header in CELLS.items():
        cell = Cell("token", bytes.fromhex(header), origin=shelf.thread_id or "")
        assert saver.engine.run(inner.swap_cell(shelf, KEY, None, cell)).done
    shared, found = (saver.engine.run(each) for each in (chest.shared(), chest.find("t")))
    assert (shared.current.sealer.secret.hex(), found.current.sealer.secret.hex()) == SECRETS
    put(saver, "t", 1)
    assert saver.keys.rotate()[:2] == ("k1", "k1")
    assert cell_of(saver, Shelf("t", KIND)).header.hex() == CELLS[Shelf("t", KIND)]
    assert saver.keys.renew().threads == 1
    assert length(saver, "t") == 1


def test_a_store_without_renewals_keeps_the_short_format(tmp_path: Path) -> None:
    saver = MemorySaver(encryption=Keyring(OLD))
    put(saver, "t", 1)
    assert [len(part) for part in unpack(open_frame(cell_of(saver, Shelf("t", KIND)).header))] == [3]
    assert len(unpack(open_frame(cell_of(saver, STORE).header))[1]) == 3


def test_threads_are_found_by_owner_after_a_renewal(tmp_path: Path) -> None:
    """Marks keep their key, because another key would not find the earlier ones."""
    saver = MemorySaver(encryption=Keyring(NEW, OLD))

    def put_of(owner: str, thread_id: str) -> None:
        metadata: Any = {"source": "loop", "step": 1, "parents": {}, "user_id": owner}
        saver.put(at(thread_id), FIRST, metadata, {})

    put_of("ann", "t")
    saver.keys.renew()
    put_of("ann", "u")
    put_of("bob", "v")
    assert sorted(info.thread_id for info in saver.threads(owner="ann")) == ["t", "u"]


def test_a_thread_with_damaged_keys_is_reported_and_skipped(tmp_path: Path) -> None:
    saver = MemorySaver(encryption=Keyring(NEW, OLD))
    for thread in ("t", "u"):
        put(saver, thread, 1)
    replace_cell(saver, Shelf("t", KIND), [[b"abcd", "t", b"x" * 60]])
    done = saver.keys.renew()
    assert (done.threads, [*done.failed]) == (1, ["t"])
    assert "the keys of 1 cannot be read" in str(done)
    assert length(saver, "u") == 1
    assert saver.keys.renew().threads == 1  # the first renewal has ended, and this is another one


def test_a_renewal_without_keys_or_with_an_invalid_refresh() -> None:
    with pytest.raises(InvalidInput, match="no keyring"):
        MemorySaver().keys.renew()
    saver = MemorySaver(encryption=Keyring(OLD))
    assert saver.keys.renew() == (0, {}, None)
    assert "nothing is sealed yet" in str(saver.keys.renew())
    for refresh in (-1, "60", None, float("nan"), True):
        with pytest.raises(InvalidInput, match="refresh must be a number of seconds"):
            Keyring(OLD, refresh=refresh)  # type: ignore[arg-type]


def test_arenew_renews_the_keys() -> None:
    async def renew() -> None:
        saver = MemorySaver(encryption=Keyring(NEW, OLD))
        await saver.aput(at("t"), FIRST, {"source": "loop", "step": 1, "parents": {}}, {})
        assert await saver.keys.arenew() == (1, {}, "new")

    asyncio.run(renew())


def test_the_renew_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, old, new = f"sqlite:///{tmp_path}/keel.db", new_key("2026"), new_key("2027")
    monkeypatch.setenv("KEEL_KEYS", old)
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring.from_env()) as saver:
        put(saver, "t", 1)
    monkeypatch.setenv("KEEL_KEYS", f"{new} {old}")
    assert keel_json("keys", "renew", "--url", url) == {"threads": 1, "failed": {}, "master": "2027"}
    monkeypatch.setenv("KEEL_KEYS", new)
    said = keel("keys", "renew", "--url", url)
    assert "wrapped with '2027'" in said.stdout
    assert new[10:30] not in said.output
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring.from_env()) as saver:
        assert length(saver, "t") == 1
        replace_cell(saver, Shelf("t", KIND), [[b"abcd", "t", b"x" * 60]])
    assert "'t'" in keel("keys", "renew", "--url", url, status=1).stdout
