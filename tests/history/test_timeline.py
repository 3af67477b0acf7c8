"""A thread as a list of moments: content, queries, and how little it reads."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from support.history.conversations import CONFIG, State, talk
from support.history.conversations import saver as saver

from langgraph_keel import CorruptStore, InvalidInput, KeelSaver, MemorySaver, NotFound, SqliteSaver
from langgraph_keel.engine.encoding.bodies import raw_frame
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.records import Query
from langgraph_keel.history.moment import Moment
from langgraph_keel.testing.rig import checkpoint_of

LARGE = {f"key {n}": {"deep": 1, "text": "x" * n} for n in range(20)}


def test_moments_have_steps_sources_times_and_metadata(saver: KeelSaver) -> None:
    talk(saver)
    moments = list(saver.timeline("t"))
    assert [moment.position for moment in moments] == list(range(9))
    assert [moment.step for moment in moments] == [-1, 0, 1, 2, 3, 4, 5, 6, 7]
    assert [moment.source for moment in moments] == ["input", *["loop"] * 4, "input", *["loop"] * 3]
    assert [moment.nodes for moment in moments[1:5]] == [("__start__",), ("model",), ("tools",), ("ask",)]
    assert [moment.next for moment in moments[1:5]] == [("model",), ("tools",), ("ask",), ()]
    found = list(saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))[::-1]
    assert [moment.id for moment in moments] == [each.checkpoint["id"] for each in found]
    assert [moment.parent for moment in moments] == [None, *(moment.id for moment in moments[:-1])]
    assert [moment.time for moment in moments] == [datetime.fromisoformat(each.checkpoint["ts"]) for each in found]
    assert [moment.metadata for moment in moments] == [each.metadata for each in found]
    assert [moment.is_head for moment in moments] == [moment.is_leaf for moment in moments] == [False] * 8 + [True]


def test_moments_summarize_changes_and_tool_calls(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")
    assert tl[2].summary == "messages +1: ai: I look → search(q=0); turns = 1"
    assert tl[7].summary == "messages +1: ai: I look → search(q=1); turns 1 → 2"
    assert tl[1].summary == "messages +1: human: hi"
    assert [change.new[0].id for change in tl[2].changes if change.new] == ["ai-0"]
    assert tl[3].changes[-1].channel == "plan"
    assert tl[3].changes[-1].text.startswith("changed (")
    assert [tl[place].tools for place in (2, 3, 8)] == [(), (tl[3].tools[0],), (tl[8].tools[0],)]
    assert [(tool.name, tool.is_replayed) for place in (3, 8) for tool in tl[place].tools] == [
        ("search", False),
        ("search", True),
    ]
    assert [asked.value for asked in tl[8].interrupts] == ["may I?"]
    assert tl[3].interrupts == ()  # it was answered


def test_changes_of_every_form_are_described() -> None:
    with MemorySaver() as saver:
        at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        states: list[dict[str, Any]] = [
            {"list": [1, 2, 3], "text": "x", "whole": {1, 2}},
            {"list": [3, 4], "text": 1.0, "whole": {1}},
            {"list": [4, 3], "text": True},
            {"list": [4, 3], "text": "y" * 100, "whole": None, "small": {"a": 1, "b": 2, "c": [3]}, "large": LARGE},
            {"small": {"a": 1, "b": 2.0, "d": "x"}, "large": {**LARGE, "key 7": {"deep": 2}, "new": 1}},
            {"small": {"d": "x", "b": 2.0, "a": 1}, "large": {"key 7": {}}},
        ]
        for step, values in enumerate(states):
            checkpoint: Any = {"id": f"{step}", "v": 4, "ts": "", "channel_values": values, "channel_versions": {}}
            checkpoint["versions_seen"] = {}
            at = saver.put(at, checkpoint, {"step": step, "source": "loop"}, {})
        tl = saver.timeline("t")
    assert [change.text for change in tl[0].changes] == ["+3: 1 · 2 · 3", "= 'x'", "→ {1, 2}"]
    assert [change.text for change in tl[1].changes] == ["+1 -2: 4", "'x' → 1.0", "→ {1}"]
    assert [change.text for change in tl[2].changes] == ["in another order", "1.0 → True", "gone"]
    assert [change.text for change in tl[3].changes][:3] == [
        "→ 'yyy" + "y" * 55 + "…",
        "= None",
        "→ {'a': 1, 'b': 2, 'c': [3]}",
    ]
    assert [change.text for change in tl[4].changes][-2:] == [
        "c gone, b 2 → 2.0, d = 'x'",
        "key 7 = {'deep': 2}, new = 1",
    ]
    assert tl[5].changes[0].text == "in another order"
    assert tl[5].changes[1].text == "→ {'key 7': {}}"
    assert tl[0].time is None


@pytest.mark.parametrize("edits", [[["key 7"], 1, 2], [["key 7"], 1, 2, 3, 4], 5, [5], [[["key 7"], 1, 2, 3, 4]]])
def test_damaged_edits_do_not_hide_the_timeline(tmp_path: Path, edits: Any) -> None:
    at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with SqliteSaver(tmp_path / "keel.db") as saver:
        for step, state in enumerate([LARGE, {**LARGE, "key 7": 1}]):
            new: Any = checkpoint_of(f"{step}", {"large": state})
            at = saver.put(at, new, {"step": step}, {"large": step})
        assert saver.timeline("t")[1].changes[0].text == "key 7 = 1"
    with closing(sqlite3.connect(tmp_path / "keel.db")) as database, database:
        damaged = raw_frame(ormsgpack.packb([edits]))
        database.execute("UPDATE items SET body = ? WHERE key = (SELECT max(key) FROM items)", (damaged,))
    with SqliteSaver(tmp_path / "keel.db") as saver:
        assert saver.timeline("t")[1].changes[0].text.startswith("changed (")
        with pytest.raises(CorruptStore):
            saver.get_tuple(at)


def test_moments_have_stored_bytes(saver: KeelSaver) -> None:
    talk(saver, 4)
    tl = saver.timeline("t")
    sizes = [moment.bytes for moment in tl]
    assert all(100 < size < 5000 for size in sizes)
    # private: the input of a drawing, which its pixels do not show
    state = [moment.state_bytes or 0 for moment in saver.engine.run(tl._measure(tl[:]))]
    assert all(state)
    assert state[-1] > state[0]
    # The values of a moment were stored for it or for an earlier one.
    assert state[-1] <= sum(sizes)
    assert tl[3].state_bytes is None  # not requested


def test_a_moment_is_found_by_every_kind_of_name(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")
    moment = tl[3]
    moment.label("before migration")
    names: list[Any] = [moment, 3, -6, moment.id, moment.id[-12:], moment.config, "before migration"]
    assert [tl[name].address for name in names] == [moment.address] * len(names)
    assert len({tl[name] for name in names}) == 1
    assert tl["before migration"].labels == ("before migration",)
    assert tl[CONFIG] == tl[-1]
    assert tl.values("before migration")["turns"] == moment.values["turns"] == 1


def test_unknown_moments_raise_errors(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")
    for place in (9, -10, 10**9):
        with pytest.raises(IndexError, match="has 9 moments"):
            tl[place]
    gone: list[Any] = ["nothing", "", {"configurable": {"thread_id": "t", "checkpoint_id": "nothing"}}]
    for name in gone:
        with pytest.raises(NotFound):
            tl[name]
    with pytest.raises(InvalidInput, match="not 'other'"):
        tl[{"configurable": {"thread_id": "other"}}]
    assert not saver.timeline("other")
    assert list(saver.timeline("other")) == list(saver.timeline("other")[:]) == []


def test_an_ambiguous_end_of_an_id_is_refused() -> None:
    with MemorySaver() as saver:
        long_thread(saver, 12)
        tl = saver.timeline("t")
        assert [tl[end].position for end in ("0001", "0011", "000001")] == [1, 11, 1]
        with pytest.raises(NotFound):
            tl["01"]  # a mistake, rather than a name
        checkpoint: Any = {"id": "x 000001", "v": 4, "ts": "", "channel_values": {}, "channel_versions": {}}
        saver.put(CONFIG, {**checkpoint, "versions_seen": {}}, {"step": 1}, {})  # type: ignore[typeddict-item]
        with pytest.raises(InvalidInput, match="2 ids begin or end with '0001': give more"):
            tl.refresh()["0001"]


def test_slices_of_a_timeline(saver: KeelSaver) -> None:
    talk(saver, 3)
    tl = saver.timeline("t")
    every = list(range(14))
    for which in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, -2), slice(5, 2), slice(-100, None)):
        assert [moment.position for moment in tl[which]] == every[which]
    assert [moment.position for moment in tl[2:9][1:3]] == [3, 4]
    assert tl[2:9][-1].position == 8
    assert [tl.latest(3).older, tl[4:6].older] == [11, 4]


def test_find_filters_moments(saver: KeelSaver) -> None:
    talk(saver, 3)
    tl = saver.timeline("t")

    def found(**what: Any) -> list[int]:
        return [moment.position for moment in tl.find(**what)]

    tl[2].label("x")
    assert found(node="tools") == [3, 8, 13]
    assert found(node="tools", after=3) == [8, 13]
    assert found(tool="search", before=tl[8]) == [3]
    assert found(after="x", before=-1, source="input") == [5, 10]
    assert found(label="x") == [2]
    assert found(step=1) == [2]
    assert found(channel="turns") == [2, 7, 12]
    assert found(text="MAY i") == [3, 8, 13]
    assert found(asked=True) == [3, 8, 13]
    assert found(waits=True) == [13]
    assert found(namespace="") == list(range(14))
    assert found(where=lambda moment: moment.position % 5 == 0) == [0, 5, 10]
    assert found(after=tl[11].time) == [12, 13]
    assert found(before=tl[1].time.astimezone(UTC).isoformat()) == [0]  # type: ignore[union-attr]
    assert found(node="nobody") == []


def test_timeline_of_branches_and_subgraphs(saver: KeelSaver) -> None:
    inner = StateGraph(State).add_node("deep", lambda state: {"turns": 1}).add_edge(START, "deep")
    outer = (
        StateGraph(State).add_node("sub", inner.compile(checkpointer=True)).add_node("end", lambda state: {"turns": 2})
    )
    graph = outer.add_edge(START, "sub").add_edge("sub", "end").compile(checkpointer=saver)
    graph.invoke({"messages": []}, CONFIG, durability="sync")
    tl = saver.timeline("t")
    assert {moment.namespace for moment in tl} == {"", "sub"}
    assert [moment.nodes for moment in tl.find(namespace="sub")][-1] == ("deep",)
    heads = {moment.namespace: moment.nodes for moment in tl if moment.is_head}
    assert heads == {"": ("end",), "sub": ("deep",)}
    start = tl.find(namespace="")[1]
    assert start.next == ("sub",)
    graph.update_state(start.config, {"turns": 7}, as_node="sub")
    tl.refresh()
    assert tl[-1].parent == start.id
    assert tl[-1].is_head
    assert [moment.id for moment in tl if moment.is_leaf and not moment.namespace] == [tl[-1].id, tl[-2].id][::-1]


def test_sent_tasks_are_listed_as_next() -> None:
    with MemorySaver() as saver:
        graph = StateGraph(State).add_node("fan", lambda state: None).add_node("leaf", lambda state: None)
        graph.add_edge(START, "fan")
        graph.add_conditional_edges("fan", lambda state: [Send("leaf", state), Send("leaf", state)], ["leaf"])
        graph.compile(checkpointer=saver).invoke({"messages": []}, CONFIG)
        assert [(moment.nodes, moment.next) for moment in saver.timeline("t")][-2:] == [
            (("fan",), ("leaf",)),
            (("leaf",), ()),
        ]


def test_timeline_and_labels_with_the_asynchronous_face(saver: KeelSaver) -> None:
    talk(saver)

    async def look() -> None:
        tl = await saver.atimeline("t", limit=3)
        await saver.labels.aset(tl[-2].config, "here")
        await saver.labels.aset(tl[-2], "here")  # the label exists already
        assert [label.name for label in await saver.labels.alist("t")] == ["here"]
        every = await saver.atimeline("t", limit=None)
        assert [moment.position for moment in every if moment.labels] == [7]
        await saver.labels.aremove("t", "here")
        assert await saver.labels.alist("t") == []

    asyncio.run(look())


class Refusing:
    """A driver that blocks."""

    def send(self, request: Any) -> Any:
        raise AssertionError(request)


def test_async_methods_make_no_blocking_requests(saver: KeelSaver) -> None:
    graph = talk(saver)
    blocking = saver.timeline("t")
    diff, compared, drawn = blocking.diff(2), blocking.compare(2, 5), blocking.plot()
    refusing: Any = Refusing()
    tl = with_engine(saver, saver.engine.with_drivers(driver=refusing)).timeline("t")

    async def look() -> None:
        assert await tl.ahead() == blocking.head
        assert [*await tl.alatest(3)] == [*blocking[-3:]]
        assert [*await tl.afind(node="model")] == [*blocking.find(node="model")]
        assert str(await tl.adiff(2)) == str(diff)
        assert str(await tl.acompare(2, 5)) == str(compared)
        assert str(await tl.aplot()) == str(await (await tl.alatest(9)).aplot()) == str(drawn)
        moment = await tl.amoment(4)
        assert await moment.avalues() == await tl.avalues(4) == blocking.values(4)
        await moment.alabel("here")
        assert await tl.amoment("here") == moment
        await tl.aunlabel("here")
        await (await tl.amoment(4)).afork("fork")
        await (await tl.amoment(4)).arewind()
        assert (await tl.ahead()).parent == moment.parent
        config = await saver.timeline("t").afork(2, "other", graph=graph, values={"turns": 9}, as_node="model")
        assert (await graph.aget_state(config)).values["turns"] == 9
        with pytest.raises(InvalidUpdateError):
            await saver.timeline("t").afork(2, "none", graph=graph, values={"turns": 9}, as_node="nobody")
        assert not [info async for info in saver.athreads() if info.thread_id == "none"]

    asyncio.run(look())


def test_concurrent_reads_of_a_timeline_duplicate_no_moments(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")

    async def look() -> None:
        found = await asyncio.gather(tl.afind(), tl.afind(), tl.alatest(3))
        assert [len(each) for each in found] == [9, 9, 3]
        assert len(tl) == 9

    asyncio.run(look())


def test_a_timeline_changes_only_on_refresh(saver: KeelSaver) -> None:
    graph = talk(saver)
    tl = saver.timeline("t")
    assert len(tl) == 9
    graph.invoke(Command(resume="no"), CONFIG, durability="sync")
    assert len(tl) == 9
    assert len(tl.refresh()) == 10


# -- how little is read ----------------------------------------------------------------------------------------


def long_thread(saver: KeelSaver, steps: int) -> None:
    at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    said = []
    for step in range(steps):
        said.append(f"message {step}")
        checkpoint: Any = {"id": f"{step:06}", "v": 4, "ts": "", "channel_versions": {}, "versions_seen": {}}
        checkpoint["channel_values"] = {"said": list(said[-50:])}
        at = saver.put(at, checkpoint, {"step": step, "source": "loop"}, {})


class Counted:
    """Counts the trips of a saver, and the records that they return."""

    def __init__(self, saver: KeelSaver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scanned = self.valued = 0
        store = saver.engine.session.store
        scan, read_values = store.scan, store.read_values

        def scanning(query: Query) -> Any:
            page = yield from scan(query)
            self.scanned += len(page)
            return page

        def valuing(entries: Any) -> Any:
            found = yield from read_values(entries)
            self.valued += len(found)
            return found

        monkeypatch.setattr(store, "scan", scanning)
        monkeypatch.setattr(store, "read_values", valuing)


def test_the_latest_moments_are_read_without_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemorySaver() as saver:
        long_thread(saver, 2200)
        counted = Counted(saver, monkeypatch)
        tl = saver.timeline("t")
        assert (counted.scanned, counted.valued) == (0, 0)
        assert [moment.position for moment in tl.latest()] == list(range(-20, 0))
        assert tl[-1].summary == "said +1 -1: message 2199"
        assert tl.latest().older is None
        assert counted.scanned <= 501
        assert counted.valued <= 51
        assert tl[7].position == 7  # by now, all headers have been read, and the neighbours of this one
        assert counted.scanned <= 2205
        assert counted.valued <= 103
        assert tl[-1].position == 2199


def test_a_page_shows_the_newest_of_many_moments() -> None:
    with MemorySaver() as saver:
        long_thread(saver, 620)
        every = saver.timeline("t")[:]
        assert len(every) == 620
        page = every._repr_html_()
        assert [f"message {n}<" in page for n in (0, 119, 120, 619)] == [False, False, True, True]
        assert "120 older moments" in str(every)


def test_a_moment_has_text_and_html_displays() -> None:
    with MemorySaver() as saver:
        talk(saver, 1)
        moment = saver.timeline("t")[3]
        assert repr(moment) == f"<Moment 3 of thread 't': step 2, tools, {moment.id}>"
        assert "found" in str(moment)
        assert "found" in moment._repr_mimebundle_()["text/html"]
        with pytest.raises(InvalidInput, match="not taken from a timeline"):
            Moment(address=moment.address, position=0).rewind()
