"""The current version reads threads of an earlier one; refusals name the version."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from support.places import Place, file_place
from support.tiers import sized
from support.upgrades import apps

from langgraph_keel import (
    InvalidInput,
    KeelSaver,
    MemorySaver,
    NewerState,
    RefusedType,
    StoredState,
    Unread,
    UpgradeFailed,
    upgrade,
)
from langgraph_keel.engine.engine import with_engine

THREADS = sized(len(apps.KINDS), len(apps.KINDS), 1_000)
NUMBERS = range(len(apps.KINDS))


def raw_of(saver: KeelSaver) -> list[Any]:
    """Return everything as it was stored, without upgrades."""
    return [(each.checkpoint, each.metadata, each.pending_writes) for each in saver.raw.list(None)]


@pytest.fixture
def old(tmp_path: Path) -> Place:
    """A store with a thread of each kind, written by version 1."""
    place = file_place(tmp_path)
    with place.open() as saver:
        for number in NUMBERS:
            apps.write_1(saver, number)
    return place


@pytest.mark.parametrize("place", ["sqlite", "files", "postgres", "redis"], indirect=True)
def test_each_thread_is_read_and_continued(place: Place) -> None:
    with place.open() as saver:
        for number in range(THREADS):
            apps.write_1(saver, number)
    with place.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        for number in range(THREADS):
            apps.check_seen(graph, number)
            apps.check_end(apps.go_on(graph, number), number)
    with place.open(upgrades=apps.UPGRADES) as saver:  # another process, without memory of the first
        graph = apps.build_2(saver)
        for number in range(THREADS):
            apps.check_end(graph.get_state(apps.thread_of(number)).values, number)


def test_each_thread_is_read_and_continued_in_memory() -> None:
    saver = MemorySaver()
    for number in range(THREADS):
        apps.write_1(saver, number)
    graph = apps.build_2(upgraded(saver, apps.UPGRADES))
    for number in range(THREADS):
        apps.check_seen(graph, number)
        apps.check_end(apps.go_on(graph, number), number)


def upgraded(saver: MemorySaver, upgrades: Any) -> KeelSaver:
    """Return another saver on the same store in memory, with upgrades."""
    other = MemorySaver(upgrades=upgrades)
    session = dataclasses.replace(
        other.engine.session, store=saver.engine.session.store, driver=saver.engine.session.driver
    )
    return with_engine(other, dataclasses.replace(saver.engine, session=session))


async def test_the_async_face_reads_the_same(old: Place) -> None:
    async with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        state = await graph.aget_state(apps.thread_of(1))
        assert (state.values["euros"], state.next) == (12.5, ("confirm",))
        moments = [moment.values async for moment in graph.aget_state_history(apps.thread_of(1))]
        assert len(moments) == 3
        assert all("cents" not in values for values in moments)
        await graph.ainvoke(Command(resume="yes"), apps.thread_of(1))
        apps.check_end((await graph.aget_state(apps.thread_of(1))).values, 1)


def test_reading_with_upgrades_writes_nothing(old: Place) -> None:
    with old.open() as saver:
        before = raw_of(saver)
    with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        for number in NUMBERS:
            apps.check_seen(graph, number)
        list(saver.threads())
        assert raw_of(saver) == before
    with old.open() as saver:
        assert apps.build_1(saver).get_state(apps.thread_of(1)).values["cents"] == 1250


def test_no_version_is_stored_without_upgrades(tmp_path: Path) -> None:
    with file_place(tmp_path).open() as saver:
        apps.write_1(saver, 1)
        found = saver.engine.run(saver.engine.session.store.read_graph("t1"))
        assert found.nodes
        assert not any(b"state" in node.header for node in found.nodes)
        assert saver.engine.session.hooks.revive == ()


# -- two versions at once ----------------------------------------------------------------------------------------------


def test_version_1_raises_newer_state_for_a_newer_thread(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        apps.go_on(apps.build_2(saver), 0)
        apps.go_on(apps.build_2(saver), 1)
    with old.open() as saver:
        graph = apps.build_1(saver)
        with pytest.raises(NewerState, match=r"thread 't1'.*has version 2, and this program knows versions up to 1"):
            graph.get_state(apps.thread_of(1))
        with pytest.raises(NewerState):
            graph.invoke({"kind": "done"}, apps.thread_of(1))
        with pytest.raises(NewerState):
            list(saver.list(apps.thread_of(1)))
        # Raw reads and timelines are allowed.
        assert saver.raw.get_tuple(apps.thread_of(1)).checkpoint["channel_values"]["euros"] == 12.5  # type: ignore[union-attr]
        assert "confirm" in str(saver.timeline("t1"))
        assert graph.get_state(apps.thread_of(2)).values["cents"] == 1250


def test_version_1_raises_newer_state_for_newer_writes(tmp_path: Path) -> None:
    place = file_place(tmp_path)
    with place.open() as saver:
        apps.write_1(saver, 3)
    with place.open(upgrades=apps.UPGRADES) as saver:
        config = saver.get_tuple(apps.thread_of(3)).config  # type: ignore[union-attr]
        saver.put_writes(config, [("euros", 3.0), ("log", ["of version 2"])], "5f1c1d1c-0000-0000-0000-000000000001")
    with place.open() as saver, pytest.raises(NewerState, match="has version 2"):
        apps.build_1(saver).get_state(apps.thread_of(3))
    with place.open(upgrades=apps.UPGRADES) as saver:
        found = saver.get_tuple(apps.thread_of(3))
        assert found is not None
        written = {(channel, str(value)) for _, channel, value in found.pending_writes or ()}
        # Writes of version 1 are upgraded, and writes of version 2 are not.
        assert {("euros", "20.0"), ("euros", "3.0"), ("log", "['of version 2']")} <= written


def test_version_2_raises_newer_state_for_writes_of_version_3(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        apps.go_on(apps.build_2(saver), 1)
    with old.open(upgrades=[*apps.UPGRADES, upgrade(2, 3, lambda state: None)]) as saver:
        config = saver.get_tuple(apps.thread_of(1)).config  # type: ignore[union-attr]
        saver.put_writes(config, [("euros", 3.0)], "5f1c1d1c-0000-0000-0000-000000000001")
    with old.open(upgrades=apps.UPGRADES) as saver, pytest.raises(NewerState, match="has version 3"):
        apps.build_2(saver).get_state(apps.thread_of(1))


def test_a_thread_without_a_matching_upgrade_is_refused(old: Place) -> None:
    told = r"thread 't0'.*from version 1 to 3: no upgrade starts from version 1"
    with old.open(upgrades=[upgrade(2, 3, nothing)]) as saver, pytest.raises(UpgradeFailed, match=told):
        saver.get_tuple(apps.thread_of(0))


# -- several steps -----------------------------------------------------------------------------------------------------


def one(state: StoredState) -> None:
    state.rename("euros", "amount")


def test_a_thread_passes_through_all_upgrades(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        apps.go_on(apps.build_2(saver), 1)
    with old.open(upgrades=[upgrade(2, 3, one), *apps.UPGRADES]) as saver:
        for number in NUMBERS[:4]:
            found = saver.get_tuple(apps.thread_of(number))
            assert found is not None
            assert found.checkpoint["channel_values"]["amount"] == 12.5
            assert "euros" not in found.checkpoint["channel_values"]


def nothing(state: StoredState) -> None:
    """An upgrade that changes nothing."""


@pytest.mark.parametrize(
    ("upgrades", "told"),
    [
        ([upgrade(1, 2, nothing), upgrade(1, 2, nothing)], "two upgrades start from version 1"),
        ([upgrade(1, 2, nothing, graph="a"), upgrade(1, 2, nothing, graph="a")], "for the graph in 'a'"),
        ([upgrade(1, 2, nothing), upgrade(1, 3, nothing, graph="a")], "from version 1 to both 2 and 3"),
        ([upgrade(1, 2, nothing), upgrade(3, 4, nothing)], "there is a gap"),
        ([upgrade(1, 3, nothing), upgrade(2, 4, nothing)], r"gap|skips"),
        ([upgrade(1, 2)], "neither a function nor classes"),
        ([nothing], "must contain only upgrade"),
        (ModuleType("empty"), "empty has no upgrades"),
    ],
)
def test_an_invalid_chain_of_upgrades_is_refused(upgrades: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        MemorySaver(upgrades=upgrades)


@pytest.mark.parametrize(
    "call",
    [
        lambda: upgrade(2, 1, nothing),
        lambda: upgrade(1, 1, nothing),
        lambda: upgrade(0, 1, nothing),
        lambda: upgrade(1, 2, "name"),  # type: ignore[arg-type]
        lambda: upgrade(1, 2, nothing, graph="research:1"),
        lambda: upgrade(1, 2, classes={"Order": nothing}),
        lambda: upgrade(1, 2, classes={"app:Order": "Order"}),
        lambda: upgrade(1, 2, nothing)(nothing),
    ],
)
def test_an_invalid_upgrade_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput):
        call()


def test_upgrades_may_be_a_module(old: Place) -> None:
    with old.open(upgrades=apps) as saver:
        apps.check_seen(apps.build_2(saver), 1)


# -- what cannot be carried over ---------------------------------------------------------------------------------------


def failing(state: StoredState) -> None:
    raise KeyError("nothing of that name")


REFUSED: list[tuple[str, Callable[[StoredState], Any], str]] = [
    ("asks", lambda state: state.remove_node("ask"), "'ask' is next, and was removed"),
    ("sent", lambda state: state.remove_node("work"), "'work' is next, and was removed"),
    ("sibling", lambda state: state.remove_node("left", go_to="finish"), "has run in an unfinished step"),
    ("inside", lambda state: state.rename_node("research", "study"), "a graph in node 'research' waits"),
    ("done", lambda state: state.rename("notes", "remarks"), "'notes' is a delta channel"),
    ("done", lambda state: state.rename("cents", "kind"), "that channel already exists"),
    ("done", lambda state: state.drop("branch:to:ask"), "is not a channel of the state"),
    ("done", lambda state: state.refuse("ask the accountant"), "ask the accountant"),
    ("done", failing, "failing raised KeyError: 'nothing of that name'"),
]


@pytest.mark.parametrize(("kind", "change", "told"), REFUSED)
def test_an_impossible_change_of_an_upgrade_is_refused(
    old: Place, kind: str, change: Callable[[StoredState], Any], told: str
) -> None:
    config = apps.thread_of(apps.KINDS.index(kind))
    with old.open(upgrades=[upgrade(1, 2, change)]) as saver:
        with pytest.raises(UpgradeFailed, match="from version 1 to 2") as caught:
            saver.get_tuple(config)
        assert told in str(caught.value)
        assert config["configurable"]["thread_id"] in caught.value.where
        assert saver.raw.get_tuple(config) is not None


def test_a_removed_node_may_end_the_run(old: Place) -> None:
    def end(state: StoredState) -> None:
        apps.to_2.change(state)  # type: ignore[misc]
        state.remove_node("confirm", go_to="__end__")
        state.remove_node("labour", go_to="__end__")

    with old.open(upgrades=[upgrade(1, 2, end)]) as saver:
        graph = apps.build_2(saver)
        for kind in ("asks", "sent"):
            state = graph.get_state(apps.thread_of(apps.KINDS.index(kind)))
            assert (state.next, state.interrupts) == ((), ())


# -- who decides, goes back, looks, tidies -----------------------------------------------------------------------------


def test_a_decision_reaches_a_renamed_node(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        (request,) = [each for each in saver.approvals.pending() if each.thread_id == "t1"]
        saver.approvals.answer(request.id, by="ada", value="yes")
        graph = apps.build_2(saver)
        graph.invoke(saver.approvals.resume("t1"), apps.thread_of(1))
        apps.check_end(graph.get_state(apps.thread_of(1)).values, 1)
        assert "t1" not in {each.thread_id for each in saver.approvals.pending()}


def test_forks_and_copies_are_upgraded_on_reading(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        saver.copy_thread("t1", "copy")
        moments = list(graph.get_state_history(apps.thread_of(0)))
        graph.update_state(moments[1].config, {"euros": 3.0})
        state = graph.get_state(apps.thread_of(0))
        assert (state.values["euros"], state.values["last"], state.next) == (3.0, "Lovelace", ("finish",))
        copied = graph.get_state({"configurable": {"thread_id": "copy"}})
        assert (copied.values["euros"], copied.next) == (12.5, ("confirm",))


def test_a_rewound_thread_is_upgraded_on_reading(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        apps.go_on(graph, 1)
        timeline = saver.timeline("t1")
        for moment in timeline[2], timeline[-1]:  # one of version 1, and the last one of version 2
            saver.rewind(moment.config)
            values = graph.get_state(apps.thread_of(1)).values
            assert (values["euros"], values["first"]) == (12.5, "Ada")


def test_a_diff_across_an_upgrade_shows_only_real_changes(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        apps.go_on(graph, 4)
        moments = saver.timeline("t4")
        diff = saver.diff(moments[2].config, moments[-1].config)
        assert {edit.path[0] for edit in diff.edits if not str(edit.path[0]).startswith("branch:")} == {"log"}


def test_delta_channels_of_version_1_survive_a_prune(old: Place) -> None:
    with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        for number in NUMBERS:
            apps.go_on(graph, number)
        saver.prune([f"t{number}" for number in NUMBERS], strategy="keep_latest")
    with old.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        for number in NUMBERS:
            apps.check_end(graph.get_state(apps.thread_of(number)).values, number)


class Deltas(TypedDict, total=False):
    """A state with snapshots of a delta channel, one after every second update."""

    n: int
    notes: Annotated[list[Any], DeltaChannel(apps.joined, snapshot_frequency=2)]


def count(state: Deltas) -> Any:
    return {"n": state["n"] + 1, "notes": [state["n"]]} if state["n"] % 3 else {"n": state["n"] + 1}


def build_counter(saver: KeelSaver) -> Any:
    return StateGraph(Deltas).add_node("count", count).add_edge(START, "count").compile(checkpointer=saver)


@pytest.mark.parametrize("turns", range(1, 6))
def test_version_2_reads_the_delta_snapshot_of_version_1(tmp_path: Path, turns: int) -> None:
    place, config = file_place(tmp_path), apps.thread_of(0)
    with place.open() as saver:
        graph = build_counter(saver)
        for _ in range(turns):
            seen = graph.get_state(config).values
            graph.invoke({"n": seen.get("n", 0)}, config)
        notes = graph.get_state(config).values.get("notes", [])
    tens = upgrade(1, 2, lambda state: state.convert("notes", lambda notes: [note * 10 for note in notes]))
    with place.open(upgrades=[tens]) as saver:
        graph = build_counter(saver)
        for more in range(4):
            values = graph.get_state(config).values
            assert values.get("notes", [])[: len(notes)] == [note * 10 for note in notes], more
            graph.invoke({"n": values["n"]}, config)
            saver.prune(["t0"], strategy="keep_latest")


# -- classes -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Item:
    """A class, as version 1 has it; it is registered under another name."""

    name: str


class Size(enum.Enum):
    """An enumeration that no longer has `LARGE` in version 2."""

    SMALL = "s"
    LARGE = "l"


class Held(TypedDict, total=False):
    """A state with values of classes."""

    item: Any
    more: dict[str, Any]
    size: Any


def hold(state: Held) -> Any:
    return {"more": {"deep": [state["item"]]}, "size": (Size.LARGE, Size.SMALL)}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of an application whose classes a test changes."""
    module = ModuleType("keel_test_shop")
    for cls in (Item, Size):
        monkeypatch.setattr(cls, "__module__", module.__name__)
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def hold_item(saver: KeelSaver, config: Any, given: Any) -> Any:
    graph = StateGraph(Held).add_node("hold", hold).add_edge(START, "hold").compile(checkpointer=saver)
    return graph.invoke(given, config) if given else graph.get_state(config).values


def update_item(saver: KeelSaver, config: Any, item: Any) -> None:
    graph = StateGraph(Held).add_node("hold", hold).add_edge(START, "hold").compile(checkpointer=saver)
    graph.update_state(config, {"item": item}, as_node="hold")


def test_classes_can_be_moved_and_changed(tmp_path: Path, shop: ModuleType) -> None:
    place, config = file_place(tmp_path), apps.thread_of(0)
    with place.open(types=[Item, Size]) as saver:
        hold_item(saver, config, {"item": Item("tea")})

    @dataclasses.dataclass
    class Moved:
        name: str

    @dataclasses.dataclass
    class Priced:
        name: str
        price: int

    small: Any = enum.Enum("small", {"SMALL": "s"})
    Priced.__module__ = Moved.__module__ = small.__module__ = shop.__name__
    Priced.__qualname__, Moved.__qualname__, small.__qualname__ = "Item", "Moved", "Size"
    shop.Size = small  # type: ignore[attr-defined]
    sizes = upgrade(1, 2, classes={"keel_test_shop:Size": lambda name: small.SMALL})
    size = upgrade(
        1,
        2,
        classes={"keel_test_shop:Size": lambda name: {"LARGE": small.SMALL}[name], "keel_test_shop:Item": Moved},
    )

    del shop.Item
    with place.open(types=[small], upgrades=[size]) as saver:  # the class has moved
        values = hold_item(saver, config, None)
        assert (values["item"], values["more"], values["size"]) == (
            Moved("tea"),
            {"deep": [Moved("tea")]},
            (small.SMALL, small.SMALL),
        )
    shop.Item = Priced  # type: ignore[attr-defined]
    told = pytest.raises(RefusedType, match="'price' is missing")
    with place.open(types=[small, Priced], upgrades=[sizes]) as saver, told:  # it has changed without upgrade
        hold_item(saver, config, None)
    both = upgrade(1, 2, classes={**sizes.classes, "keel_test_shop:Item": lambda stored: Priced(**stored, price=1)})
    with place.open(types=[small, Priced], upgrades=[both]) as saver:
        assert hold_item(saver, config, None)["more"] == {"deep": [Priced("tea", 1)]}
        raw = saver.raw.get_tuple(config)
        assert raw is not None
        assert isinstance(raw.checkpoint["channel_values"]["item"], Unread)
        update_item(saver, config, Priced("bread", 2))
    with place.open(types=[small, Priced], upgrades=[both]) as saver:
        values = hold_item(saver, config, None)
        assert (values["item"], values["more"]) == (Priced("bread", 2), {"deep": [Priced("tea", 1)]})
    broken = upgrade(1, 2, classes={**sizes.classes, "keel_test_shop:Item": lambda stored: Priced(stored["names"], 1)})
    with place.open(types=[small, Priced], upgrades=[broken]) as saver:
        (early, *_) = [each for each in saver.raw.list(config) if each.metadata["step"] == 0]
        with pytest.raises(RefusedType, match="KeyError: 'names'"):
            saver.get_tuple(early.config)


# -- what waits --------------------------------------------------------------------------------------------------------


def test_an_upgrade_can_change_pending_questions(tmp_path: Path) -> None:
    class Plain(TypedDict, total=False):
        n: int

    def ask(state: Plain) -> Any:
        return {"n": interrupt({"pay": 5}) + interrupt({"pay": 6})}

    place, config = file_place(tmp_path), apps.thread_of(0)
    builder = StateGraph(Plain).add_node("ask", ask).add_edge(START, "ask")
    with place.open() as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"n": 0}, config)
        graph.invoke(Command(resume=1), config)  # the second question's id depends on the first answer

    def change(state: StoredState) -> None:
        state.convert_questions(lambda asked: {"price": asked["pay"]})
        state.rename_node("ask", "confirm")

    with place.open(upgrades=[upgrade(1, 2, change)]) as saver:
        graph = StateGraph(Plain).add_node("confirm", ask).add_edge(START, "confirm").compile(checkpointer=saver)
        (asked,) = graph.get_state(config).interrupts
        assert asked.value == {"price": 6}
        assert graph.invoke(Command(resume={asked.id: 10}), config)["n"] == 11
