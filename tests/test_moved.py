"""Public classes of Keel in a state are stored under the package's name.

The name does not depend on the module that defines the class.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import subprocess
import sys
import typing
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, TypeAdapter
from support.tool_graphs import strictly

import langgraph_keel
from langgraph_keel import (
    Decision,
    KeelSerializer,
    Label,
    MemorySaver,
    Summary,
    ToolPolicy,
)
from langgraph_keel.engine.serde.moved import OWN, PACKAGE
from langgraph_keel.engine.serde.serializer import encode

ALIASES = {"AsyncPostgresSaver", "AsyncRedisSaver", "AsyncSqliteSaver"}
PUBLIC = {name: getattr(langgraph_keel, name) for name in langgraph_keel.__all__ if name not in ALIASES}
DECISION = Decision("approve", "ann", args={"a": 1})
# -- public names are the package's -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_class_is_named_after_the_package(name: str) -> None:
    named = PUBLIC[name]
    assert named.__module__ == PACKAGE
    assert named.__qualname__ == name
    assert vars(langgraph_keel)[name] is named
    assert pickle.loads(pickle.dumps(named)) is named
    typing.get_type_hints(named)  # as frameworks do: in the module that the class names


def test_every_public_dataclass_is_allowed_in_a_state() -> None:
    public = {name for name, named in PUBLIC.items() if dataclasses.is_dataclass(named)}
    assert {(PACKAGE, name) for name in public} == {each for each in OWN if each[0] == PACKAGE}
    for module, name in OWN:
        fields = dataclasses.fields(getattr(importlib.import_module(module), name))
        assert module != PACKAGE or not [field.name for field in fields if isinstance(field.type, str)]


def test_values_can_be_pickled_copied_and_shown() -> None:
    assert pickle.loads(pickle.dumps(DECISION)) == copy.deepcopy(DECISION) == dataclasses.replace(DECISION) == DECISION
    assert repr(Decision("reject", "bob")).startswith("Decision(kind='reject', by='bob'")
    assert str(Decision) == "<class 'langgraph_keel.Decision'>"


def test_pydantic_models_can_contain_public_classes() -> None:
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


@pytest.mark.slow
def test_stored_bytes_do_not_depend_on_imported_modules() -> None:
    firsts = ["", "import langgraph_keel.tools.policy", "from langgraph_keel import ToolPolicy, Decision"]
    said = {
        subprocess.run([sys.executable, "-c", SCRIPT.format(first=first)], capture_output=True, check=True).stdout
        for first in firsts
    }
    assert said == {f"{encode(ToolPolicy()).hex()} {encode(Decision('approve')).hex()} ".encode()}
    assert PACKAGE.encode() + b"\xa8Decision" in encode(DECISION)


@pytest.mark.parametrize("serde", [KeelSerializer(types=[]), KeelSerializer(strict=True)])
def test_a_public_class_is_allowed_by_every_serializer(serde: KeelSerializer) -> None:
    assert serde.loads_typed(("keel", encode(DECISION))) == DECISION


# -- in graphs --------------------------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    decision: Decision | None
    label: Any


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_graph_schema_may_contain_public_classes_in_strict_mode(
    face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_class_without_a_public_name_keeps_its_name() -> None:
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
