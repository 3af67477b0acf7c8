"""Bad input causes a named error with its place, or the right answer.

It never loses data.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from support.checkpoints import METADATA, checkpoint_of, config_for, put, value_of
from support.contract.bad_input import saver as saver
from support.contract.bad_input import threads

from langgraph_keel import (
    InvalidConfig,
    InvalidInput,
    NotFound,
    ThreadExists,
)

SURROGATE = "a\ud800"


# -- ids ---------------------------------------------------------------------------------------------------------------

NO_THREAD: list[tuple[Any, str]] = [
    (None, "no 'configurable' mapping"),
    ({}, "no 'configurable' mapping"),
    ({"configurable": None}, "no 'configurable' mapping"),
    ({"configurable": {}}, "no thread_id"),
    ({"configurable": {"thread_id": None}}, "no thread_id"),
    ({"configurable": {"thread_id": ""}}, "thread_id is empty"),
    ({"configurable": {"thread_id": b"t"}}, "thread_id must be a str, not bytes"),
    ({"configurable": {"thread_id": 1.5}}, "thread_id must be a str, not float"),
    ({"configurable": {"thread_id": True}}, "thread_id must be a str, not bool"),
    ({"configurable": {"thread_id": ["t"]}}, "thread_id must be a str, not list"),
    ({"configurable": {"thread_id": SURROGATE}}, "thread_id holds a lone surrogate at position 1"),
    ({"configurable": {"thread_id": "t", "checkpoint_ns": 5}}, "checkpoint_ns must be a str, not int"),
    ({"configurable": {"thread_id": "t", "checkpoint_ns": SURROGATE}}, "checkpoint_ns holds a lone surrogate"),
    ({"configurable": {"thread_id": "t", "checkpoint_id": 5}}, "checkpoint_id must be a str, not int"),
    ({"configurable": {"thread_id": "t", "checkpoint_id": SURROGATE}}, "checkpoint_id holds a lone surrogate"),
]


@pytest.mark.parametrize(("config", "says"), NO_THREAD)
def test_a_config_without_a_usable_thread_is_refused(saver: Any, config: Any, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        saver.get_tuple(config)
    with pytest.raises(InvalidConfig, match=says):
        saver.put(config, checkpoint_of("00000001", {"v": 1}), METADATA, {})
    with pytest.raises(InvalidConfig, match=says):
        saver.put_writes(config, [("v", 1)], "task")
    if config is not None:
        with pytest.raises(InvalidConfig, match=says):
            next(saver.list(config))
    assert threads(saver) == {"before"}


@pytest.mark.parametrize("thread", [None, "", 1.5, b"t", SURROGATE])
def test_an_invalid_thread_id_is_refused(saver: Any, thread: Any) -> None:
    calls: list[Any] = [
        lambda: saver.delete_thread(thread),
        lambda: saver.prune([thread]),
        lambda: saver.copy_thread("before", thread),
        lambda: saver.copy_thread(thread, "target"),
    ]
    for call in calls:
        with pytest.raises(InvalidConfig, match="thread_id"):
            call()
    assert threads(saver) == {"before"}


def test_writes_without_a_checkpoint_id_are_refused(saver: Any) -> None:
    with pytest.raises(InvalidConfig, match="put_writes needs a checkpoint_id"):
        saver.put_writes(config_for("t"), [("v", 1)], "task")
    assert threads(saver) == {"before"}


def test_an_int_is_the_same_thread_as_its_digits(saver: Any) -> None:
    config = put(saver, 7, "seven")
    assert config["configurable"]["thread_id"] == "7"
    assert (value_of(saver, "7"), value_of(saver, 7)) == ("seven", "seven")


def test_an_int_with_too_many_digits_is_refused(saver: Any) -> None:
    with pytest.raises(InvalidConfig, match="thread_id"):
        put(saver, 10**5000, "x")


ODD_IDS = [
    "x" * 10_000,
    "a/b",
    "../../etc/passwd",
    "..",
    ".",
    "nul\x00in",
    "nul\x00on",
    "100%",
    "%00",
    "%2e%2e",
    "a%",
    "a_",
    "line\nbreak",
    "\r\n",
    " ",
    "\ttab",
    "\U0001f600\u200d\U0001f525",
    "e\u0301",
    "\u00e9",
    "A",
    "a",
    "'; DROP TABLE entries; --",
    '"quoted"',
    "a'||'b",
    "{tag}:x",
    "a|b:c",
    "\x7f\x1b[31m",
    "\ufeff",
    "NULL",
    "0",
    "00",
]


def test_odd_ids_stay_distinct(saver: Any) -> None:
    """As thread, namespace, checkpoint, task and channel; all of them stay distinct."""
    for number, odd in enumerate(ODD_IDS):
        config: Any = {"configurable": {"thread_id": odd, "checkpoint_ns": odd}}
        stored = saver.put(config, checkpoint_of(odd, {odd: [number]}), {**METADATA, odd: number}, {})
        saver.put_writes(stored, [(odd, number)], odd, odd)
    assert threads(saver) == {"before", *ODD_IDS}
    for number, odd in enumerate(ODD_IDS):
        config = {"configurable": {"thread_id": odd, "checkpoint_ns": odd, "checkpoint_id": odd}}
        found = saver.get_tuple(config)
        assert found.config["configurable"] == config["configurable"]
        assert found.checkpoint["channel_values"] == {odd: [number]}
        assert found.pending_writes == [(odd, odd, number)]
        assert [one.checkpoint["id"] for one in saver.list(None, filter={odd: number})] == [odd]
    for odd in ODD_IDS:
        saver.copy_thread(odd, f"copy of {odd}")
        saver.delete_thread(odd)
    assert threads(saver) == {"before", *(f"copy of {odd}" for odd in ODD_IDS)}


def test_a_lone_surrogate_in_a_name_is_refused(saver: Any) -> None:
    """Text that no store can encode, in each place of a name. In values it is kept."""
    stored = put(saver, "t", SURROGATE)
    assert value_of(saver, "t") == SURROGATE
    before = {"configurable": {"checkpoint_id": SURROGATE}}
    calls: dict[str, Any] = {
        "checkpoint id": lambda: saver.put(stored, checkpoint_of(SURROGATE, {}), METADATA, {}),
        "channel": lambda: saver.put(stored, checkpoint_of("2", {SURROGATE: [1]}), METADATA, {}),
        "run": lambda: saver.put(stored, checkpoint_of("2", {}), {**METADATA, "run_id": SURROGATE}, {}),
        "task": lambda: saver.put_writes(stored, [("v", 1)], SURROGATE),
        "path": lambda: saver.put_writes(stored, [("v", 1)], "task", SURROGATE),
        "before": lambda: list(saver.list(config_for("t"), before=before)),
    }
    for what, call in calls.items():
        with pytest.raises(InvalidInput, match="lone surrogate"):
            pytest.fail(f"{what} was accepted: {call()}")
    assert [found.checkpoint["id"] for found in saver.list(config_for("t"))] == ["00000001"]
    assert saver.get_tuple(stored).pending_writes == []


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        ({**checkpoint_of("1", {}), "id": None}, "id"),
        ({**checkpoint_of("1", {}), "id": ""}, "id"),
        ({**checkpoint_of("1", {}), "id": 5}, "id"),
        ({key: part for key, part in checkpoint_of("1", {}).items() if key != "id"}, "id"),
        (checkpoint_of("1", {5: [1]}), "channel must be a str, not int"),  # type: ignore[dict-item]
        (checkpoint_of("1", {None: 1}), "channel must be a str, not NoneType"),  # type: ignore[dict-item]
    ],
)
def test_an_invalid_checkpoint_is_refused(saver: Any, checkpoint: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        saver.put(config_for("t"), checkpoint, METADATA, {})
    assert threads(saver) == {"before"}


# -- list --------------------------------------------------------------------------------------------------------------


def test_a_negative_limit_is_refused(saver: Any) -> None:
    with pytest.raises(InvalidInput, match=r"limit must be .*not negative: -1"):
        list(saver.list(config_for("before"), limit=-1))
    with pytest.raises(InvalidInput, match=r"limit must be .*not negative: -5"):
        list(saver.threads(limit=-5))
    assert list(saver.list(config_for("before"), limit=0)) == []
    assert list(saver.threads(limit=0)) == []


async def test_a_negative_limit_is_refused_async(saver: Any) -> None:
    with pytest.raises(InvalidInput, match=r"limit must be .*not negative: -1"):
        [found async for found in saver.alist(config_for("before"), limit=-1)]


@pytest.mark.parametrize("limit", ["1", 1.5])
def test_a_limit_that_is_not_an_integer_is_refused(saver: Any, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        list(saver.list(config_for("before"), limit=limit))


@pytest.mark.parametrize("before", [5, ["x"], b"x"])
def test_before_with_an_invalid_id_is_refused(saver: Any, before: Any) -> None:
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        list(saver.list(config_for("before"), before={"configurable": {"checkpoint_id": before}}))


FILTER_KEYS = [
    "a.b",
    "a b",
    'a"b',
    "a'b",
    "$.source",
    "a[0]",
    "') OR 1=1 --",
    "source') = 'loop' OR ('1'='1",
    "\x00",
    "%",
    "",
    SURROGATE,
]


@pytest.mark.parametrize("key", FILTER_KEYS)
def test_filter_keys_are_taken_literally(saver: Any, key: str) -> None:
    for number, value in enumerate(["one", "other", None, 1, {"b": 1}]):
        saver.put(config_for("f"), checkpoint_of(f"{number:08}", {}), {**METADATA, key: value}, {})
    saver.put(config_for("f"), checkpoint_of("00000009", {}), {**METADATA, "a": {"b": "other"}}, {})

    def found(filter: dict[str, Any]) -> list[str]:
        return [one.checkpoint["id"][-1] for one in saver.list(config_for("f"), filter=filter)]

    assert found({key: "one"}) == ["0"]
    assert found({key: "other"}) == ["1"]
    assert found({key: None}) == ["9", "2"]
    assert found({key: {"b": 1}}) == ["4"]
    assert found({key: "' OR '1'='1"}) == []
    assert found({key: "other", "source": "loop"}) == ["1"]
    assert found({key: "other", "source": "input"}) == []


# -- missing checkpoints ----------------------------------------------------------------------------------------------


class Marks(TypedDict):
    marks: Annotated[list[str], operator.add]


def graph_of(saver: Any) -> Any:
    graph = StateGraph(Marks)
    graph.add_node("node", lambda state: {"marks": ["node"]})
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=saver)


def named(thread: str, checkpoint_id: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_id": checkpoint_id}}


def test_an_unknown_checkpoint_is_none(saver: Any) -> None:
    assert saver.get_tuple(config_for("before", "unknown")) is None
    assert saver.get_tuple(config_for("unknown", "unknown")) is None
    assert list(saver.list(config_for("before", "unknown"))) == []
    assert saver.get_tuple({"configurable": {"thread_id": "before", "checkpoint_ns": "unknown"}}) is None
    assert threads(saver) == {"before"}


@pytest.mark.parametrize("thread", ["known", "unknown"])
def test_a_run_from_an_unknown_checkpoint_does_not_restart_the_thread(saver: Any, thread: str) -> None:
    """LangGraph would start from an empty state, and continue the thread with it."""
    graph = graph_of(saver)
    graph.invoke({"marks": ["first"]}, {"configurable": {"thread_id": "known"}})
    before = [found.checkpoint["id"] for found in saver.list(None)]
    with pytest.raises(NotFound, match=f"thread '{thread}', checkpoint unknown-id: there is no such checkpoint"):
        graph.invoke({"marks": ["second"]}, named(thread, "unknown-id"))
    assert [found.checkpoint["id"] for found in saver.list(None)] == before
    assert graph.get_state({"configurable": {"thread_id": "known"}}).values == {"marks": ["first", "node"]}
    assert graph.get_state(named("known", "unknown-id")).values == {}


def test_resuming_at_an_unknown_checkpoint_is_refused(saver: Any) -> None:
    graph = graph_of(saver)
    graph.invoke({"marks": ["first"]}, {"configurable": {"thread_id": "known"}})
    with pytest.raises(NotFound):
        graph.invoke(None, named("known", "unknown-id"))
    assert graph.get_state({"configurable": {"thread_id": "known"}}).values == {"marks": ["first", "node"]}


def test_impossible_copies_are_refused(saver: Any) -> None:
    put(saver, "other", "other")
    with pytest.raises(ThreadExists, match="thread 'other' already holds checkpoints"):
        saver.copy_thread("before", "other")
    with pytest.raises(InvalidInput, match="cannot copy thread 'before' to itself"):
        saver.copy_thread("before", "before")
    assert value_of(saver, "other") == "other"


def test_an_unknown_prune_strategy_is_refused(saver: Any) -> None:
    for names in (["before"], ["unknown"], []):
        with pytest.raises(InvalidInput, match="unknown prune strategy 'keep_all'"):
            saver.prune(names, strategy="keep_all")
