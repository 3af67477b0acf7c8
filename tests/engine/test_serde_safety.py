"""Stored bytes can only produce data that the program allows."""

from __future__ import annotations

import dataclasses
import gc
import os
import pathlib
import subprocess
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np
import ormsgpack
import pytest
from langchain_core.documents import Document
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import MessagesState, StateGraph
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send
from support.checkpoints import checkpoint_of, config_for
from support.engine.samples import KEEL, NOW, Colour, Model, Outer, Plain, ai, assert_same, there_and_back
from support.tiers import sized

from langgraph_keel import Decision, MemorySaver, Retention, ToolPolicy
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import array_header, memory_of, takes_more
from langgraph_keel.engine.entries import unpack_header
from langgraph_keel.engine.serde import schemas
from langgraph_keel.engine.serde.serializer import KeelSerializer, encode
from langgraph_keel.engine.serde.types import Leaf, Record
from langgraph_keel.errors import CorruptStore, InvalidInput, RefusedType

# --- What a stored name can reach ---


def record(kind: Record, *parts: Any) -> bytes:
    return ormsgpack.packb([ormsgpack.Ext(kind, b""), *parts])


def forged(module: str, name: str) -> list[bytes]:
    return [
        record(Record.DATACLASS, module, name, {"args": "true"}, {}, []),
        record(Record.DATACLASS, module, name, {"args": "true"}, None),
        record(Record.MODEL, module, name, {"args": "true"}, {}, [], [], None, None),
        record(Record.MODEL, module, name, {"args": "true"}, None),
        record(Record.MODEL_V1, module, name, {"args": "true"}, {}, [], []),
        record(Record.NAMEDTUPLE, module, name, ["args"], ["true"], {}),
        record(Record.SLOTTED, module, name, {"args": "true"}),
        record(Record.BUILTIN, module, name, "str", "true", {}),
        record(Record.BUILTIN, module, name, "int", 1, {}),
        ormsgpack.packb(ormsgpack.Ext(Leaf.ENUM, ormsgpack.packb([module, name, "true"]))),
    ]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("subprocess", "run"), ("builtins", "eval"),
        ("builtins", "bool"), ("builtins", "ValueError"), ("builtins", "type"), ("subprocess", "CalledProcessError"),
        ("os", "environ"), ("os", "stat_result"), ("threading", "Thread"), ("pathlib", "Path"),
        ("functools", "partial"),
        ("os", "path"), ("os", "path.join"), ("subprocess", "Popen.__init__"), ("never.imported", "Thing"), ("os", ""),
        ("", ""), ("support.engine.samples", "Plain.__class__"), ("support.engine.samples", "calls"),
        ("langgraph_keel.errors", "KeelError"),
    ],
)  # fmt: skip
def test_forged_names_are_refused_without_calls_or_imports(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "system", lambda *a, **k: called.append(a))
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *a, **k: called.append(a))
    before = set(sys.modules)
    for data in forged(module, name):
        with pytest.raises((RefusedType, CorruptStore)):
            KEEL.unpack(data)
    assert called == []
    assert set(sys.modules) == before


def test_reading_does_not_import_the_module_of_an_unlisted_class() -> None:
    name = "wsgiref.validate"  # nothing here imports it
    assert name not in sys.modules
    with pytest.raises(RefusedType, match="import its module"):
        KEEL.unpack(record(Record.DATACLASS, name, "Thing", {}, {}, []))
    assert name not in sys.modules


def test_reading_does_not_call_getattr_of_a_lazy_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazily(name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    module = types.ModuleType("lazy_app")
    module.__getattr__ = lazily  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_app", module)
    with pytest.raises(RefusedType):
        KEEL.unpack(record(Record.DATACLASS, "lazy_app", "Thing", {}, {}, []))


def gone() -> Any:
    @dataclasses.dataclass
    class Local:
        a: int

    return Local(1)


def test_a_missing_class_is_refused_unless_listed_in_types() -> None:
    script = """
import dataclasses, sys
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.errors import RefusedType
def make():
    @dataclasses.dataclass
    class Local:
        a: int
    Local.__module__ = "test_serde_safety"
    Local.__qualname__ = "gone.<locals>.Local"
    return Local
data = bytes.fromhex(sys.argv[1])
try:
    KeelSerializer().unpack(data)
except RefusedType as error:
    assert "types=[...]" in str(error), error
else:
    raise SystemExit("revived")
cls = make()
assert KeelSerializer(types=[cls]).unpack(data) == cls(1)
"""
    data = encode(gone()).hex()
    done = subprocess.run([sys.executable, "-c", script, data], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LISTED: dict[str, list[Any]] = {
    "langgraph.types": [Send("n", {"a": 1}), Interrupt("who?"), Command(resume=1), Overwrite([1])],
    "langgraph.store.base": [Item(value={}, key="k", namespace=("n",), created_at=NOW, updated_at=NOW)],
    "langchain_core.documents.base": [Document("x")],
    "langgraph_keel": [Decision("approve", "ann"), ToolPolicy(ttl=3.0), Retention(last=1)],
}
ALONE = """
import sys
from langgraph_keel.engine.serde.serializer import KeelSerializer
module, *stored = sys.argv[1:]
assert not {"langgraph.types", "langgraph_keel.tools.policy"} & set(sys.modules)
for data in map(bytes.fromhex, stored):
    value = KeelSerializer().unpack(data)
    assert type(value).__module__ == module, type(value)
    assert KeelSerializer().pack(value) == data
"""


@pytest.mark.parametrize("module", LISTED)
def test_listed_classes_are_restored_without_prior_imports(module: str) -> None:
    data = [KEEL.pack(value).hex() for value in LISTED[module]]
    done = subprocess.run([sys.executable, "-c", ALONE, module, *data], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


GONE = """
import sys
from langgraph_keel import KeelSerializer, RefusedType
sys.modules["langgraph.types"] = None  # as if it could not be imported
try:
    KeelSerializer().unpack(bytes.fromhex(sys.argv[1]))
except RefusedType as error:
    assert "import its module" in str(error), error
else:
    raise SystemExit("revived")
"""


def test_a_listed_name_that_cannot_be_imported_is_refused() -> None:
    data = KEEL.pack(Send("n", 1)).hex()
    done = subprocess.run([sys.executable, "-c", GONE, data], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Allowlists ---


def test_a_narrow_serializer_revives_only_listed_classes() -> None:
    stored = {name: KEEL.pack(value) for name, value in (("plain", Plain(1)), ("model", Model(a=1)))}
    narrow = KeelSerializer(types=[Plain])
    assert narrow.unpack(stored["plain"]) == Plain(1)
    with pytest.raises(RefusedType, match=r"support\.engine\.samples\.Model: not allowed here") as caught:
        narrow.unpack(stored["model"])
    assert caught.value.type_name == "support.engine.samples.Model"
    assert KeelSerializer(types=[("support.engine.samples", "Model")]).unpack(stored["model"]) == Model(a=1)


@pytest.mark.parametrize("value", [ai(), Send("n", 1), Command(), Interrupt(1), Document("x"), NOW, _DeltaSnapshot(1),
                                   np.arange(3), OrderedDict(a=1), ai().text])  # fmt: skip
def test_a_strict_serializer_revives_plain_data(value: Any) -> None:
    assert_same(there_and_back(value, KeelSerializer(strict=True)), value)
    assert_same(there_and_back(value, KeelSerializer(types=[])), value)


def test_a_strict_serializer_accepts_the_allowlist_of_langgraph() -> None:
    strict = KeelSerializer(strict=True)
    stored = KEEL.pack([Outer.Inner(1), Colour.RED])
    with pytest.raises(RefusedType):
        strict.unpack(stored)
    wider = strict.with_msgpack_allowlist([("support.engine.samples", "Inner"), Colour])
    assert wider.unpack(stored) == [Outer.Inner(1), Colour.RED]
    with pytest.raises(RefusedType):
        strict.unpack(stored)
    assert wider.with_msgpack_allowlist([Colour]) is wider
    assert strict.with_msgpack_allowlist([]) is strict


def unnamed() -> Any:
    """A class in a module, neither named nor stored by any program."""
    made = dataclasses.make_dataclass("Unnamed", [("a", int)])
    made.__module__ = __name__
    setattr(sys.modules[__name__], made.__name__, made)
    return made


def test_an_unlisted_class_is_refused_until_listed_or_stored() -> None:
    cls = unnamed()
    stored, serializer = encode(cls(1)), KeelSerializer()
    with pytest.raises(RefusedType, match=r"Unnamed: not allowed here, .* types=\[...\], as test_serde_safety.Unnamed"):
        serializer.unpack(stored)
    assert serializer.with_msgpack_allowlist([cls]).unpack(stored) == cls(1)
    assert KeelSerializer(types=[cls]).unpack(stored) == cls(1)
    serializer.pack(cls(1))
    assert serializer.unpack(stored) == KeelSerializer().unpack(stored) == cls(1)
    with pytest.raises(RefusedType):
        KeelSerializer(types=[]).unpack(stored)


def test_strict_defaults_to_the_setting_of_langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)
    with pytest.raises(RefusedType):
        KeelSerializer().unpack(KEEL.pack(Plain(1)))
    assert KeelSerializer(strict=False).unpack(KEEL.pack(Plain(1))) == Plain(1)


# --- Damage ---


def test_a_value_of_another_serializer_is_named() -> None:
    with pytest.raises(CorruptStore, match=r"'msgpack'.*JsonPlusSerializer"):
        KEEL.loads_typed(JsonPlusSerializer().dumps_typed({"a": 1}))
    with pytest.raises(CorruptStore, match="'msgpack\\+aes'"):
        KEEL.loads_typed(("msgpack+aes", b""))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x01\x01", b"\x92\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xa1\xff",
        b"\x91" * 5000, b"\xc7\x00\x20" * 3, b"\x92\x01\xc7\x00\x20",
        b"\x81\xa1a\xc7\x00\x20", b"\xd4\x7fa", ormsgpack.packb(ormsgpack.Ext(Leaf.UUID, b"x")),
        ormsgpack.packb(ormsgpack.Ext(Leaf.PATH, b"Popen|x")), record(Record.SET, []), record(Record.DICT, "odd"),
        record(Record.DICT, [], 1), record(Record.RANGE, 1, 2, 0), record(Record.PATTERN, "(", 0),
        record(Record.DEFAULT, "eval"), record(Record.AWARE, 1, None), record(Record.MESSAGE, 99, {}, []),
        record(Record.MESSAGE, -1, {}, []), record(Record.MESSAGE, 0, [], []), record(Record.MESSAGE),
        record(Record.NDARRAY, "|O", [1], "C", b"12345678"), record(Record.NDARRAY, "<i4", [2], "C", b"1234"),
        record(Record.NDARRAY, "<i4", [1], "C", b"12345678"), record(Record.NDARRAY, "<i4", [-1], "C", b""),
        record(Record.NDARRAY, "<i4", [2**62, 2**62], "C", b""), record(Record.SCALAR, "<i4", b""),
        record(Record.DATACLASS, 1, 2, {}, {}, []),
        record(Record.DATACLASS, "support.engine.samples", "Plain", 5, {}, []),
    ],
)  # fmt: skip
def test_damaged_bytes_raise_corrupt_store(data: bytes) -> None:
    KEEL.pack(Plain(1))  # a class that this process has stored comes back
    with pytest.raises(CorruptStore):
        KEEL.unpack(data)
    with pytest.raises(CorruptStore):
        KEEL.unpack_items(array_header(1) + b"\x92\x00" + data)


def test_deeply_nested_records_do_not_crash() -> None:
    for head in (b"\x92\xc7\x00\x20", b"\x92\xc7\x00\x23", b"\x93\xc7\x00\x23\xc0"):
        try:
            KEEL.unpack(head * 1000 + b"\x01")
        except CorruptStore:
            continue


MANY_DIGITS = ormsgpack.Ext(Leaf.BIG_INT, (10**5000).to_bytes(2100, "little", signed=True))
"""A number that Python refuses to print."""


@pytest.mark.parametrize(
    "item",
    [
        [ormsgpack.Ext(Record.RANGE, b""), 0, 2**64 - 1, 1],
        [ormsgpack.Ext(Record.NDARRAY, b""), "<U1", [2], "C", b"\xff" * 8],
        [[ormsgpack.Ext(Record.RANGE, b""), 0, MANY_DIGITS, 1], 1],
        [2, MANY_DIGITS, b""],
        [ormsgpack.Ext(Record.BUILTIN, b""), MANY_DIGITS, MANY_DIGITS, "list", [], {}],
        [0, [ormsgpack.Ext(Record.DEFAULT, b""), MANY_DIGITS]],
        [0, [ormsgpack.Ext(Record.FRACTION, b""), 1, 0]],
        [0, [ormsgpack.Ext(Record.EXCEPTION, b""), "builtins", "ValueError", [], {}, "no cause"]],
        [0, [ormsgpack.Ext(Record.EXCEPTION, b""), "builtins", "ValueError", [], {}, None, None]],
    ],
    ids=["a range", "an array", "a long range", "a long tag", "a long name", "a factory", "1/0", "a cause", "causes"],
)
def test_an_item_of_the_wrong_type_raises_corrupt_store(item: Any) -> None:
    with pytest.raises(CorruptStore):
        KEEL.unpack_items(ormsgpack.packb([[0, 1], item]), loads=lambda data: data)


@pytest.mark.slow
def test_many_elements_are_estimated_not_counted() -> None:
    """Counting the elements of 11 kB of compressed data took 11 s."""
    nothings = b"\xc0" * (10 << 20)
    assert takes_more(nothings, 9 << 20)
    assert not takes_more(nothings, 256 << 20)
    assert 10 << 20 <= memory_of(nothings, 1 << 30) <= 200 << 20


@pytest.mark.parametrize("body", [b"\x91\x01", b"\x91\x90", b"\x91\x92\x03\x01", b"\x91\xa11",
                                  b"\x91\x93\x00\x01\x02",
                                  b"\x80", b"\x01", b"\x91\x81\xa1a\x01",
                                  b"\x91\x92\x01\x00", b"\x91\xc0"])  # fmt: skip
def test_damaged_items_raise_corrupt_store(body: bytes) -> None:
    with pytest.raises(CorruptStore):
        KEEL.unpack_items(body)


def test_foreign_items_are_read_by_their_serializer() -> None:
    theirs = JsonPlusSerializer()
    kind, data = theirs.dumps_typed(("a", 1))
    body = array_header(2) + KEEL.pack_item((1, 2)) + KEEL.pack([2, kind, data])
    assert KEEL.unpack_items(body, loads=theirs.loads_typed) == [(1, 2), ["a", 1]]
    with pytest.raises(CorruptStore, match="'msgpack'"):
        KEEL.unpack_items(body)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 65535, 65536])
def test_array_headers(n: int) -> None:
    assert ormsgpack.unpackb(array_header(n) + b"\x01" * n) == [1] * n
    assert array_header(n) == ormsgpack.packb([1] * n)[: len(array_header(n))]


def test_searching_for_graphs_does_not_corrupt_a_growing_tuple() -> None:
    graphs: list[list[Any]] = []
    rounds = sized(1, 2, 50)
    graph = StateGraph(MessagesState).add_node("node", lambda state: state).set_entry_point("node").compile()

    def build() -> Iterator[int]:
        for number in range(rounds):
            graphs.append(schemas.find_graphs())  # held while the tuple grows, as another thread may do
            yield number

    assert tuple(build()) == tuple(range(rounds))
    assert all(any(each is graph for each in found) for found in graphs)


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


def test_searching_frozen_objects_for_graphs_freezes_others_only_once() -> None:
    """Servers freeze what their workers share; cycles that are frozen later would never be collected."""
    graphs = [StateGraph(MessagesState).add_node("node", lambda state: state).set_entry_point("node").compile()]
    others: list[Any] = [[number] for number in range(100_000)]
    gc.freeze()
    assert graphs[0] in schemas.find_graphs()
    graphs.append(graphs[0].builder.compile())
    node = Node()
    found, kept = schemas.find_graphs(), ref(node)
    assert all(any(each is graph for each in found) for graph in graphs)
    del node
    gc.collect()
    assert kept() is None
    others.clear()  # fewer objects are frozen after another `freeze` than before
    graphs.append(graphs[0].builder.compile())
    gc.freeze()
    found = schemas.find_graphs()
    assert all(any(each is graph for each in found) for graph in graphs)


COUNTERS: list[Any] = [7, ["items"], {"items": 1}, {"items": [1]}]
PARENTS: list[Any] = [7, ["x"], {"": {}}, {"": None}]
MISFITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({}, {"counters_since_delta_snapshot": each}) for each in COUNTERS),
    *(({}, {"parents": each}) for each in PARENTS),
    ({}, {"step": "1"}),
    ({}, {"source": 10**5000}),
    ({"ts": 1}, {}),
    ({}, {"keel_rewound_to": {}}),
    ({}, {"keel_branched_from": ["1"]}),
    ({}, {"keel_forked_from": "t"}),
    ({"v": "4"}, {}),
    ({"channel_versions": ["v"]}, {}),
    ({"versions_seen": {"n": 1}}, {}),
]


@pytest.mark.parametrize(("checkpoint", "metadata"), MISFITS)
def test_header_fields_of_the_wrong_type_are_refused(checkpoint: Any, metadata: Any) -> None:
    """Delta channels' counters select entries for readers, parents those for prunes."""
    with MemorySaver() as saver:
        with pytest.raises(InvalidInput, match=f"{[*checkpoint, *metadata][0]!r} must be an? .*nothing was stored"):
            saver.put(config_for("t"), checkpoint_of("00000001", {"v": 1}) | checkpoint, metadata, {})
        assert saver.get_tuple(config_for("t")) is None
        codec = saver.engine.session.codec
        body = codec.encode([{"v": 4} | checkpoint, metadata, {}])
    with pytest.raises(CorruptStore, match="its header has a part of the wrong type"):
        unpack_header(body, codec, Address("t", "", "1"))
