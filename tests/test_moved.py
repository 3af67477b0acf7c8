"""Classes of Keel's own in a state: what is stored names the package alone; what names a module of old comes back."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import typing
from typing import Any, TypedDict

import pytest
from golden import ours
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, TypeAdapter
from tool_graphs import strictly

import langgraph_keel
from langgraph_keel import (
    Decision,
    KeelSerializer,
    Label,
    MemorySaver,
    Replay,
    Summary,
    ToolPolicy,
)
from langgraph_keel.engine.serde.moved import MOVED_NAMES, PACKAGE, first_name, present_name
from langgraph_keel.engine.serde.serializer import encode
from langgraph_keel.tools.keys import key_of

ALIASES = {"AsyncPostgresSaver", "AsyncRedisSaver", "AsyncSqliteSaver"}
PUBLIC = {name: getattr(langgraph_keel, name) for name in langgraph_keel.__all__ if name not in ALIASES}
OLD = ("langgraph_keel.core.decisions", "Decision")
DECISION = Decision("approve", "ann", args={"a": 1})
VALUES = [DECISION, ToolPolicy(ttl=3.0), Replay(source="t", thread_id=None, steps=1, differences=())]


def as_of_old(value: Any) -> bytes:
    """A value of one class as it was stored under the name that its class had then."""
    module, name = first_name(PACKAGE, type(value).__qualname__)
    now, was = (bytes([0xA0 | len(text)]) if len(text) < 32 else bytes([0xD9, len(text)]) for text in (PACKAGE, module))
    packed, mark = encode(value), now + PACKAGE.encode() + bytes([0xA0 | len(name)]) + name.encode()
    assert packed.count(mark) == 1
    return packed.replace(mark, was + module.encode() + bytes([0xA0 | len(name)]) + name.encode())


# -- public names are the package's -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_packages_own(name: str) -> None:
    named = PUBLIC[name]
    assert named.__module__ == PACKAGE
    assert named.__qualname__ == name
    assert vars(langgraph_keel)[name] is named
    assert pickle.loads(pickle.dumps(named)) is named
    typing.get_type_hints(named)  # as frameworks do: in the module that the class says it is from


@pytest.mark.parametrize("name", ours.data_classes())
def test_every_public_data_class_is_in_the_table(name: str) -> None:
    assert (PACKAGE, name) in MOVED_NAMES.values()
    assert present_name(*first_name(PACKAGE, name)) == (PACKAGE, name)
    fields = dataclasses.fields(PUBLIC[name])
    assert not [field.name for field in fields if isinstance(field.type, str)]


def test_values_are_copied_and_shown_as_ever() -> None:
    assert pickle.loads(pickle.dumps(DECISION)) == copy.deepcopy(DECISION) == dataclasses.replace(DECISION) == DECISION
    assert repr(Decision("reject", "bob")).startswith("Decision(kind='reject', by='bob'")
    assert str(Decision) == "<class 'langgraph_keel.Decision'>"


def test_pydantic_reads_them_in_a_programs_models() -> None:
    class State(BaseModel):
        decision: Decision | None = None
        summary: Summary | None = None

    said: Any = {"kind": "approve", "by": "ann", "args": {"a": 1}}
    assert State.model_validate({"decision": said}).decision == DECISION
    assert TypeAdapter(Summary).validate_python({"text": "short"}) == {"text": "short"}
    with pytest.raises(ValueError, match="approve"):
        State.model_validate({"decision": {"kind": "perhaps"}})


# -- what is stored ---------------------------------------------------------------------------------------------------

SCRIPT = """
import importlib, sys
{first}
from langgraph_keel.engine.serde.serializer import KeelSerializer
for module, name in (("langgraph_keel.tools.policy", "ToolPolicy"), ("langgraph_keel.approvals.requests", "Decision")):
    made = getattr(importlib.import_module(module), name)
    serde = KeelSerializer()
    value = made("approve") if name == "Decision" else made()
    data = serde.dumps_typed(value)
    assert serde.loads_typed(data) == value
    sys.stdout.write(data[1].hex() + " ")
"""


def test_what_is_stored_does_not_depend_on_what_was_imported() -> None:
    firsts = ["", "import langgraph_keel.tools.policy", "from langgraph_keel import ToolPolicy, Decision"]
    said = {
        subprocess.run([sys.executable, "-c", SCRIPT.format(first=first)], capture_output=True, check=True).stdout
        for first in firsts
    }
    assert said == {f"{encode(ToolPolicy()).hex()} {encode(Decision('approve')).hex()} ".encode()}
    assert PACKAGE.encode() + b"\xa8Decision" in encode(DECISION)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("listed", [False, True])
def test_what_was_stored_by_its_module_comes_back(value: Any, listed: bool) -> None:
    serde = KeelSerializer(types=[type(value)] if listed else None)
    old = as_of_old(value)
    assert b"langgraph_keel." in old
    found = serde.loads_typed(("keel", old))
    assert type(found) is type(value)
    assert found == value
    assert b"langgraph_keel." not in encode(found)


@pytest.mark.parametrize("entry", [Decision, OLD, (PACKAGE, "Decision")])
def test_either_name_allows_both(entry: Any) -> None:
    serde = KeelSerializer(types=[entry])
    assert serde.loads_typed(("keel", as_of_old(DECISION))) == DECISION
    assert serde.loads_typed(serde.dumps_typed(DECISION)) == DECISION
    widened = KeelSerializer(types=[]).with_msgpack_allowlist([entry])
    assert widened.loads_typed(("keel", as_of_old(DECISION))) == DECISION


@pytest.mark.parametrize("serde", [KeelSerializer(types=[]), KeelSerializer(strict=True)])
def test_both_names_are_allowed_by_themselves(serde: KeelSerializer) -> None:
    for data in (as_of_old(DECISION), encode(DECISION)):
        assert serde.loads_typed(("keel", data)) == DECISION


def test_a_class_of_a_program_by_the_same_name_is_another() -> None:
    assert present_name("program.core.decisions", "Decision") == ("program.core.decisions", "Decision")
    assert present_name("langgraph_keel.core.decisions", "Other") == ("langgraph_keel.core.decisions", "Other")
    assert present_name("langgraph_keel.timeline.moment", "Change") == ("langgraph_keel.history.records", "Change")


def test_the_hash_of_a_tools_arguments_is_as_it_was() -> None:
    """Or a call that was kept before is made again."""
    assert key_of(b"s" * 16, "pay", [], {"by": Decision("approve", "ann")}) == (
        "2185c5542e59c894b481c0936c4b0e715a24ba2c317b07a3d98dd5fd3ac54bf2"
    )


# -- in graphs --------------------------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    decision: Decision | None
    label: Any


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_graphs_own_schema_allows_them_in_strict_mode(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strictly(monkeypatch)
    with MemorySaver() as saver:
        builder = StateGraph(State).add_node("decide", lambda state: {"decision": DECISION})
        graph = builder.add_edge(START, "decide").compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        if face == "sync":
            graph.invoke({}, config)
            found = graph.get_state(config)
        else:
            await graph.ainvoke({}, config)
            found = await graph.aget_state(config)
    assert found.values["decision"] == DECISION
    assert type(found.values["decision"]) is Decision


def test_a_part_that_has_no_public_name_keeps_its_own() -> None:
    with MemorySaver() as saver:
        builder = StateGraph(State).add_node("decide", lambda state: {"decision": DECISION})
        graph = builder.add_edge(START, "decide").compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({}, config)
        saver.labels.set(config, "named")
        (label,) = saver.labels.list("t")
        graph.update_state(config, {"label": label})
        assert graph.get_state(config).values["label"] == label
        assert type(label) is Label
