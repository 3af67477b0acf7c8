"""Reads of a known checkpoint return the same texts and fresh mutable values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.base import SerializerProtocol
from support.checkpoints import checkpoint_of, config_for

from langgraph_keel import CorruptStore, KeelSerializer, MemorySaver, SqliteSaver
from langgraph_keel.engine.memo import Memo
from langgraph_keel.saver import KeelSaver

LONG = "a line of a text that is long enough to be kept\n" * 100


@pytest.fixture
def saver() -> Iterator[SqliteSaver]:
    with SqliteSaver(":memory:") as saver:
        yield saver


def put(saver: KeelSaver, number: int, values: dict[str, Any], thread: str = "t") -> None:
    config = config_for(thread, f"{number - 1:04}" if number else None)
    saver.put(config, checkpoint_of(f"{number:04}", values), {"source": "loop", "step": number, "parents": {}}, {})


def read(saver: KeelSaver, thread: str = "t") -> dict[str, Any]:
    found = saver.get_tuple(config_for(thread))
    assert found
    return found.checkpoint["channel_values"]


def state() -> dict[str, Any]:
    return {
        "draft": LONG,
        "note": "n" * 100,
        "raw": b"\xc4" * 2000,
        "files": {"a.py": LONG, "b.py": LONG + "b", "old": {"c.py": LONG + "c"}},
        "drafts": [LONG, LONG + "1"],
        "mixed": {"text": LONG, "tags": ["x", "y"], "data": bytearray(b"z")},
        "todos": [{"content": f"todo {number}", "done": False} for number in range(3)],
        "count": 7,
    }


def test_reads_share_texts_and_copy_mutable_values(saver: SqliteSaver) -> None:
    values = state()
    put(saver, 0, values)
    first, second = read(saver), read(saver)
    assert first == second == state()
    assert [*first] == [*values]
    assert all(second[name] is values[name] for name in ("draft", "note", "raw"))
    assert second["files"]["old"]["c.py"] is values["files"]["old"]["c.py"]
    for name in ("files", "drafts", "mixed", "todos"):
        assert first[name] is not second[name] is not values[name]
    assert first["files"]["old"] is not second["files"]["old"]


def test_changes_to_a_read_value_do_not_affect_later_reads(saver: SqliteSaver) -> None:
    put(saver, 0, state())
    for _ in range(3):
        found = read(saver)
        assert found == state()
        found["files"]["old"]["c.py"] = "gone"
        found["files"].clear()
        found["drafts"].append("more")
        found["mixed"]["tags"].append("z")
        found["mixed"]["data"] += b"!"
        found["todos"][0]["done"] = True


def test_a_put_after_a_read_is_read_back(saver: SqliteSaver) -> None:
    put(saver, 0, state())
    values = read(saver)
    values["files"] = {**values["files"], "b.py": LONG.replace("line", "row", 1)}
    values["todos"][1]["done"] = True
    values["note"] = "m" * 100
    put(saver, 1, values)
    expected = deepcopy(values)
    assert read(saver) == read(saver) == expected


class Shouting(SerializerProtocol):
    """Returns another value than it was given."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "shout", KeelSerializer().pack(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        value = KeelSerializer().unpack(data[1])
        return value.upper() if isinstance(value, str) else value


def test_another_serializer_decodes_every_read() -> None:
    with SqliteSaver(":memory:", serde=Shouting()) as saver:
        put(saver, 0, {"draft": LONG, "note": "n" * 100})
        assert read(saver) == read(saver) == {"draft": LONG.upper(), "note": "N" * 100}
        saver.serde = KeelSerializer()
        with pytest.raises(CorruptStore, match="another serializer"):
            read(saver)


def test_sources_of_copies_count_towards_the_memo_size(saver: SqliteSaver) -> None:
    put(saver, 0, {"todos": [{"content": "c" * 100} for _ in range(40)]})
    memo = saver.engine.session.memo
    base = memo.get(("t", ""))
    assert base
    before = base.weight
    for _ in range(2):
        read(saver)
        assert base.weight == before, "who reads once or twice does not keep it"
    read(saver)
    assert base.weight > before + 40 * (100 + 200)
    small = Memo(10, before + 1000)
    small.set(("t", ""), base)
    kept = small.get(("t", ""))
    assert kept, "an entry is not forgotten for its copies"
    assert not kept.version
    assert kept.weight == before


@pytest.mark.parametrize("place", [0, 31, 32, 40, 64, 95, 96, 99])
def test_an_in_place_edit_of_a_long_list_is_found(place: int) -> None:
    """Bytes have no proof of their own, so their block is compared item by item."""
    records: list[Any] = [{"id": number, "seen": 0} for number in range(100)]
    records[40], records[70] = b"\xc4bytes", bytearray(b"a buffer")
    with MemorySaver() as saver:
        put(saver, 0, {"records": records})
        for step, new in enumerate([{"id": place, "seen": 1}, {"id": place, "seen": True}, bytearray(b"\xc4bytes")], 1):
            records[place] = new
            expected = deepcopy(records)
            put(saver, step, {"records": records})
            found = read(saver)["records"]
            assert found == expected
            assert [*map(type, found)] == [*map(type, expected)]


def test_a_saver_that_only_reads_starts_no_writer_thread(tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path) as saver:
        put(saver, 0, state())
    lock = tmp_path / "keel.db.lock"
    lock.unlink()
    before = threading.enumerate()
    with SqliteSaver(path) as saver:
        assert read(saver) == state()
        assert not lock.exists()
        assert "keel-writer" not in {thread.name for thread in threading.enumerate() if thread not in before}
        put(saver, 1, state())
        assert lock.exists()
