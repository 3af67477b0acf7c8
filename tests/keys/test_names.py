"""With `hide_names=True` no backend knows a name.

Hidden are the names of channels, namespaces, tasks and nodes, and labels and owners.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from golden.kinds import TYPES
from golden.seen import seen
from langgraph.graph import START, MessagesState, StateGraph
from support.cli_threads import keel, keel_json
from support.retention.threads import BACKENDS
from support.saver_parts import driver_of
from test_scan import tell, write

from langgraph_keel import (
    FileSaver,
    InvalidInput,
    KeelSaver,
    KeyMissing,
    Keyring,
    LocalKey,
    MemorySaver,
    ReadOnlyStore,
    Retention,
    SealBroken,
    SqliteSaver,
    open_saver,
)
from langgraph_keel.engine.engine import bare, with_engine
from langgraph_keel.engine.plan import run
from langgraph_keel.keys.datakeys import KEY as CELL
from langgraph_keel.keys.datakeys import STORE
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.keys.names import Names
from langgraph_keel.keys.storekey import parse_cell
from langgraph_keel.testing.faults import Counter, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of

KEY = LocalKey("k1", bytes(range(32)))
OPEN, HIDING, EITHER = (Keyring(KEY, hide_names=hide) for hide in (False, True, None))
MARK = "Zw9qNameOfSomebody"
STEP: Any = {"source": "loop", "step": 1, "parents": {}}
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


# -- the contents of a store -------------------------------------------------------------------------------------------


def hashes_of(name: str) -> list[str]:
    """Hashes that an attacker without a key could use to confirm a guessed name."""
    return [sha256(name.encode()).hexdigest()[:32], sha256(name.encode()).digest()[:16].hex()]


def found_in(raw: bytes, texts: Collection[str]) -> set[str]:
    return {text for text in texts if text.encode() in raw}


@each_backend
def test_a_store_contains_no_hidden_name(store: Any, backend: str) -> None:
    with store.open(encryption=HIDING) as saver:
        tell(saver, MARK, names=True)
        raw = store.raw()
    assert found_in(raw, [MARK, MARK[4:], *hashes_of(MARK)]) == set()
    store.wipe()
    with store.open(encryption=OPEN) as saver:  # as a control, the scan finds plain names
        tell(saver, MARK, names=True)
        assert found_in(store.raw(), [MARK, *hashes_of(MARK)]) >= {MARK, hashes_of(MARK)[0]}


@pytest.mark.parametrize(("kind", "name"), [(SqliteSaver, "keel.db"), (FileSaver, "")], ids=["sqlite", "files"])
def test_no_file_or_file_name_contains_a_hidden_name(tmp_path: Path, kind: Any, name: str) -> None:
    with kind(tmp_path / name, encryption=HIDING) as saver:
        tell(saver, MARK, names=True)
        parts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        parts += [str(path).encode() for path in tmp_path.rglob("*")]
    assert found_in(b"\n".join(parts), [MARK, *hashes_of(MARK)]) == set()


@pytest.mark.slow
@each_backend
def test_a_store_contains_no_name_of_the_golden_story(stores: Any, backend: str) -> None:
    """All channels, namespaces and nodes that its savers show."""

    def open_(**options: Any) -> KeelSaver:
        saver: KeelSaver = stores[backend].open(encryption=HIDING, **options)
        return saver

    with open_() as saver:
        saver.retention.set_policy(Retention(last=9))
        empty = stores[backend].raw()
    write(open_)
    names: set[str] = set()
    with open_(types=TYPES) as saver:
        told = seen(saver)
        for thread in told["thread"]:
            for found in saver.list(at(thread)):
                names |= {*found.checkpoint["channel_values"], *found.checkpoint["channel_versions"]}
                names |= {*found.checkpoint["versions_seen"], found.config["configurable"]["checkpoint_ns"]}
                names |= {part for write in found.pending_writes or () for part in write[:2] if isinstance(part, str)}
    known = b"\n".join([empty, *(thread.encode() for thread in told["thread"])])
    names = {name for name in names if len(name) > 4 and name.encode() not in known}
    assert len(names) > 15
    assert found_in(stores[backend].raw(), names) == set()
    stores[backend].wipe()


def test_task_ids_that_can_be_guessed_are_hidden(tmp_path: Path) -> None:
    """LangGraph derives a task's id from its node and namespace, without a key."""

    def fail(state: MessagesState) -> None:
        raise ValueError("no")

    with SqliteSaver(tmp_path / "keel.db", encryption=HIDING) as saver:
        builder = StateGraph(MessagesState).add_node("fail", fail).add_edge(START, "fail")
        graph: Any = builder.compile(checkpointer=saver)
        with pytest.raises(ValueError, match="no"):
            graph.invoke({"messages": ["hi"]}, at("t"))
        (task,) = graph.get_state(at("t")).tasks
        assert task.error is not None
        parts = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert found_in(parts, [task.id, task.id.replace("-", ""), "branch:to", "messages", "__start__"]) == set()


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a", "a" * 15, "a" * 16, "nul\0", "\0", "\x80", "ä€😀", "\ud800", "x" * 10_000])
def test_a_hidden_name_can_be_opened(name: str) -> None:
    names, other, again = Names(bytes(32)), Names(b"x" * 32), Names(bytes(32))
    token = names.hide(b"channel", name)
    assert token == again.hide(b"channel", name)
    assert again.open(b"channel", token) == Names(bytes(32)).open(b"channel", token) == name
    assert token.isascii()
    assert token not in (other.hide(b"channel", name), names.hide(b"namespace", name))
    for changed in (token[:-4], "A" + token[1:], token.swapcase(), "", "messages", "%%%", "é"):
        with pytest.raises(SealBroken, match="is not a token of a channel"):
            Names(bytes(32)).open(b"channel", changed)
    with pytest.raises(SealBroken, match="namespace"):
        names.open(b"namespace", token)


def test_sizes_of_names_are_padded() -> None:
    names = Names(bytes(32))
    assert len({len(names.hide(b"channel", "n" * size)) for size in range(16)}) == 1
    assert len({len(names.hide(b"channel", "n" * size)) for size in range(1000)}) == 63


def test_more_names_than_the_cache_holds_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_keel.keys.names._MOST", 3)
    names = Names(bytes(32))
    tokens = [names.hide(b"channel", f"name {number}") for number in range(10)]
    assert [names.open(b"channel", token) for token in tokens] == [f"name {number}" for number in range(10)]


def test_hashes_in_keys_are_permuted() -> None:
    names, whole = Names(bytes(32)), sha256(b"ann").hexdigest()
    assert names.open_key(names.hide_key(whole)) == whole != names.hide_key(whole)
    joined = f"{whole[:32]}-{sha256(b'other').hexdigest()}"
    assert names.hide_key(joined).startswith(names.hide_key(f"{whole[:32]}-"))
    assert names.open_key(names.hide_key(joined)) == joined
    assert names.hide_key("at") == "at"


# -- stores that hide names and stores that do not ---------------------------------------------------------------------


def put(saver: KeelSaver, thread_id: str = "t", number: int = 1) -> Any:
    found = saver.get_tuple(at(thread_id))
    checkpoint: Any = checkpoint_of(f"{number:08}", {"list": [f"item {nth}" for nth in range(number)]})
    return saver.put(found.config if found else at(thread_id), checkpoint, STEP, {})


@each_backend
@pytest.mark.parametrize("first", [OPEN, HIDING], ids=["open", "hiding"])
def test_a_mismatch_of_hide_names_is_refused_before_writing(store: Any, backend: str, first: Keyring) -> None:
    other = OPEN if first is HIDING else HIDING
    with store.open(encryption=first) as saver:
        for view in (saver, saver.for_tenant("acme")):
            put(view)
    before = store.raw()
    said = f"hide_names={first.hide_names}"
    for verb in (
        lambda saver: saver.get_tuple(at("t")),
        lambda saver: put(saver, "new"),
        lambda saver: saver.put(at("new"), checkpoint_of("1", {}), STEP, {}),
        lambda saver: saver.put_writes(at("new", "ns", "1"), [("a", 1)], "task"),
        lambda saver: list(saver.list(None)),
        lambda saver: [*saver.threads()],
        lambda saver: saver.copy_thread("t", "u"),
        lambda saver: saver.prune(["t"]),
        lambda saver: saver.labels.set(at("t"), "name"),
        lambda saver: saver.keys.rotate(),
        lambda saver: saver.keys.renew(),
    ):
        with store.open(encryption=other) as saver:
            for view in (saver, saver.for_tenant("acme")):
                with pytest.raises(InvalidInput, match=said):
                    verb(view)
    assert store.raw() == before
    with store.open(encryption=EITHER) as saver:  # as commands do
        for view in (saver, saver.for_tenant("acme")):
            put(view, number=2)
    with store.open(encryption=first) as saver:
        assert len(saver.get_tuple(at("t")).checkpoint["channel_values"]["list"]) == 2


def test_a_new_store_hides_no_names_by_default() -> None:
    saver = MemorySaver(encryption=EITHER)
    put(saver)
    state: Any = driver_of(saver).state
    assert {name for _, name in state["t"].logs} == {"list"}


@each_backend
def test_reads_of_an_empty_store_create_no_keys(store: Any, backend: str) -> None:
    before = store.raw()
    with store.open(encryption=HIDING) as saver:
        assert saver.get_tuple(at("t", "sub")) is None
        assert [*saver.list(None)] == [*saver.threads()] == []
        assert saver.labels.list("t") == []
    assert store.raw() == before


@pytest.mark.parametrize("value", ["yes", 1, 0, 2.0, []])
def test_an_invalid_hide_names_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="hide_names must be"):
        Keyring(KEY, hide_names=value)


def test_migrate_and_hide_names_cannot_be_combined() -> None:
    with pytest.raises(InvalidInput, match="cannot be combined"):
        Keyring(KEY, migrate=True, hide_names=True)


# -- everything else is unchanged --------------------------------------------------------------------------------------


@each_backend
def test_names_of_any_length(store: Any, backend: str) -> None:
    with store.open(encryption=HIDING) as saver:
        for nth, name in enumerate(["", "n" * 180, "n" * 181, "ä€" * 900, "n" * 5000, "a|b:c", "per%cent/slash\\ '\""]):
            values = {name: [nth] * 3, f"{name}!": "text " * 900}
            config: Any = at("t", name)
            for number in range(1, 4):
                checkpoint: Any = checkpoint_of(f"{number:08}", {**values, "number": number})
                config = saver.put(config, checkpoint, STEP, {})
                saver.put_writes(config, [(name, nth)], name or "task", name)
            found: Any = saver.get_tuple(at("t", name))
            assert found.checkpoint["channel_values"] == {**values, "number": 3}
            assert found.pending_writes == [(name or "task", name, nth)]
        saver.copy_thread("t", "u")
        saver.prune(["t"], strategy="keep_latest")
    with store.open(encryption=HIDING) as saver:
        assert len([*saver.list({"configurable": {"thread_id": "u"}})]) == 21
        for thread in ("t", "u"):
            found = saver.get_tuple(at(thread, name))
            assert found.checkpoint["channel_values"] == {**values, "number": 3}
            assert found.pending_writes == [(name, name, nth)]


@each_backend
def test_later_puts_and_reads_take_one_round_trip(store: Any, backend: str) -> None:
    counter, keyring = Counter(), Keyring(KEY, hide_names=True, refresh=float("inf"))
    saver = with_tap(store.open(encryption=keyring), counter)
    put(saver)
    for number in range(2, 5):
        counter.taken()
        config = put(saver, number=number)
        assert counter.taken() == 2  # the write reads, too
        saver.put_writes(config, [("a", 1)], f"task {number}")
        assert counter.taken() == 1
    other = with_tap(store.open(encryption=keyring), counter)
    other.get_tuple(at("t"))
    assert counter.taken() <= 3


def test_a_renewal_keeps_names_readable(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", encryption=HIDING) as saver:
        put(saver)
        saver.labels.set(at("t"), "name")
        saver.keys.renew()
        put(saver, number=2)
    with SqliteSaver(tmp_path / "keel.db", encryption=HIDING) as saver:
        saver.keys.renew()
        put(saver, number=3)
        assert [len(found.checkpoint["channel_values"]["list"]) for found in saver.list(at("t"))] == [3, 2, 1]
        assert [label.name for label in saver.labels.list("t")] == ["name"]


@pytest.mark.parametrize("keyring", [None, OPEN, HIDING], ids=["plain", "sealed", "hiding"])
def test_a_store_restored_while_open_is_read_correctly(tmp_path: Path, keyring: Keyring | None) -> None:
    """SQLite counts stamps: after a restore, a stamp may belong to another checkpoint."""
    path = tmp_path / "keel.db"
    with SqliteSaver(path, encryption=keyring) as saver, SqliteSaver(path, encryption=keyring) as other:
        config = saver.put(at("t"), checkpoint_of("1", {"x": 1}), {}, {})  # type: ignore[arg-type]
        with closing(sqlite3.connect(path)) as file, closing(sqlite3.connect(":memory:")) as backup:
            file.backup(backup)
            saver.put(config, checkpoint_of("2", {"x": 2}), {}, {})  # type: ignore[arg-type]
            backup.backup(file)
        config = other.put(at("t", "", "1"), checkpoint_of("3", {"x": 3}), {}, {})  # type: ignore[arg-type]
        other.put_writes(config, [("x", 4)], "task")
        found = saver.get_tuple(at("t"))
        assert found
        assert found.checkpoint["id"] == "3"
        assert found.checkpoint["channel_values"] == {"x": 3}
        assert found.pending_writes == [("task", "x", 4)]


def test_a_changed_name_raises_seal_broken(caplog: pytest.LogCaptureFixture) -> None:
    saver = MemorySaver(encryption=HIDING)
    for thread in ("t", "u"):
        put(saver, thread)
    state: Any = driver_of(saver).state
    (record,) = state["t"].records.values()
    (name,) = record.entry.refs
    record.entry.refs[name[:-1]] = record.entry.refs.pop(name)
    other = MemorySaver(encryption=HIDING)
    saver = with_engine(other, other.engine.with_drivers(saver.engine.driver, saver.engine.async_driver))
    with pytest.raises(SealBroken, match="is not a token of a channel"):
        saver.get_tuple(at("t"))
    with caplog.at_level(logging.WARNING):
        assert {info.thread_id for info in saver.threads()} == {"t", "u"}
    assert "is not a token of a channel" in caplog.text


@pytest.mark.parametrize("renewed", [False, True])
def test_a_removed_key_of_names_is_detected(tmp_path: Path, renewed: bool) -> None:
    """An attacker removes it; a saver that accepts `None` would write plain names."""
    path = tmp_path / "keel.db"
    with SqliteSaver(path, encryption=HIDING) as saver:
        put(saver)
        if renewed:
            saver.keys.renew()
    with SqliteSaver(path) as plain:
        engine = plain.engine
        driver = bare(engine.driver)  # the plain driver does not refuse an encrypted store
        cell = run(engine.session.store.read_cells(STORE, [CELL]), driver)[CELL]
        without = replace(parse_cell(cell), names=None).to_cell()
        run(engine.session.store.swap_cell(STORE, CELL, cell.token, without), driver)
    for keyring in (EITHER, OPEN):
        with SqliteSaver(path, encryption=keyring) as saver, pytest.raises(KeyMissing):
            put(saver, "new")


def test_commands_need_only_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/keel.db"
    monkeypatch.setenv("KEEL_KEYS", new_key("k"))
    with open_saver(url, encryption=Keyring.from_env(hide_names=True)) as saver:
        put(saver)
        put(saver, number=2)
        saver.labels.set(at("t"), "name")
    assert "item 1" in keel("show", "t", "--url", url).stdout
    assert "name" in keel("timeline", "t", "--url", url).stdout
    assert keel_json("check", "--url", url)["clean"]
    assert "0 threads" not in keel("keys", "renew", "--url", url).stdout
    with (
        open_saver(url, encryption=Keyring.from_env(), read_only=True) as saver,
        pytest.raises((InvalidInput, ReadOnlyStore), match="hide_names=True"),
    ):
        saver.get_tuple(at("t"))
