"""Stores of earlier versions are read as before, and can be used further.

A difference here is a broken format. From 0.1.0 on, no store is written again to make a test pass; see `golden`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import KINDS, VERSIONS, aseen, expected, loaded, ours, seen, story
from golden.kinds import TYPES
from golden.seen import DELTA, LATER_CLASSES, thread_config, tuple_form
from langchain_core.messages import AIMessage, HumanMessage
from support.approvals.resuming import runs_of
from support.places import Place

from langgraph_keel import Decision, KeelSaver, KeelSerializer, NotFound, RefusedType, Retention

Store = tuple[str, Place]


@pytest.fixture(params=[f"{version}-{kind}" for version in VERSIONS for kind in KINDS])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The name of an earlier version's store, and a copy of it."""
    version, kind = request.param.split("-")
    given: dict[str, Any] = {}
    if kind in ("postgres", "redis"):
        given["url"] = request.getfixturevalue(f"{kind}_url")
    if kind == "redis":
        given["prefix"] = request.getfixturevalue("redis_prefix")
    return request.param, loaded(version, kind, tmp_path, **given)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use UTC: timelines show local times."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def as_stored(form: Any) -> Any:
    """Return a form as it is after a round trip through JSON."""
    return json.loads(json.dumps(form))


def differences(old: Any, new: Any, where: str = "", *, may_know_more: bool = False) -> Iterator[str]:
    """Yield readable differences between two forms.

    If `may_know_more`, the new one may have more fields.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old if may_know_more else dict.fromkeys([*old, *new]):
            was, now = old.get(key, "nothing"), new.get(key, "nothing")
            yield from differences(was, now, f"{where}[{key!r}]", may_know_more=may_know_more)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from differences(was, now, f"{where}[{place}]", may_know_more=may_know_more)
    elif old != new:
        yield f"{where}: was {old!r:.300}, is {new!r:.300}"


def same(old: Any, new: Any) -> None:
    found = list(differences(old, as_stored(new), may_know_more=True))
    assert found == [], "\n".join(found[:20])


def of(store: Store) -> Any:
    return expected(*store[0].split("-"))


def test_every_version_has_a_store_of_every_backend() -> None:
    assert VERSIONS[0] == "v1"
    for version in VERSIONS:
        assert all(expected(version, kind)["threads"] for kind in KINDS)


def test_stored_data_is_read_as_before(golden: Store) -> None:
    with golden[1].open() as saver:
        same(of(golden), seen(saver))


def test_a_read_only_saver_reads_the_same(golden: Store) -> None:
    with golden[1].open(read_only=True) as saver:
        same(of(golden), seen(saver))


async def test_the_async_face_reads_the_same(golden: Store) -> None:
    wanted = of(golden)
    async with golden[1].open() as saver:
        found = await aseen(saver)
    for name, thread in found.pop("thread").items():
        same({part: wanted["thread"][name][part] for part in thread}, thread)
    same({part: wanted[part] for part in found}, found)


def test_strict_savers_read_listed_types_only(golden: Store) -> None:
    wanted = of(golden)["thread"]
    with golden[1].open(serde=KeelSerializer(types=TYPES, strict=True)) as saver:
        for name in wanted:
            found = [tuple_form(each) for each in saver.list(thread_config(name))]
            same(wanted[name]["checkpoints"], found)
    with golden[1].open(serde=KeelSerializer(strict=True)) as saver, pytest.raises(RefusedType, match=r"golden\.kinds"):
        list(saver.list(thread_config(story.EVIL)))


def test_stored_values_of_keels_classes_equal_new_ones(golden: Store) -> None:
    with golden[1].open() as saver:
        found = saver.get_tuple(thread_config(ours.THREAD))
        decision = saver.get_tuple(thread_config("approved"))
    assert found
    assert decision
    values = found.checkpoint["channel_values"]["values"]
    assert set(ours.data_classes()) - LATER_CLASSES <= ours.names_in(values)
    assert values.keys() >= dict(ours.made()).keys()
    for name, made in ours.made():
        assert type(values[name]) is type(made)
        assert values[name] == made
    kept = decision.checkpoint["channel_values"]["decision"]
    assert type(kept) is Decision
    assert kept.approved
    assert kept.by == "ann"


# -- further use ------------------------------------------------------------------------------------------------------


def by(face: str, saver: KeelSaver) -> Callable[..., Any]:
    """Call a graph, or a method of a saver's interface, by a face."""

    def call(holder: Any, name: str, *args: Any, **options: Any) -> Any:
        if face == "sync":
            return getattr(holder, name)(*args, **options)
        return asyncio.run(getattr(holder, f"a{name}")(*args, **options))

    return call


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.filterwarnings("ignore::langgraph_keel.DriftWarning")
def test_stored_threads_can_continue(golden: Store, face: str) -> None:
    wanted = of(golden)["thread"]["chat"]["checkpoints"]
    with golden[1].open(graph_version="8") as saver:
        call, at = by(face, saver), story.config("chat")
        before = saver.get_tuple(at)
        assert before
        asked: Any = {"messages": [HumanMessage("question 7", id="q7")]}
        state = call(story.chat(saver, "fake-2"), "invoke", asked, at)
    with golden[1].open() as saver:
        found = [tuple_form(each) for each in saver.list(at)]
        assert state["log"] == [*before.checkpoint["channel_values"]["log"], "turn 7"]
        messages = saver.get_tuple(at).checkpoint["channel_values"]["messages"]  # type: ignore[union-attr]
    assert messages[-1].text == "answer to question 7"
    same(wanted, found[-len(wanted) :])
    assert len(found) == len(wanted) + 4
    golden[1].check()


@pytest.mark.parametrize("face", ["sync", "async"])
def test_stored_requests_can_be_decided(golden: Store, face: str) -> None:
    with golden[1].open() as saver:
        runs_of(saver).timer = lambda: 30 * time.monotonic()  # speeds up the wait for a dead run's lease
        call, inbox = by(face, saver), saver.approvals
        call(inbox, "reject", story.request_of(saver, "waits").id, by="bob", reason="too late")
        call(inbox, "approve", story.request_of(saver, "claimed").id, by="bob")
        said = {}
        for thread in ("waits", "claimed", "decided", "taken"):
            command = call(inbox, "resume", thread)
            said[thread] = call(story.booking(saver), "invoke", command, story.config(thread))["decision"]
        assert {thread: decision.kind for thread, decision in said.items()} == {
            "waits": "reject",
            "claimed": "approve",
            "decided": "approve",
            "taken": "approve",
        }
        verdict = inbox.verify_audit()
    assert verdict.problems == ()
    assert verdict.events > of(golden)["verdict"][1]["events"]


def test_stored_tool_calls_are_reused_and_settled(golden: Store) -> None:
    with golden[1].open() as saver, story.tool_cache(saver, lease=1.0) as cache:
        cache._watch.timer = lambda: 30 * time.monotonic()  # private: the claim has a lease of 30 seconds
        (doubtful,) = saver.tools.calls("died")
        assert doubtful.state == "unknown"
        cache.settle("died", doubtful.key, "done", "it was done")
        state = story.tools_graph(cache, story.FATAL, lambda: pytest.fail("again")).invoke(None, story.config("died"))
        assert [message.content for message in state["messages"] if message.type == "tool"] == ["it was done"]
        again: Any = {"messages": [HumanMessage("again")]}
        said = [*story.SCRIPT, AIMessage("done"), *story.SCRIPT]  # it has called nothing else before
        story.tools_graph(cache, said).invoke(again, story.config("tools"))
        assert cache.stats.hits == 4
        assert cache.stats.misses == 0


@pytest.mark.parametrize("face", ["sync", "async"])
def test_stored_threads_can_be_pruned_restored_and_erased(golden: Store, face: str) -> None:
    with golden[1].open() as saver:
        call = by(face, saver)
        report = call(saver, "prune", ["chat", "travel"], strategy=Retention(last=2))
        assert all(thread.removed for thread in report.threads)
        assert {label.name for label in saver.labels.list("travel")} == {"early", "late one: \u00fc"}
        assert story.chat(saver, "fake-2").get_state(story.config("chat")).values["log"][-1] == "turn 6"
        call(saver, "rewind", saver.timeline("travel")["early"])
        graph = story.shortening(saver, lambda state: {})
        restored = saver.archive("window").restore(graph)
        assert restored.message_ids
        receipt = call(saver.retention, "erase", "eve")
        assert list(receipt.threads) == ["eve's"]
        assert list(saver.timeline("eve's")) == []
        with pytest.raises(NotFound):
            saver.labels.set(thread_config("eve's"), "gone")
    golden[1].check()


def test_stored_delta_channels_can_continue(golden: Store) -> None:
    with golden[1].open() as saver:
        graph = story.delta_graph(saver)
        before = graph.get_state(story.config(DELTA)).values["log"]
        assert graph.invoke({"log": ["more"]}, story.config(DELTA))["log"] == [*before, "more", "said 19"]
        assert len(before) == 18
