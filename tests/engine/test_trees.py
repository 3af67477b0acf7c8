"""The structural diff restores every version, and small edits are stored small."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel
from support.tiers import examples

from langgraph_keel import CorruptStore, UnstorableValue
from langgraph_keel.engine.encoding.bodies import number_rows
from langgraph_keel.engine.encoding.trees import replay
from langgraph_keel.engine.encoding.values import Known, Unpacker, next_version
from langgraph_keel.engine.records import Row
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer
from langgraph_keel.testing.rig import exact


@dataclass
class Account:
    owner: str
    notes: list[Any] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)


class OpenReport(BaseModel, extra="allow"):
    title: str = "of what is never changed " * 40


def open_report(part: Any) -> OpenReport:
    return OpenReport.model_validate({"more": part})


class Report(BaseModel):
    title: str
    body: Any = None
    rows: list[Any] = []


CODEC = Codec(KeelSerializer(types=[Account, OpenReport, Report]))


class Log:
    """The versions of one value as in a store: rows, and the items of each version."""

    def __init__(self, value: Any) -> None:
        self.known: Known | None = None
        self.rows: list[Row] = []
        self.end = 0
        self.put(value)

    def put(self, value: Any, codec: Codec = CODEC) -> int:
        """Add a version; return its size in bytes."""
        known, _ = next_version(value, self.known, codec)
        fresh = number_rows(known.fresh, self.end)
        self.known = known.with_number(self.end) if fresh else known
        self.rows += fresh
        self.end += sum(row.count for row in fresh)
        return sum(len(row.body) for row in fresh)

    @property
    def length(self) -> int:
        """The number of items of the last version."""
        assert self.known is not None
        return sum(hi - lo for lo, hi in self.known.ref.runs)

    def read(self) -> Any:
        """Return the last version as read from the rows."""
        assert self.known is not None
        return Unpacker(CODEC).value(self.known.ref, self.rows)


TEXT = st.text(max_size=30) | st.integers(0, 9).map(lambda seed: f"{seed} " * 700)
ATOMS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT | st.binary(max_size=20)
KEYS = st.sampled_from(["a", "b", "c", "id", "notes", ""]) | st.text(max_size=3)


FORMS: dict[str, Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]] = {
    "list": lambda parts: st.lists(parts, max_size=6),
    "dict": lambda parts: st.dictionaries(KEYS, parts, max_size=6),
    "numbered": lambda parts: st.dictionaries(st.integers(0, 3), parts, max_size=2),
    "tuple": lambda parts: st.tuples(parts, parts),
    "dataclass": lambda parts: st.builds(
        Account, st.text(max_size=5), st.lists(parts, max_size=3), st.dictionaries(KEYS, parts, max_size=3)
    ),
    "model": lambda parts: st.builds(Report, title=st.text(max_size=5), body=parts),
    "message": lambda _: st.builds(HumanMessage, st.text(max_size=9), id=st.text(max_size=4)),
    "records": lambda parts: st.lists(
        st.builds(lambda name, part: {"id": name, "part": part}, st.text(max_size=2), parts), max_size=6
    ),
}
VALUES = st.recursive(ATOMS, lambda parts: st.one_of([form(parts) for form in FORMS.values()]), max_leaves=25)
PADDING = {"padding": [f"line {number} of what is never changed" for number in range(120)]}


def containers_in(value: Any) -> list[Any]:
    """Return all mutable parts of a value, itself first."""
    found = [value] if isinstance(value, list | dict | Account | Report) else []
    for part in _parts(value):
        found += containers_in(part)
    return found


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return list(value.__dict__.values()) if isinstance(value, Account | Report) else []


def change(value: Any, draw: Callable[[Any], Any]) -> None:
    """Make one change at a random place of a value."""
    holder = draw(st.sampled_from(containers_in(value)))
    new = draw(VALUES)
    if isinstance(holder, list):
        at = draw(st.integers(0, len(holder)))
        stop = draw(st.integers(at, len(holder)))
        verb = draw(st.sampled_from(["insert", "splice", "set", "move", "rotate"]))
        if verb == "insert" or not holder:
            holder.insert(at, new)
        elif verb == "splice":
            holder[at:stop] = draw(st.lists(VALUES, max_size=3))
        elif verb == "set":
            holder[at % len(holder)] = new
        elif verb == "move":
            holder.append(holder.pop(at % len(holder)))
        else:
            holder[:] = [*holder[1:], new]
    elif isinstance(holder, dict):
        key = draw(st.sampled_from(list(holder)) if holder and draw(st.booleans()) else KEYS)
        verb = draw(st.sampled_from(["set", "delete", "again", "text"]))
        if verb == "delete":
            holder.pop(key, None)
        elif verb == "again":
            holder[key] = holder.pop(key, new)  # at the end
        elif verb == "text" and isinstance(holder.get(key), str):
            at = draw(st.integers(0, len(holder[key])))
            holder[key] = holder[key][:at] + draw(st.text(max_size=5)) + holder[key][at + draw(st.integers(0, 9)) :]
        else:
            holder[key] = new
    else:
        name = draw(st.sampled_from(list(holder.__dict__)))
        holder.__dict__[name] = new


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=examples(50))
def test_every_version_is_read_back(data: st.DataObject, form: str) -> None:
    """With in-place changes: a log must not refer to the value itself."""
    value = data.draw(FORMS[form](VALUES))
    value = {"value": value, "list": [value, {"deep": value}], **copy.deepcopy(PADDING)}
    log = Log(value)
    for _ in range(data.draw(st.integers(1, 6))):
        change(value, data.draw)
        log.put(value)
        assert exact(log.read()) == exact(value)


def test_an_unchanged_value_stores_nothing() -> None:
    value = {"x": [math.nan, -0.0, 1, True, 1.0], **PADDING}
    log = Log(value)
    assert log.put(copy.deepcopy(value)) == 0


@pytest.mark.parametrize("other", [1.0, True, -0.0, 0.0, math.nan, "1", None, [1], (1,)])
def test_equal_values_of_another_type_are_changes(other: Any) -> None:
    log = Log({"x": 1, **PADDING})
    changed = {"x": other, **PADDING}
    log.put(changed)
    assert exact(log.read()) == exact(changed)


@pytest.mark.parametrize("size", [0, 40, 4000], ids=["a small node", "many leaves", "more than is proved at once"])
@pytest.mark.parametrize(
    "place", [lambda part: part, lambda part: [part], lambda part: {"deep": [part]}, Account, open_report]
)
def test_bytes_and_a_bytearray_of_the_same_content_differ(size: int, place: Callable[[Any], Any]) -> None:
    """ormsgpack packs both in the same way."""
    around = [f"line {number} of what is never changed" for number in range(size)]
    log = Log({"x": place(b"same"), "around": around, **PADDING})
    for part in (bytearray(b"same"), b"same", "same", bytearray(b"same")):
        changed = {"x": place(part), "around": around, **PADDING}
        assert log.put(changed) > 0
        assert exact(log.read()) == exact(changed)
        assert log.put(copy.deepcopy(changed)) == 0


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a leaf far down": lambda value: value["chapters"][3]["sections"][2]["lines"].__setitem__(5, "new"),
    "an element at the front": lambda value: value["chapters"][1]["sections"].insert(0, {"lines": ["new"]}),
    "an element gone": lambda value: value["records"].pop(7),
    "a record of a list that moved": lambda value: (value["records"].pop(0), value["records"][40].update(seen=9)),
    "a record by its id": lambda value: value["records"][33].update(seen=1),
    "a field of an object": lambda value: value["accounts"][2].parts.update(limit=9),
    "a field of a model": lambda value: setattr(value["report"], "title", "new"),
    "the middle of a text": lambda value: value.update(draft=value["draft"][:9000] + "new" + value["draft"][9020:]),
    "a message more": lambda value: value["said"].append(AIMessage("new", id="new")),
    "a key gone": lambda value: value["records"][5].pop("seen"),
}


def document() -> dict[str, Any]:
    def lines(*names: int) -> list[str]:
        return [f"line {number} of {names}, which says nothing at all" for number in range(12)]

    return {
        "chapters": [{"sections": [{"lines": lines(a, b)} for b in range(6)]} for a in range(6)],
        "records": [{"id": f"r{number}", "name": f"record {number}", "seen": 0} for number in range(100)],
        "accounts": [Account(f"owner {number}", lines(number), {"limit": 1}) for number in range(5)],
        "report": Report(title="a report", body=lines(0), rows=lines(1)),
        "draft": " ".join(map(str, range(5000))),
        "said": [HumanMessage(f"message {number} " * 20, id=str(number)) for number in range(20)],
    }


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_stores_less_than_500_bytes(name: str) -> None:
    value = document()
    log = Log(value)
    EDITS[name](value)
    assert log.put(value) < 500
    assert exact(log.read()) == exact(value)


def test_the_length_of_a_chain_of_edits_is_limited() -> None:
    value = document()
    log, longest = Log(value), 0
    for number in range(400):
        value["records"][number % 100]["seen"] = number
        log.put(value)
        longest = max(longest, log.length)
    assert exact(log.read()) == exact(value)
    assert longest <= 70


@pytest.mark.parametrize(
    "edits",
    [
        [[["x", "y"], 1]],
        [[["list", 9], 1]],
        [[["list", -1], 1]],
        [[["list", "0"], 1]],
        [[["list"], 0, 9, []]],
        [[["list"], 2, 1, []]],
        [[["list"], 0, 1, "text"]],
        [[["text"], 0, 1, ["list"]]],
        [[["text"], 0, 1, b"bytes"]],
        [[["text"], 0, 9, "long"]],
        [[["text"], 2, 1, "back"]],
        [[["text"], -1, 1, "before"]],
        [[["gone"], 0, 1, "text"]],
        [["text", 0, 1, "text"]],
        [[["gone"]]],
        [["x"]],
        [7],
        7,
    ],
)
def test_edits_that_do_not_match_raise_corrupt_store(edits: Any) -> None:
    with pytest.raises(CorruptStore, match="does not match its value"):
        replay([{"x": 1, "list": [1, 2], "text": "abc"}, edits])


def test_text_edits_are_applied_in_order_with_other_edits() -> None:
    """Edits of one text are combined, but not across an edit that moves it."""
    edits = [
        [[["texts", 0], 0, 1, "QQ"], [["bytes"], 3, 3, b"d"]],
        [[["texts", 0], 1, 3, ""], [["texts", 1], 2, 2, "!"]],
        [[["texts"], 0, 1, []]],
        [[["texts", 0], 0, 3, "W"], [["bytes"], 0, 1, b""], [["texts"], 1, 1, ["end"]], [["texts", 1], 3, 3, "ing"]],
    ]
    assert replay([{"texts": ["abc", "xy"], "bytes": b"abc"}, *edits]) == {"texts": ["W", "ending"], "bytes": b"bcd"}


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def containing_itself() -> Any:
    value: dict[str, Any] = {"text": "of what is never changed " * 40}
    value["me"], value["again"] = value, [value, {"deep": value}]
    return value


WRAPS: dict[str, Callable[[Any], Any]] = {
    "dicts": lambda value: {"a": value},
    "lists": lambda value: [value],
    "dicts with texts": lambda value: {"a": value, "text": "of what is never changed " * 40},
}


@pytest.mark.parametrize("name", WRAPS)
def test_a_value_that_is_too_deep_is_refused(name: str) -> None:
    log = Log({"x": 1, **PADDING})
    for value in (nested(5000, WRAPS[name]), containing_itself()):
        for put in (log.put, Log):
            with pytest.raises(UnstorableValue, match="nested more than 255 levels deep, or contains itself"):
                put({"x": value, **PADDING})


@pytest.mark.parametrize("name", WRAPS)
def test_a_deep_value_is_stored_from_a_deep_call_stack(name: str) -> None:
    def below(calls: int, act: Callable[[], Any]) -> Any:
        return act() if calls == 0 else below(calls - 1, act)

    value = {"x": nested(200, WRAPS[name]), **PADDING}
    log = Log(value)
    for number, calls in enumerate((0, 500, 700)):
        changed = {**value, "x": WRAPS[name](value["x"]), "number": number}
        below(calls, partial(log.put, changed))
        assert exact(log.read()) == exact(changed)


class Meddled(Codec):
    """Another thread changes a value `times` times between inspection and packing."""

    def __init__(self, times: int, change: Callable[[int], object]) -> None:
        super().__init__(KeelSerializer())
        self.left, self.change = times, change

    def pack_item(self, value: Any) -> bytes:
        if self.left:
            self.left -= 1
            self.change(self.left)
        return super().pack_item(value)


@pytest.mark.parametrize("times", [1, 2, 100])
@pytest.mark.parametrize("is_first", [True, False], ids=["a snapshot", "an edit"])
def test_a_value_changed_during_a_put_is_not_mistaken_for_unchanged(is_first: bool, times: int) -> None:
    value = document()
    log = Log({"x": 1} if is_first else copy.deepcopy(value))
    records = value["records"]
    records[7]["seen"] = "edited"
    was = copy.deepcopy(value)
    log.put(value, Meddled(times, lambda left: records[7].update(seen=f"meanwhile {left}")))
    for version in (was, value):
        log.put(version)
        assert exact(log.read()) == exact(version)
