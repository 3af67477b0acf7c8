"""`keel doctor` finds twelve breaking changes, and none in unchanged code."""

from __future__ import annotations

import json
import operator
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import make_dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.places import KINDS, Place, file_place
from support.tiers import sized
from support.upgrades import apps
from support.upgrades import doctor as doctor_children

from langgraph_keel.cli import app
from langgraph_keel.upgrades.doctor import Doctor

THREADS = 12


class Former(TypedDict, total=False):
    order: Any
    cents: int


class Later(TypedDict, total=False):
    order: Any


@pytest.mark.slow
def test_each_breaking_change_is_found_and_unchanged_code_breaks_nothing(tmp_path: Path) -> None:
    words = [sys.executable, doctor_children.__file__, str(tmp_path), str(THREADS)]
    said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert breaks_in(said, "unchanged") == []
    assert {each["kind"] for each in breaks_in(said, "another serializer")} == {"serializer"}
    for name, (_, kind, path) in doctor_children.BREAKS.items():
        breaks = breaks_in(said, name)
        found = [each for each in breaks if each["kind"] == kind and path in each["path"]]
        assert found, name
        assert all(each["thread_id"] and each["reason"] and each["expected"] and each["found"] for each in found)
        assert {each["kind"] for each in breaks} <= {kind, "node", "question", "subgraph"}, name


def breaks_in(said: Any, name: str) -> list[Any]:
    found = json.loads(said[name]["said"])
    assert found["threads"] == (6 if name == "another serializer" else THREADS)
    assert said[name]["status"] == (1 if found["breaks"] else 0)
    breaks: list[Any] = found["breaks"]
    return breaks


# -- the two versions of `support.upgrades.apps`, before the upgrade and with it ---------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = file_place(tmp_path)
    with place.open() as saver:
        for number in range(len(apps.KINDS)):
            apps.write_1(saver, number)
    return place.url


def module_of(monkeypatch: pytest.MonkeyPatch, **names: Any) -> str:
    module = ModuleType("keel_test_app")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:graph"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(list(words))
    return int(str(ended.value.code or 0))


def test_the_doctor_finds_no_breaks_with_the_upgrades(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, report = module_of(monkeypatch, graph=apps.deployed), tmp_path / "report.xml"
    assert run("doctor", graph, "--url", url, "--junit", str(report)) == 1
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("channel cents", "node ask", "node enrich", "question ask"))
    suite = ET.fromstring(report.read_text("utf-8"))
    assert (suite.get("failures"), len(suite.findall("testcase[failure]"))) == ("7", 7)
    assert run("doctor", graph, "--url", url, "--upgrades", "support.upgrades.apps") == 0
    assert "7 threads opened: all of them run with this code." in capsys.readouterr().out
    graph = module_of(monkeypatch, graph=apps.build_2(None), first=apps.to_2, second=apps.inner_to_2)
    assert run("doctor", graph, "--url", url, "--json", "--sample", "1", "--junit", str(report)) == 0
    assert json.loads(capsys.readouterr().out) == {"threads": 7, "breaks": []}
    assert ET.fromstring(report.read_text("utf-8")).get("failures") == "0"


def write_former(place: Place) -> None:
    order, module = make_dataclass("Order", [("item", str)]), ModuleType("keel_test_app")
    order.__module__, sys.modules[module.__name__] = module.__name__, module
    vars(module).update(Order=order)
    with place.open() as saver:
        graph = StateGraph(Former).add_node("ask", lambda _: interrupt("?")).add_edge(START, "ask")
        graph.compile(checkpointer=saver).invoke({"order": order("shirt"), "cents": 1}, apps.thread_of(0))


def test_an_unreadable_value_does_not_hide_other_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = file_place(tmp_path)
    child = get_context("fork").Process(target=write_former, args=(place,))  # only that process has the class
    child.start()
    child.join()
    assert child.exitcode == 0
    graph = StateGraph(Later).add_node("confirm", lambda _: interrupt("?")).add_edge(START, "confirm")
    name = module_of(monkeypatch, graph=graph)
    assert run("doctor", name, "--url", place.url, "--json") == 1
    found = {(each["kind"], each["path"]) for each in json.loads(capsys.readouterr().out)["breaks"]}
    assert found == {("unread", "'order'"), ("channel", "cents"), ("node", "ask")}


APP = """
from langgraph.graph import START, MessagesState, StateGraph

builder = StateGraph(MessagesState).add_node("chat", lambda _: {"messages": "Yes?"}).add_edge(START, "chat")
graph = builder.compile()


def build(saver):
    return builder.compile(checkpointer=saver)


def configure(config):
    return build(config["configurable"].get("saver"))


async def later():
    return builder


broken = 1
"""


@pytest.mark.parametrize("name", ["graph", "builder", "build", "configure", "later"])
@pytest.mark.parametrize("place", ["./agent.py", "agent.py", "shop/agent.py", "shop.agent"])
def test_a_graph_is_found_by_file_or_module_and_name(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    for file in ("agent.py", "shop/agent.py", "shop/__init__.py"):
        (tmp_path / file).write_text(APP if file.endswith("agent.py") else "")
    for module in ("agent", "shop", "shop.agent"):
        monkeypatch.setitem(sys.modules, module, sys)  # so that the end of the test removes these imports
        monkeypatch.delitem(sys.modules, module)
    with file_place(tmp_path).open() as saver:
        saver.put({"configurable": {"thread_id": "a", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
        url = file_place(tmp_path).url
    assert run("doctor", f"{place}:{name}", "--url", url) == 0
    assert ("shop.agent" if "shop" in place else "agent") in sys.modules  # classes are stored with these module names


def test_an_error_of_the_application_is_reported_with_its_line(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keel_test_broken.py").write_text("import json\nx = nothing\n")
    assert run("doctor", "keel_test_broken.py:graph", "--url", url) == 2
    told = capsys.readouterr().err
    assert "raised NameError: name 'nothing' is not defined" in told
    assert "keel_test_broken.py, line 2" in told
    assert "Traceback" not in told


class Appended(TypedDict):
    a: Annotated[list[str], operator.add]


def appending(*edges: tuple[Any, str], defer: bool = False) -> Any:
    """Return a graph of nodes that append their names, which stops before m."""
    builder = StateGraph(Appended)
    for node in "xym":
        builder.add_node(node, lambda _, node=node: {"a": [node]}, defer=defer and node == "m")
    for start, end in edges:
        builder.add_edge([*start] if len(start) == 2 else start, end)
    return lambda saver: builder.compile(checkpointer=saver, interrupt_before=["m"])


LINE = ((START, "x"), ("x", "y"), ("y", "m"))
FAN = ((START, "x"), (START, "y"), ("xy", "m"))
EACH = ((START, "x"), (START, "y"), ("x", "m"), ("y", "m"))


@pytest.mark.parametrize("place", KINDS, indirect=True)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (appending(*edges, defer=was), appending(*now, defer=is_now))
        for edges, now in ((LINE, LINE), (FAN, FAN), (FAN, EACH))
        for was in (False, True)
        for is_now in (False, True)
    ],
)
def test_broken_edges_are_found(place: Place, before: Any, after: Any) -> None:
    """The doctor reports each edge where LangGraph fails or skips the node.

    This holds whether the node is deferred or not, and joined or not.
    """
    config: Any = {"configurable": {"thread_id": "t"}}
    with place.open() as saver:
        before(saver).invoke({"a": []}, config)
        assert saver.status("t").next == ("m",)
        doctor = Doctor(saver, after(saver))
        found = doctor.examine("t")
        try:
            is_reached = "m" in after(saver).invoke(None, config)["a"]
        except TypeError:
            is_reached = False
    assert [(each.kind, each.path) for each in found] == ([] if is_reached else [("edge", "m")])


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        ("nowhere", "is not of the form MODULE:GRAPH"),
        ("./nowhere.py:graph", "there is no file ./nowhere.py"),
        ("json:dumps", "json:dumps raised TypeError"),
        ("builtins:divmod", "requires the arguments x, y"),
        ("keel_test_nowhere:graph", "No module named 'keel_test_nowhere'"),
        ("keel_test_app:nothing", "has no nothing"),
        ("keel_test_app:text", "keel_test_app:text is a str, not a graph"),
    ],
)
def test_a_name_without_a_graph_is_refused(
    url: str, graph: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module_of(monkeypatch, text="no graph")
    assert run("doctor", graph, "--url", url) != 0
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_unchanged_code_breaks_none_of_many_threads(tmp_path: Path) -> None:
    number = sized(30, 30, 1_000)
    words = [sys.executable, doctor_children.__file__, str(tmp_path), str(number), "unchanged"]
    said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert json.loads(said["unchanged"]["said"]) == {"threads": number, "breaks": []}
