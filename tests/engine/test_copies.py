"""Fresh copies of a decoded value are equal, and share no mutable part."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, ConfigDict, PrivateAttr
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.engine.samples import VALUES, assert_same
from support.engine.values import values
from support.tiers import examples

from langgraph_keel import KeelSerializer, RefusedType, SqliteSaver
from langgraph_keel.engine.encoding.bodies import HUGE_ROW
from langgraph_keel.engine.encoding.values import COPIED
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.serde.copies import DEEPEST, Copies, Uncopied
from langgraph_keel.engine.serde.unpack import set_model
from langgraph_keel.saver import KeelSaver

KEEL = KeelSerializer()
LONG = "a line of a text that is long enough to be kept\n" * 100


@dataclass
class Account:
    owner: str
    tags: list[str] = field(default_factory=list)


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    items: list[str]
    total: int = 0
    _seen: list[int] = PrivateAttr(default_factory=list)


HOLDERS = ("__dict__", "__pydantic_private__", "__pydantic_extra__", "__pydantic_fields_set__")


def parts_of(value: Any) -> Iterator[Any]:
    """Return all mutable parts of a value, including itself."""
    if isinstance(value, (dict, list, set, tuple, frozenset)):
        inner = [*value, *value.values()] if isinstance(value, dict) else [*value]
    else:
        inner = [part for name in HOLDERS if (part := getattr(value, name, None))]
    if not isinstance(value, (tuple, frozenset, type)) and (inner or isinstance(value, (dict, list, set))):
        yield value
    for part in inner:
        yield from parts_of(part)


def check_copies(value: Any) -> bool:
    """Copy a value as it is read back; return whether it can be copied."""
    decoded = KEEL.unpack(KEEL.pack(value))
    kept = [*parts_of(decoded)]
    try:
        copies = Copies(decoded, COPIED)
    except Uncopied:
        return False
    first, second = copies.make(), copies.make()
    assert_same(first, value)
    assert_same(second, value)
    ids = [{id(part) for part in parts} for parts in (kept, [*parts_of(first)], [*parts_of(second)])]
    assert sum(map(len, ids)) == len(set.union(*ids))
    assert copies.nbytes > 0
    return True


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copies_equal_the_stored_value(value: Any) -> None:
    check_copies(value)
    check_copies({"here": [value, {"there": value}]})


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(values, st.lists(values, max_size=4), st.dictionaries(st.text(max_size=3), values, max_size=4)))
def test_copies_of_random_values(value: Any) -> None:
    check_copies(value)


def everyday() -> list[Any]:
    order = Order(items=["tea"], note={"gift": [True]})  # type: ignore[call-arg]
    order._seen.append(1)
    message = AIMessage("yes", id="1", tool_calls=[{"name": "pay", "args": {"sum": [1]}, "id": "2"}])
    return [
        {"a": {"b": [1, {"c": []}]}, "t": (1, "x"), "s": {1, 2}, "when": datetime(2026, 1, 1, tzinfo=UTC)},
        [{"content": "todo", "done": False}] * 3,
        [message, HumanMessage("no", id="3")],
        [Account("ann", ["x"]), Account("bob"), order],
    ]


@pytest.mark.parametrize("value", everyday())
def test_everyday_values_can_be_copied(value: Any) -> None:
    assert check_copies(value)


def test_deep_or_large_values_are_not_copied() -> None:
    deep: Any = []
    for _ in range(DEEPEST + 1):
        deep = [deep]
    assert not check_copies(deep)
    assert check_copies(deep[0])
    assert not check_copies([{"text": "x" * 100} for _ in range(COPIED // 100)])


@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: {1: [value]}, lambda value: Order(items=[], **value)]
)
def test_dict_keys_count_towards_the_size_of_copies(wrap: Any) -> None:
    """A dict whose keys are texts of 100 KB takes memory, though its values take none."""
    keys = {f"{nth}" + "k" * 100_000: nth for nth in range(6)}
    assert not check_copies(wrap(keys))
    few = KEEL.unpack(KEEL.pack(wrap(dict(list(keys.items())[:2]))))
    assert Copies(few, COPIED).nbytes > 200_000


class Vain(BaseModel):
    """A class whose code must never run: neither to weigh nor to inspect a value."""

    items: list[int]

    def __sizeof__(self) -> int:
        raise AssertionError("it was asked for its size")

    def __getattribute__(self, name: str) -> Any:
        if name in ("items", "__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__"):
            raise AssertionError(f"it was asked for {name}")
        return super().__getattribute__(name)


def test_copying_runs_no_code_of_a_class() -> None:
    vain = Vain.__new__(Vain)
    set_model(vain, {"items"}, None, None)
    object.__getattribute__(vain, "__dict__")["items"] = [1]
    (made,) = Copies([vain], COPIED).make()
    assert object.__getattribute__(made, "__dict__") == {"items": [1]}


# -- by a saver ------------------------------------------------------------------------------------------------


@pytest.fixture
def saver() -> Iterator[SqliteSaver]:
    with SqliteSaver(":memory:") as saver:
        yield saver


def put(saver: KeelSaver, number: int, state: dict[str, Any], thread: str = "t") -> None:
    config = config_for(thread, f"{number - 1:04}" if number else None)
    metadata: Any = {"source": "loop", "step": number, "parents": {}, "tags": ["a", {"b": 1}]}
    checkpoint: Any = {**checkpoint_of(f"{number:04}", state), **versions_of(state)}
    saver.put(config, checkpoint, metadata, {})


def versions_of(state: dict[str, Any]) -> Any:
    return {"channel_versions": dict.fromkeys(state, 1), "versions_seen": {"node": dict.fromkeys(state, 1)}}


def read(saver: KeelSaver, thread: str = "t") -> dict[str, Any]:
    found = saver.get_tuple(config_for(thread))
    assert found
    return found.checkpoint["channel_values"]


def state_of(step: int) -> dict[str, Any]:
    return {
        "draft": LONG + str(step),
        "kept": {"tags": ["x", "y"], "text": "n" * 300},
        "accounts": [Account("ann", ["x"]), Account(f"{step}")],
        "chat": [HumanMessage(f"{nth}", id=f"{nth}") for nth in range(3 + step)],
        "todos": [{"content": f"{nth}", "done": nth < step} for nth in range(4)],
        "count": step,
        "extra": None if step % 2 else [1.5, {"deep": [step]}],
    }


@pytest.mark.parametrize("reads", [1, 2, 3, 7])
def test_reads_between_puts(saver: SqliteSaver, reads: int) -> None:
    """A read is always right, after any number of other reads and any edits of these."""
    for step in range(5):
        if step == 3:
            dropped = state_of(step)
            del dropped["kept"]
            put(saver, step, dropped)
            expected = dropped
        else:
            put(saver, step, state_of(step))
            expected = state_of(step)
        for _ in range(reads):
            found = saver.get_tuple(config_for("t"))
            assert found
            got = found.checkpoint["channel_values"]
            assert [*got] == [*expected]
            assert_same(got, expected)
            assert found.metadata["tags"] == ["a", {"b": 1}]  # type: ignore[typeddict-item]
            assert found.checkpoint["id"] == f"{step:04}"
            assert found.checkpoint.items() >= versions_of(expected).items()
            for part in [*parts_of(found.checkpoint), *parts_of(found.metadata)]:  # LangGraph changes its input
                if isinstance(part, (list, dict, set)):
                    part.clear()


def test_versions_of_a_list_share_no_mutable_parts(saver: SqliteSaver) -> None:
    for step in range(6):
        put(saver, step, state_of(step))
    found = [each.checkpoint["channel_values"] for each in saver.list(config_for("t"))]
    for step, got in zip(range(5, -1, -1), found, strict=True):
        assert_same(got, state_of(step))
    ids = [{id(part) for part in parts_of(got)} for got in found]
    assert sum(map(len, ids)) == len(set().union(*ids))


def test_namespaces_with_equal_references_keep_their_own_values(saver: SqliteSaver) -> None:
    """The items of each namespace have their own numbers, so references may be equal."""
    for namespace in ("", "sub:1"):
        for step in range(5):
            config = config_for("t", f"{step - 1:04}" if step else None)
            config["configurable"]["checkpoint_ns"] = namespace
            saver.put(config, checkpoint_of(f"{step:04}", {"kept": [[namespace]]}), METADATA, {})
    found = [*saver.list({"configurable": {"thread_id": "t"}})]
    assert len(found) == 10
    for each in found:
        assert each.checkpoint["channel_values"] == {"kept": [[each.config["configurable"]["checkpoint_ns"]]]}


def test_copies_do_not_evict_their_own_entry_from_the_memo(saver: SqliteSaver) -> None:
    """The memo keeps the whole entry if it has no room for copies next to it."""
    todos = [{"content": [nth], "done": False} for nth in range(500)]
    image = random.Random(1).randbytes(HUGE_ROW)
    put(saver, 0, {"todos": todos, "image": image, "text": ""})
    known = saver.engine.session.memo.get(("t", ""))
    for _ in range(4):
        read(saver)
    assert known
    assert known.version
    memo = Memo(1, known.weight + 1000)
    tight = with_engine(saver, replace(saver.engine, session=replace(saver.engine.session, memo=memo)))
    for _ in range(5):
        read(tight)
    put(tight, 1, {"todos": todos, "image": image, "text": LONG})
    known = memo.get(("t", ""))
    assert known
    assert known.is_whole
    for _ in range(4):
        assert read(tight) == {"todos": todos, "image": image, "text": LONG}


def test_copies_stay_within_the_limit_of_the_memo() -> None:
    most = 600_000
    with SqliteSaver(":memory:", memo_bytes=most) as saver:
        for nth in range(8):
            put(saver, 0, {"todos": [{"content": [nth]} for nth in range(500)]}, f"{nth}")
        for nth in range(8):
            for _ in range(4):
                read(saver, f"{nth}")
        known = [each for nth in range(8) if (each := saver.engine.session.memo.get((f"{nth}", "")))]
        assert known
        assert most / 2 < sum(each.weight for each in known) <= most


def test_copies_without_room_are_prepared_once(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing a value takes several times as long as decoding it.

    If there is no room, it must not be repeated in vain.
    """
    todos = [{"content": [nth], "done": False} for nth in range(500)]
    put(saver, 0, {"todos": todos})
    known = saver.engine.session.memo.get(("t", ""))
    assert known
    memo, prepared, prepare = Memo(1, known.weight + 1000), list[Any](), Copies.__init__

    def note(copies: Copies, value: Any, most: int) -> None:
        prepared.append(value)
        prepare(copies, value, most)

    tight = with_engine(saver, replace(saver.engine, session=replace(saver.engine.session, memo=memo)))
    monkeypatch.setattr(Copies, "__init__", note)
    for _ in range(12):
        assert read(tight) == {"todos": todos}
    assert memo.get(("t", ""))
    assert len(prepared) == 1


def test_copies_of_a_thread_deleted_elsewhere_are_not_reused() -> None:
    """Item numbers restart, too, so values of the deleted thread must not be reused."""
    with SqliteSaver(":memory:") as saver:
        put(saver, 0, {"kept": {"a": [1]}, "todos": [{"a": 1}]})
        for _ in range(4):
            read(saver)
        saver.engine.driver.send(next(saver.engine.session.store.delete_thread("t")))  # as another process does it
        new = {"kept": {"a": [2]}, "todos": [{"a": 2}]}
        put(saver, 1, new)
        for _ in range(4):
            assert read(saver) == new


def test_copies_use_a_redefined_class(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    put(saver, 0, {"accounts": [Account("ann")], "orders": [Order(items=[])]})
    for _ in range(4):
        assert type(read(saver)["accounts"][0]) is Account

    @dataclass
    class Again:
        owner: str
        tags: list[str]

    Again.__qualname__ = Again.__name__ = "Account"
    Again.__module__ = __name__
    monkeypatch.setattr(sys.modules[__name__], "Account", Again)
    for _ in range(4):
        assert type(read(saver)["accounts"][0]) is Again


def test_copies_of_one_serializer_are_not_used_by_another(saver: SqliteSaver) -> None:
    put(saver, 0, {"accounts": [Account("ann")], "todos": [{"a": [1]}]})
    for _ in range(4):
        read(saver)
    strict = with_engine(saver, saver.engine)
    strict.serde = KeelSerializer(types=[])
    assert strict.engine.session.memo is saver.engine.session.memo
    with pytest.raises(RefusedType):
        read(strict)
    assert read(saver) == {"accounts": [Account("ann")], "todos": [{"a": [1]}]}
