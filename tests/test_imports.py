"""Modules are imported at their first use, and none while a graph runs.

See CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import langgraph_keel
from langgraph_keel import SqliteSaver
from langgraph_keel.cli.commands import COMMANDS, load_command

GRAPHS = {"langgraph.types", "langgraph.graph", "langgraph.pregel", "langgraph.channels", "langgraph.config"}
TRACING = {"langsmith", "langchain_core.tracers", "langchain_core.runnables.base", "langchain_core.tools"}
CLIENTS = {"redis", "psycopg", "psycopg_pool", "httpx"}
DRAWING = {"rich.progress", "rich.pretty", "rich.markdown", "pygments"}
DRAWING |= {f"langgraph_keel.history.render.{name}" for name in ("html", "plots", "details", "compare", "diff")}
STORES = {"langgraph.checkpoint.base", "langchain_core", "pydantic_core", "sqlite3", "langgraph_keel.saver"}

REPORTED = "import json, sys; {}; json.dump(sorted(sys.modules), sys.stderr)"
COMMAND = "from langgraph_keel.cli import app; app(sys.argv[1:], standalone_mode=False)"


def imported(code: str, *arguments: str) -> set[str]:
    """Return the modules that a new process has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", REPORTED.format(code), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a small store: one thread of three turns."""
    path = tmp_path_factory.mktemp("imports") / "agent.db"
    builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [AIMessage("so it is")]})
    with SqliteSaver(path) as saver:
        graph = builder.add_edge(START, "say").compile(checkpointer=saver)
        for text in ("one", "two", "three"):
            begin: Any = {"messages": [("user", text)]}
            graph.invoke(begin, {"configurable": {"thread_id": "t"}})
    return f"sqlite:///{path}"


def test_importing_the_package_imports_no_optional_modules() -> None:
    found = imported("import langgraph_keel")
    assert found & (GRAPHS | TRACING | CLIENTS | DRAWING | STORES | {"rich", "typer"}) == set()


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_version_and_help_import_no_store(word: str) -> None:
    found = imported(COMMAND, word)
    assert found & (GRAPHS | TRACING | CLIENTS | STORES) == set()
    assert word == "--help" or not found & {"rich", *DRAWING}


@pytest.mark.slow
@pytest.mark.parametrize("words", [["threads"], ["history", "t"], ["timeline", "t"], ["show", "t"]], ids=" ".join)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=" ".join)
def test_commands_that_only_read_import_no_graphs(words: list[str], form: list[str], url: str) -> None:
    found = imported(COMMAND, *words, *form, "--url", url)
    shown = {"rich.pretty"} if words[0] == "show" and not form else set()
    assert found & (GRAPHS | TRACING | CLIENTS | DRAWING) == shown
    assert "langgraph_keel.backends.sqlite.saver" in found


def test_commands_import_no_other_commands(url: str) -> None:
    found = imported(COMMAND, "threads", "--url", url)
    own = {name for name in found if name.startswith("langgraph_keel.cli.")}
    assert own == {f"langgraph_keel.cli.{name}" for name in ("commands", "options", "output", "threads")}


def test_the_list_of_commands_agrees_with_their_help() -> None:
    own = {name: load_command(name).help.partition("\n\n")[0].replace("\n", " ") for name in COMMANDS}
    assert own == COMMANDS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["open_saver", "request_approval", "arequest_approval"])
def test_annotations_of_public_functions_can_be_resolved(name: str) -> None:
    imported(f"import langgraph_keel, typing; typing.get_type_hints(langgraph_keel.{name})")


def test_type_checkers_see_lazily_imported_names() -> None:
    tree = ast.parse(Path(langgraph_keel.__file__).read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    savers = {name: backend.package for name, backend in langgraph_keel._SAVERS.items()}  # private: the same, as data
    later = langgraph_keel._MODULES | savers  # private: the same, as data
    assert {alias.name: node.module for node in imports for alias in node.names} == later
    assert set(langgraph_keel.__all__) <= set(dir(langgraph_keel))


RUN = """
import asyncio, json, sys
from langgraph_keel import MemorySaver, SqliteSaver
saver = SqliteSaver(sys.argv[1]) if sys.argv[1] else MemorySaver()
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
model = FakeListChatModel(responses=["yes", "no"])
def ask(state):
    return {"messages": [model.invoke(interrupt("who?"))]}
graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t"}}
before = set(sys.modules)
async def main():
    await graph.ainvoke({"messages": [("user", "hello")]}, config)
    await graph.ainvoke(Command(resume="ann"), config)
    await graph.aget_state(config)
    [state async for state in graph.aget_state_history(config)]
asyncio.run(main())
later = sorted(name for name in set(sys.modules) - before if name.startswith("langgraph"))
json.dump([later, [call.model is not None for call in saver.provenance.read(config)]], sys.stdout)
saver.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "agent.db"], ids=["memory", "sqlite"])
def test_nothing_is_imported_while_a_graph_runs(path: str, tmp_path: Path) -> None:
    """An import would block the loop.

    A saver that is created first must also see the first run.
    """
    where = os.fspath(tmp_path / path) if path else ""
    done = subprocess.run([sys.executable, "-c", RUN, where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    later, calls = json.loads(done.stdout)
    assert later == []
    assert len(calls) == 1


READ_ONLY = """
import sys
from langgraph_keel import ReadOnlyStore, SqliteSaver
saver = SqliteSaver(sys.argv[1], read_only=True)
assert "langsmith" not in sys.modules
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
graph = StateGraph(MessagesState).add_node("say", lambda state: {}).add_edge(START, "say").compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t"}}
assert len(graph.get_state(config).values["messages"]) == 6
for given in ({"messages": []}, None, Command(resume=1)):
    try:
        graph.invoke(given, config)
    except ReadOnlyStore:
        continue
    assert not isinstance(given, dict), given  # else there is nothing to run: the thread is done
"""


@pytest.mark.slow
def test_a_read_only_saver_installs_no_callbacks_and_refuses_steps(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, url.removeprefix("sqlite:///")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
