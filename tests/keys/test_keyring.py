"""Keyrings: sources of keys, refused keys, and that no secret is shown."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cli_threads import keel, keel_json
from support.retention.threads import BACKENDS

from langgraph_keel import InvalidInput, KeelSaver, KeyMissing, Keyring, LocalKey, MemorySaver, SqliteSaver
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.keys.sealing import padded_size
from langgraph_keel.testing.faults import Counter, Meanwhile, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of

SECRET = bytes(range(32))
SHOWN = b64encode(SECRET).decode()


def test_a_keyring_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEL_KEYS", f" new:{SHOWN},\nold:{SHOWN} ")
    keyring = Keyring.from_env()
    assert (keyring.ids, keyring.current.id) == (("new", "old"), "new")
    assert keyring.current.unwrap(keyring.get("old").wrap(b"k" * 32, b"here"), b"here") == b"k" * 32


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_a_keyring_is_read_only_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "keel.keys"
    path.write_text(f"# of this year\n{new_key('2026')}\n# of the last one\nold:{SHOWN}\n")
    path.chmod(0o600)
    assert Keyring.from_file(path).ids == ("2026", "old")
    for mode in (0o640, 0o604, 0o660, 0o644):
        path.chmod(mode)
        with pytest.raises(InvalidInput, match=f"mode {mode:04o}.*chmod 600"):
            Keyring.from_file(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "KEEL_KEYS is not set"),
        (SHOWN, "key 1 of the variable KEEL_KEYS is not valid"),
        (f"a:{SHOWN[:-4]}", "44 characters. Was it truncated"),
        (f"a:{SHOWN} b:{SHOWN}x", "key 2"),
        (f"a b:{SHOWN}", "key 1"),
        (f"a/b:{SHOWN}", "key 1"),
        (f"a:{SHOWN},a:{SHOWN}", "two keys of a keyring have the same name: a, a"),
        (f"a:{b64encode(bytes(32)).decode()}", "is not random"),
    ],
)
def test_an_invalid_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setenv("KEEL_KEYS", text)
    with pytest.raises(InvalidInput, match=said) as refused:
        Keyring.from_env()
    assert SHOWN[:20] not in str(refused.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Keyring(),
        lambda: Keyring(SECRET),  # type: ignore[arg-type]
        lambda: LocalKey("", SECRET),
        lambda: LocalKey("a b", SECRET),
        lambda: LocalKey("a", SECRET[:16]),
        lambda: LocalKey("a", SHOWN),  # type: ignore[arg-type]
        lambda: LocalKey("a", b"a" * 32),
        lambda: MemorySaver(encryption=SHOWN),  # type: ignore[arg-type]
        lambda: MemorySaver(encryption=SHOWN.encode()),  # type: ignore[arg-type]
        lambda: MemorySaver(encryption=LocalKey("a", SECRET)),  # type: ignore[arg-type]
        lambda: MemorySaver().keys.rotate(),
        lambda: MemorySaver().keys.list(),
    ],
)
def test_invalid_keyrings_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert SHOWN[:20] not in str(refused.value)


def test_no_repr_shows_a_secret() -> None:
    keyring = Keyring(LocalKey("a", SECRET))
    saver = MemorySaver(encryption=keyring)
    text = f"{keyring!r} {keyring.current!r} {saver!r} {saver.engine.session.store!r} {vars(saver)!r}"
    assert "<Keyring a>" in text
    assert SHOWN not in text
    assert repr(SECRET)[2:20] not in text


def put(saver: KeelSaver, number: int, parent: Any = None) -> Any:
    checkpoint: Any = checkpoint_of(f"{number:08}", {"list": [f"item {n}" for n in range(number)]})
    return saver.put(parent or at("t"), checkpoint, {"source": "loop", "step": number, "parents": {}}, {})


def values(saver: KeelSaver) -> Any:
    found = saver.get_tuple(at("t"))
    assert found is not None
    return found.checkpoint["channel_values"]


def test_a_master_key_is_rotated_while_others_write(tmp_path: Path) -> None:
    old, new = LocalKey("old", SECRET), LocalKey("new", SECRET[::-1])
    path = tmp_path / "keel.db"
    with SqliteSaver(path, encryption=Keyring(old)) as before, SqliteSaver(path, encryption=Keyring(new, old)) as both:
        assert (before.keys.list().needed, before.keys.list().is_current) == (None, True)
        config = put(before, 1)
        assert (both.keys.list().needed, both.keys.list().current) == ("old", "new")
        assert not both.keys.list().is_current
        assert both.keys.rotate().needed == "old"
        assert both.keys.rotate().is_current
        config = put(before, 2, config)  # its program was not restarted
        put(both, 3, config)
        assert len(values(before)["list"]) == 3
    with SqliteSaver(path, encryption=Keyring(new)) as after:
        assert len(values(after)["list"]) == 3
    with SqliteSaver(path, encryption=Keyring(old)) as gone, pytest.raises(KeyMissing, match=r"'new'.*has old"):
        values(gone)


def test_a_different_key_with_the_same_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path, encryption=Keyring(LocalKey("a", SECRET))) as saver:
        put(saver, 1)
    other = Keyring(LocalKey("a", SECRET[::-1]))
    with SqliteSaver(path, encryption=other) as saver, pytest.raises(KeyMissing, match="'a' does not open"):
        values(saver)
    with SqliteSaver(path) as saver, pytest.raises(KeyMissing, match="this store is encrypted"):
        values(saver)


class Service:
    """A key management service with its own key, which can refuse."""

    id = "service"

    def __init__(self) -> None:
        self._key = LocalKey("inside", SECRET)
        self.asked: list[str] = []
        self.is_down = False

    def wrap(self, key: bytes, context: bytes) -> bytes:
        self.asked.append("wrap")
        return self._key.wrap(key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        self.asked.append("unwrap")
        if self.is_down:
            raise ConnectionError("no route")
        return self._key.unwrap(wrapped, context)


def test_each_saver_asks_the_key_service_once_to_unwrap(tmp_path: Path) -> None:
    service = Service()
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(service)) as saver:
        config = put(saver, 1)
        put(saver, 2, config)
        saver.copy_thread("t", "u")
        assert service.asked == ["wrap", "unwrap"]
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring(service)) as saver:
        assert len(values(saver)["list"]) == 2
        assert service.asked == ["wrap", "unwrap", "unwrap"]
    service.is_down = True
    saver = SqliteSaver(tmp_path / "keel.db", encryption=Keyring(service))
    with saver, pytest.raises(KeyMissing, match="ConnectionError"):
        values(saver)


@pytest.mark.parametrize("backend", BACKENDS)
def test_later_puts_and_reads_take_one_round_trip(stores: Any, backend: str) -> None:
    keyring, counter = Keyring(LocalKey("a", SECRET), refresh=float("inf")), Counter()

    def opened() -> KeelSaver:
        return with_tap(stores[backend].open(encryption=keyring), counter)

    def trips(call: Callable[[], Any]) -> int:
        counter.taken()
        call()
        return counter.taken()

    saver, configs = opened(), [at("t")]
    assert trips(lambda: configs.append(put(saver, 1))) <= 6
    for number in range(2, 6):
        assert trips(lambda: configs.append(put(saver, number, configs[-1]))) == 1  # noqa: B023
        assert trips(lambda: saver.put_writes(configs[-1], [("a", 1)], f"task {number}")) == 1  # noqa: B023
        assert trips(lambda: saver.get_tuple(at("t"))) == 1
    assert trips(lambda: put(saver, 6, at("t", "", "00000002"))) <= 3  # a branch
    other = opened()
    assert trips(lambda: other.get_tuple(at("t"))) <= 3
    assert trips(lambda: other.get_tuple(at("t"))) == 1
    assert trips(lambda: list(other.list(at("t"), limit=2))) <= 2
    stores[backend].wipe()


def test_sizes_are_padded_to_steps() -> None:
    sizes = [padded_size(size) for size in range(1, 100_000)]
    assert sizes[:64] == [64] * 64
    assert all(size <= padded <= max(64, size * 1.125) for size, padded in enumerate(sizes, 1))
    assert len(set(sizes)) < 200


def test_commands_create_show_and_rotate_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/keel.db"
    made = keel_json("keys", "new", "2026")
    assert made["key"].startswith("2026:")
    monkeypatch.setenv("KEEL_KEYS", made["key"])
    with SqliteSaver(tmp_path / "keel.db", encryption=Keyring.from_env()) as saver:
        put(saver, 1)
    shown = keel_json("keys", "show", "--url", url)
    assert shown == {"needed": "2026", "current": "2026", "fault": "", "is_current": True}
    assert "item 0" in keel("show", "t", "--url", url).stdout
    monkeypatch.setenv("KEEL_KEYS", f"{new_key('2027')} {made['key']}")
    rotated = keel_json("keys", "rotate", "--url", url)
    assert rotated == {"before": "2026", "now": "2027"}
    assert "'2027' is current" in keel("keys", "show", "--url", url).stdout
    monkeypatch.delenv("KEEL_KEYS")
    assert "KEEL_KEYS_FILE" in keel("show", "t", "--url", url, status=1).output


@pytest.mark.parametrize("trip", range(6))
def test_a_thread_deleted_during_its_first_put_stays_readable(tmp_path: Path, trip: int) -> None:
    keyring = Keyring(LocalKey("a", SECRET))
    with SqliteSaver(tmp_path / "keel.db", encryption=keyring) as other:
        put(other, 1)
        with SqliteSaver(tmp_path / "keel.db", encryption=keyring) as saver:
            other.delete_thread("t")
            put(with_tap(saver, Meanwhile(trip, lambda: other.delete_thread("t"))), 2)
        found = other.get_tuple(at("t"))
        assert found is None or len(found.checkpoint["channel_values"]["list"]) == 2
        put(other, 3)
        assert len(values(other)["list"]) == 3
