"""`saver.raw` and other views need none of the program's classes.

They read as much as possible.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.checkpoints import config_for
from support.places import Place
from support.shop.stores import left_by_a_shop

from langgraph_keel import InvalidInput, KeelSaver, RefusedType, Unread, UnstorableValue


class Seen(MessagesState):
    order: Any
    lines: Annotated[list[Any], operator.add]


def looking_graph(saver: KeelSaver) -> Any:
    return (
        StateGraph(Seen)
        .add_node("look", lambda state: {"lines": ["looked"]})
        .add_edge(START, "look")
        .compile(checkpointer=saver)
    )


CONFIG = config_for("t")


def check_state(values: dict[str, Any]) -> None:
    """Check the state of `support.shop.application`.

    Placeholders replace the smallest possible parts; the rest is unchanged.
    """
    hello, paid, said = values["messages"]
    assert (hello, said.content) == (HumanMessage("Hello", id="h1"), "It is paid.")
    assert (paid.content, paid.artifact.type_name) == ("paid", "support.shop.models.Order")
    order = values["order"]
    assert type(order) is Unread
    assert (order.module, order.qualname) == ("support.shop.models", "Order")
    assert "import its module" in order.reason
    assert order.stored["items"] == ["tea"]
    assert order.stored["status"].stored == "PAID"
    plain, customer, bread = values["lines"]
    assert (plain, customer.stored["name"], bread.stored["items"]) == ("plain", "Ada", ["bread"])
    assert customer.stored["orders"][0].stored["items"] == ["tea"]
    assert values["basket"].stored["total"] == 3
    assert values["basket"].stored["orders"]["o7"].stored["items"] == ["milk"]
    assert values["found"]["plain"] == 1
    assert [each.stored for each in values["found"]["status"]] == ["PAID"]


def check_shown(saver: KeelSaver) -> None:
    """Check that views do not need `raw`."""
    moments = saver.timeline("t")
    assert [moment.nodes for moment in moments] == [(), ("__start__",), ("begin",), ("pay",)]
    assert moments[-1].next == ("ask", "beside")
    assert moments[-1].pending == ("lines",)
    assert moments[-1].interrupts[0].value["order"].type_name == "support.shop.models.Order"
    assert {"support.shop.models.Order", "support.shop.models.Status"} == set(moments[-1].unread)
    (bread,) = next(change.new for change in moments[-1].changes if change.channel == "lines")
    assert bread.stored["items"] == ["bread"]
    found = {edit.path: edit for edit in saver.diff(moments[2], moments[3])}
    assert found["basket", "total"].after == 3
    assert found["basket", "orders", "o7", "items", 0].after == "milk"
    assert found["order", "status"].after.stored == "PAID"
    assert not [path for path in found if path[0] == "found"]
    assert saver.status("t").state == "waits"
    assert saver.status("t").next == ("ask", "beside")
    lines = {line["thread_id"]: line for line in saver.provenance.trajectories(["t", "called"])}
    assert [message["role"] for message in lines["t"]["messages"]] == ["user", "tool", "assistant"]
    assert saver.provenance.read(CONFIG) == []


@pytest.mark.slow
def test_raw_reads_a_thread_without_its_classes(place: Place) -> None:
    left_by_a_shop(place)
    with place.open() as saver:
        with pytest.raises(RefusedType, match=r"support.shop.models"):
            saver.get_tuple(CONFIG)
        found = saver.raw.get_tuple(CONFIG)
        assert found
        check_state(found.checkpoint["channel_values"])
        (asked,) = [value for _, channel, value in found.pending_writes or () if channel == "__interrupt__"]
        assert asked[0].value["question"] == "Send it?"
        (beside,) = [value for _, channel, value in found.pending_writes or () if channel == "lines"]
        assert beside[0].stored["items"] == ["beside"]
        assert len(list(saver.raw.list(CONFIG))) == 4
        check_state(saver.raw.timeline("t")[-1].values)
        check_shown(saver)


@pytest.mark.slow
async def test_raw_reads_a_thread_without_its_classes_async(place: Place) -> None:
    left_by_a_shop(place)
    async with place.open() as saver:
        with pytest.raises(RefusedType):
            await saver.aget_tuple(CONFIG)
        found = await saver.raw.aget_tuple(CONFIG)
        assert found
        check_state(found.checkpoint["channel_values"])
        assert len([each async for each in saver.raw.alist(CONFIG)]) == 4
        moments = await saver.atimeline("t")
        assert {"support.shop.models.Order", "support.shop.models.Status"} == set(moments[-1].unread)
        channels = (await saver.adiff(moments[2], moments[3])).channels
        assert [name for name in channels if ":" not in name and not name.startswith("__")] == [
            *("messages", "order", "lines", "basket")
        ]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_a_placeholder_is_never_stored(place: Place) -> None:
    """Rewinding and forking copy the stored values.

    Writing a placeholder is refused, and nothing is stored.
    """
    left_by_a_shop(place)
    with place.open() as saver:
        before = [each.config for each in saver.raw.list(CONFIG)]
        state = saver.raw.get_tuple(CONFIG).checkpoint["channel_values"]  # type: ignore[union-attr]
        raw = looking_graph(saver.raw)
        assert raw.get_state(CONFIG).values["messages"][0].content == "Hello"
        with pytest.raises(InvalidInput, match="read-only"):
            raw.invoke({"messages": []}, CONFIG)
        with pytest.raises(InvalidInput, match="read-only"):
            raw.invoke(None, CONFIG)
        with pytest.raises(InvalidInput, match="read-only"):
            raw.update_state(CONFIG, {"lines": ["x"]})
        graph = looking_graph(saver)
        with pytest.raises(UnstorableValue, match="placeholder"):
            graph.update_state({"configurable": {"thread_id": "new"}}, {"order": state["order"]}, as_node="look")
        with pytest.raises(UnstorableValue, match="placeholder"):
            graph.invoke({"lines": [state["order"]]}, {"configurable": {"thread_id": "new"}})
        assert list(saver.timeline("new")) == []
        assert [each.config for each in saver.raw.list(CONFIG)] == before

        timeline = saver.raw.timeline("t")
        timeline.fork(2, "copied")
        timeline.rewind(2)
        saver.raw.copy_thread("called", "copy")
        with pytest.raises(RefusedType):
            saver.get_tuple(config_for("copied"))
        assert saver.raw.diff(config_for("copied"), CONFIG).channels == []
        assert len(saver.raw.get_tuple(config_for("copy")).checkpoint["channel_values"]["messages"]) == 2  # type: ignore[union-attr]
