"""Every public operation on a store has two faces: a blocking and an async one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver

import langgraph_keel
from langgraph_keel import Archive, KeelSaver, MemorySaver, Moment, StoreLock, ToolCache
from langgraph_keel.approvals.inbox import Inbox
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.faces import Component
from langgraph_keel.history.moment import Moments

MOST_NAMES = 56
OTHER_NAMES = {"wait": "await_decided"}
"""`await` is Python's own word."""
AS_A_LIST = {"index", "count"}
"""Methods of `Sequence`: they belong to indexing and iterating, which block."""
OPENERS = {"from_conn_string"}


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


# All operations with one face, and how each is called: none of them accesses a store.
ONE_FACE: Mapping[str, Mapping[str, Callable[[Any], object]]] = {
    "saver": {
        **{
            name: attrgetter(name)
            for name in (
                *("approvals", "history", "keys", "labels", "moving", "provenance", "retention", "runs", "tenants"),
                *("tools", "workspace"),
                *("config_specs", "ddl", "engine", "raw", "serde", "tenant"),
            )
        },
        "archive": lambda saver: saver.archive("t"),
        "draining": lambda saver: saver.draining(),
        "for_tenant": lambda saver: saver.for_tenant("acme"),
        "get_next_version": lambda saver: saver.get_next_version(None, None),
        "grants": lambda saver: saver.grants("somebody"),
        "summarization_middleware": lambda saver: saver.summarization_middleware(None, keep=("messages", 2)),
        "store": lambda saver: saver.store(),
        "with_allowlist": lambda saver: saver.with_allowlist([("a", "B")]),
    },
    "Timeline": {"refresh": lambda saver: saver.timeline("t").refresh()},
    "ToolCache": {
        "answer": lambda saver: ToolCache(saver).answer(look, {}, "1", {}, str, False),  # a plan
        "forget": lambda saver: ToolCache(saver).forget(),
        "healing_middleware": lambda saver: ToolCache(saver).healing_middleware(),
        "middleware": lambda saver: ToolCache(saver).middleware(),
        "policy_of": lambda saver: ToolCache(saver).policy_of("look"),
        "stats": lambda saver: ToolCache(saver).stats,
        "tool": lambda saver: ToolCache(saver).tool(look),
    },
    "ThreadHistory": {
        "agent_tools": lambda saver: saver.history.agent_tools(),
        "handoff_middleware": lambda saver: saver.history.handoff_middleware(),
    },
    "Inbox": {"plans": lambda saver: saver.approvals.plans},
    "component": {"engine": lambda saver: saver.labels.engine},
}


class Refusing:
    """A driver of a store that must not be accessed."""

    def send(self, request: Any) -> Any:
        raise AssertionError(request)


def components(cls: type[Component] = Component) -> Iterator[type]:
    for each in cls.__subclasses__():
        if each.__module__.startswith("langgraph_keel"):
            yield each
            yield from components(each)


PUBLIC = [getattr(langgraph_keel, name) for name in langgraph_keel.__all__]
SAVERS: list[type] = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, KeelSaver)]
CLASSES: list[type] = [*SAVERS, Archive, Inbox, Moment, Moments, StoreLock, *components()]


def names_of(cls: type) -> set[str]:
    fields = {each.name for each in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set[str]()
    return {name for name in dir(cls) if not name.startswith("_")} - fields - OPENERS


def without_io(cls: type) -> set[str]:
    found = set(ONE_FACE.get("saver" if issubclass(cls, KeelSaver) else cls.__name__, ()))
    found |= set(ONE_FACE["component"]) if issubclass(cls, Component) else set()
    # A moment's data was read already.
    return found | {"config", "id", "namespace", "thread_id"} if cls is Moment else found


def test_all_classes_are_checked() -> None:
    assert {"Timeline", "ToolCache", "LabelMethods", "KeyMethods", "SqliteSaver"} <= {each.__name__ for each in CLASSES}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_operation_on_a_store_has_both_faces(cls: type) -> None:
    names = names_of(cls)
    awaited = {OTHER_NAMES.get(name, f"a{name}") for name in names} & names
    blocking = {name for name in names if OTHER_NAMES.get(name, f"a{name}") in awaited}
    lone = names - awaited - blocking - without_io(cls) - (AS_A_LIST if hasattr(cls, "__getitem__") else set())
    assert lone == set()
    for name in blocking:
        one, other = getattr(cls, name), getattr(cls, OTHER_NAMES.get(name, f"a{name}"))
        given = list(inspect.signature(other).parameters)
        if not isinstance(one, property) and name != "timeline":  # `atimeline` reports how much is read at once
            assert given == list(inspect.signature(one).parameters), name


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls, names in ONE_FACE.items() for name in names])
def test_an_operation_with_one_face_makes_no_request(cls: str, name: str) -> None:
    with MemorySaver() as saver:
        refusing: Any = Refusing()
        ONE_FACE[cls][name](with_engine(saver, saver.engine.with_drivers(refusing, refusing)))


def test_a_saver_has_few_public_names() -> None:
    own = names_of(KeelSaver) - names_of(BaseCheckpointSaver)
    assert len(own) <= MOST_NAMES, sorted(own)


def test_components_belong_to_the_saver_that_provides_them() -> None:
    with MemorySaver() as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint: Any = {
            **{"v": 4, "id": "1", "ts": ""},
            **{"channel_values": {}, "channel_versions": {}, "versions_seen": {}},
        }
        for each in (saver, saver.for_tenant("acme")):
            each.put(config, checkpoint, {}, {})
        saver.labels.set(config, "none's")
        saver.for_tenant("acme").labels.set(config, "theirs")
        shown = (saver, saver.raw, saver.for_tenant("acme"), saver.for_tenant("acme").raw)
        names = [[label.name for label in each.labels.list("t")] for each in shown]
        assert names == [["none's"], ["none's"], ["theirs"], ["theirs"]]
