"""The `keel` command line, on databases that real graphs wrote."""

from __future__ import annotations

import json
import operator
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer.main
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from typer.testing import CliRunner

from langgraph_keel import open_saver
from langgraph_keel.cli import app
from langgraph_keel.cli.as_json import as_json
from langgraph_keel.cli.checkpoints import short_ids
from langgraph_keel.cli.terminal import one_line, plain, without_password

ROOT = Path(__file__).parent.parent
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
EVIL = "pay \x1b[31m[red]\u202e1"
# C0 but newline, DEL, C1, and the marks that reorder text.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Work(MessagesState):
    notes: dict[str, Any]
    log: Annotated[list[str], operator.add]


def _plan(state: Work) -> dict[str, Any]:
    call = {"name": "search", "args": {"q": "tide\x07s", "k": 3}, "id": "c1", "type": "tool_call"}
    text: list[str | dict[Any, Any]] = [{"type": "text", "text": "Let me look."}]
    messages = [SystemMessage("Be [bold]terse[/bold] \x1b[31m\x9b31mred"), AIMessage(text, tool_calls=[call])]
    return {
        "messages": messages,
        "notes": {"deep": {"list": [1, 2]}, "raw": b"\xff", "set": {1}},
        "log": ["plan"],
    }


def _work(state: Work) -> dict[str, Any]:
    return {"messages": [ToolMessage("found [red]42[/red]\r\nline two", tool_call_id="c1", name="search")]}


def _ask(state: Work) -> dict[str, Any]:
    return {"log": [str(interrupt({"question": "Pay [bold]100[/bold] EUR?\x1b[2J"}))]}


def _sub() -> Any:
    inner = StateGraph(Work)
    inner.add_node("inside", lambda state: {"log": ["inside"]})
    inner.add_edge(START, "inside")
    return inner.compile()


def _builder() -> StateGraph[Work]:
    builder = StateGraph(Work)
    builder.add_node("plan", _plan)
    builder.add_node("work", _work)
    builder.add_node("also", _sub())
    builder.add_node("ask", _ask)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", state)], ["work"])
    builder.add_edge("plan", "also")
    builder.add_edge(["work", "also"], "ask")
    return builder


def _config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with a waiting thread of an evil name, and one that was resumed and then forked."""
    where = f"sqlite:///{tmp_path_factory.mktemp('cli') / 'agent.db'}"
    start: Any = {"messages": [HumanMessage("hello [link=x]there[/link]")]}
    with open_saver(where) as saver:
        graph = _builder().compile(checkpointer=saver)
        graph.invoke(start, _config("trip"))
        graph.invoke(Command(resume="yes"), _config("trip"))
        old = next(state for state in graph.get_state_history(_config("trip")) if state.next == ("ask",))
        graph.invoke(None, old.config)
        graph.invoke(start, _config(EVIL))
    return where


def keel(*arguments: str, status: int = 0, **env: str) -> Any:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1", **env})
    assert result.exit_code == status, result.output
    return result


def keel_json(*arguments: str, status: int = 0) -> Any:
    result = keel(*arguments, "--json", status=status)
    assert result.stderr == ""
    return json.loads(result.stdout)


# ---- the commands, as documented


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = keel(name, "--help").stdout
    assert "Example:" in shown
    assert all(getattr(option, "help", None) for option in COMMANDS[name].params)
    assert "--json" in shown
    assert "--url" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str) -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    assert f"keel {name}" in readme.read_text(encoding="utf-8")


def test_the_commands_are_those_promised() -> None:
    assert set(COMMANDS) == {"demo", "threads", "history", "show"}


def test_version_and_bare_call() -> None:
    assert keel("--version").stdout.startswith("langgraph-keel")
    assert "keel demo" in CliRunner().invoke(app, []).output


# ---- threads


def test_threads_lists_the_last_active_first(url: str) -> None:
    found = keel_json("threads", "--url", url)
    assert [info["thread_id"] for info in found["threads"]] == [EVIL, "trip"]
    assert found["more"] is False
    trip = found["threads"][1]
    assert trip["step"] == 3
    assert trip["checkpoints"] >= 6
    assert "trip" in keel("threads", "--url", url).stdout


def test_threads_limit_says_that_there_are_more(url: str) -> None:
    assert keel_json("threads", "--url", url, "--limit", "1")["more"] is True
    assert "older ones" in keel("threads", "--url", url, "--limit", "1").stdout


def test_the_url_comes_from_the_environment(url: str) -> None:
    assert "trip" in keel("threads", KEEL_URL=url).stdout


# ---- history


def test_history_tells_what_ran_and_what_is_next(url: str) -> None:
    found = keel_json("history", "trip", "--url", url)["checkpoints"]
    steps = {row["step"]: row for row in found if row["source"] != "fork" and row["follows_previous"]}
    assert steps[-1]["source"] == "input"
    assert steps[1]["ran"] == ["plan"]
    assert steps[1]["next"] == ["also", "work"]
    assert steps[2]["ran"] == ["also", "work"]
    assert steps[3]["ran"] == ["ask"]
    assert steps[3]["next"] == []


def test_next_is_what_langgraph_says(url: str) -> None:
    with open_saver(url) as saver:
        graph = _builder().compile(checkpointer=saver)
        for thread in ("trip", EVIL):
            told = [sorted(set(state.next)) for state in graph.get_state_history(_config(thread))]
            assert [row["next"] for row in keel_json("history", thread, "--url", url)["checkpoints"]] == told


def test_history_marks_a_fork_and_its_parent(url: str) -> None:
    newest, *older = keel_json("history", "trip", "--url", url)["checkpoints"]
    assert (newest["source"], newest["follows_previous"], newest["head"]) == ("fork", False, True)
    assert newest["parent_checkpoint_id"] in {row["checkpoint_id"] for row in older}
    assert f"branch from {newest['parent_checkpoint_id'][-8:]}" in _unwrapped("history", "trip", "--url", url)


def test_history_shows_an_open_question(url: str) -> None:
    newest = keel_json("history", EVIL, "--url", url)["checkpoints"][0]
    assert newest["interrupts"][0]["value"] == {"question": "Pay [bold]100[/bold] EUR?\x1b[2J"}
    assert "waits:" in _unwrapped("history", EVIL, "--url", url)


def test_an_answered_question_no_longer_waits(url: str) -> None:
    rows = keel_json("history", "trip", "--url", url)["checkpoints"]
    assert [bool(row["interrupts"]) for row in rows] == [True] + [False] * (len(rows) - 1)


def _sulk(state: Work) -> dict[str, Any]:
    time.sleep(0.2)
    raise ValueError("no \x1b[31mluck")


def test_history_shows_what_failed_beside_what_was_written(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'failed.db'}"
    builder = StateGraph(Work)
    builder.add_node("good", lambda state: {"log": ["good"]})
    builder.add_node("bad", _sulk)
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    start: Any = {"messages": []}
    with open_saver(where) as saver, pytest.raises(ValueError, match="luck"):
        builder.compile(checkpointer=saver).invoke(start, _config("t"))
    head, *_ = keel_json("history", "t", "--url", where)["checkpoints"]
    assert head["next"] == ["bad", "good"]
    assert head["pending_writes"] == ["log"]
    assert "luck" in head["errors"][0]
    shown = _unwrapped("history", "t", "--url", where)
    assert "failed: ValueError" in shown
    assert not RAW.search(shown)
    assert "__error__" in keel("show", "t", "--url", where).stdout


def test_history_limit_and_parents_outside_of_it(url: str) -> None:
    every = keel_json("history", "trip", "--url", url)["checkpoints"]
    some = keel_json("history", "trip", "--url", url, "--limit", "2")
    assert some["more"] is True
    assert some["checkpoints"] == every[:2]


def test_namespaces_of_subgraphs(url: str) -> None:
    rows = keel_json("history", "trip", "--url", url, "--ns", "*")["checkpoints"]
    inner = next(row["checkpoint_ns"] for row in rows if row["checkpoint_ns"])
    assert inner.startswith("also:")
    only = keel_json("history", "trip", "--url", url, "--ns", inner)["checkpoints"]
    assert {row["checkpoint_ns"] for row in only} == {inner}
    assert "in also:" in _unwrapped("history", "trip", "--url", url, "--ns", "*")


def test_full_prints_whole_ids(url: str) -> None:
    newest = keel_json("history", "trip", "--url", url)["checkpoints"][0]["checkpoint_id"]
    assert newest not in keel("history", "trip", "--url", url).stdout
    assert newest in keel("history", "trip", "--url", url, "--full", COLUMNS="120").stdout


def _unwrapped(*arguments: str) -> str:
    return str(keel(*arguments, COLUMNS="250").stdout)


# ---- show


def test_show_is_the_latest_state(url: str) -> None:
    shown = keel("show", EVIL, "--url", url).stdout
    assert "hello [link=x]there[/link]" in shown
    assert "Let me look." in shown
    assert "search(q='tide\\x07s', k=3)" in shown
    assert "found [red]42[/red]" in shown
    assert "waits for an answer" in shown
    assert "'source': 'loop'" in shown


def test_show_json_carries_everything(url: str) -> None:
    found = keel_json("show", EVIL, "--url", url)
    messages = found["values"]["messages"]
    assert [message["type"] for message in messages] == ["human", "system", "ai", "tool"]
    assert messages[2]["tool_calls"][0]["args"] == {"q": "tide\x07s", "k": 3}
    assert found["values"]["notes"] == {"deep": {"list": [1, 2]}, "raw": repr(b"\xff"), "set": [1]}
    assert found["interrupts"][0]["value"]["question"].startswith("Pay")
    assert found["pending_writes"][0]["channel"] == "__interrupt__"
    assert found["next"] == ["ask"]


def test_show_takes_an_id_or_an_end_of_it(url: str) -> None:
    wanted = keel_json("history", "trip", "--url", url)["checkpoints"][2]["checkpoint_id"]
    for given in (wanted, wanted[-8:], wanted[:-2]):
        assert keel_json("show", "trip", given, "--url", url)["checkpoint_id"] == wanted


def test_show_shortens_unless_full(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'long.db'}"
    many: Any = {"messages": [HumanMessage(f"number {n} {'x' * 3000}") for n in range(60)]}
    with open_saver(where) as saver:
        _builder().compile(checkpointer=saver, interrupt_before=["plan"]).invoke(many, _config("long"))
    short, full = (keel("show", "long", "--url", where, *extra).stdout for extra in ([], ["--full"]))
    assert "20 earlier messages" in short
    assert "more characters" in short
    assert "number 0" not in short
    assert "number 0" in full
    assert full.count("x") > 60 * 3000


# ---- nothing stored steers the terminal


@pytest.mark.parametrize("columns", ["30", "80", "200"])
@pytest.mark.parametrize("command", [("threads",), ("history", EVIL), ("show", EVIL), ("show", EVIL, "--full")])
def test_nothing_raw_reaches_the_terminal(url: str, command: tuple[str, ...], columns: str) -> None:
    shown = keel(*command, "--url", url, COLUMNS=columns).stdout
    assert not RAW.search(shown)
    assert "x1b" in shown.replace("\n", "")


def test_nothing_raw_even_in_colour(url: str) -> None:
    result = CliRunner().invoke(
        app, ["show", EVIL, "--url", url], env={"FORCE_COLOR": "1", "TERM": "xterm"}, color=True
    )
    assert "\x1b[" in result.stdout
    assert not RAW.search(re.sub(r"\x1b\[[\d;]*m", "", result.stdout))
    assert "\x1b[2J" not in result.stdout
    assert "[red]42[/red]" in result.stdout


def test_errors_and_json_are_safe_too(url: str) -> None:
    assert not RAW.search(keel("history", "\x1b[31mno", "--url", url, status=1).stderr)
    assert not RAW.search(keel("show", EVIL, "--url", url, "--json").stdout)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[0m", "a\\x1b[0m"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\udc80", "\\udc80"),
        ("é😀", "é😀"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_is_short() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert len(one_line("word " * 1000, 50)) == 50


def test_a_password_is_not_shown() -> None:
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"


# ---- errors


def test_unknown_thread_is_named_with_a_guess(url: str) -> None:
    result = keel("history", "tripp", "--url", url, status=1)
    assert result.stdout == ""
    assert "error: there is no thread 'tripp': did you mean 'trip'? [not_found]" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "nobody"), "not_found"),
        (("show", "trip", "00000000"), "not_found"),
        (("show", "trip", "1"), "invalid_input"),
        (("history", "trip", "--ns", "nowhere"), "not_found"),
        (("show", "trip", "--import", "no_such_module_at_all"), "invalid_input"),
    ],
)
def test_errors_as_json(url: str, arguments: tuple[str, ...], code: str) -> None:
    assert keel_json(*arguments, "--url", url, status=1)["error"]["code"] == code


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    where = tmp_path / "none.db"
    for command in (("threads",), ("history", "t"), ("show", "t")):
        assert keel_json(*command, "--url", f"sqlite:///{where}", status=1)["error"]["code"] == "not_found"
    assert not where.exists()


def test_an_unknown_url_is_an_error() -> None:
    assert keel_json("threads", "--url", "nonsense:", status=1)["error"]["code"] == "invalid_input"


def test_usage_errors_exit_with_2(url: str) -> None:
    keel("history", status=2)
    keel("threads", "--limit", "0", "--url", url, status=2)


def test_reading_changes_nothing(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    before = path.read_bytes()
    keel("threads", "--url", url)
    keel("history", "trip", "--url", url)
    assert path.read_bytes() == before


def test_a_pipe_gets_plain_text(url: str) -> None:
    command = [sys.executable, "-m", "langgraph_keel.cli", "show", "trip", "--url", url]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=env, timeout=60, check=True)
    assert b"\x1b" not in done.stdout
    assert b"human" in done.stdout


def test_classes_of_the_user_are_read_after_an_import(tmp_path: Path) -> None:
    (tmp_path / "shop_models.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Order:\n    total: int\n", encoding="utf-8"
    )
    where = f"sqlite:///{tmp_path / 'shop.db'}"
    write = (
        "import sys; sys.path.insert(0, '')\n"
        "from shop_models import Order\nfrom typing import TypedDict\n"
        "from langgraph.graph import StateGraph, START\n"
        "from langgraph_keel import open_saver\n"
        "class S(TypedDict):\n    order: Order\n"
        "b = StateGraph(S); b.add_node('n', lambda s: {'order': Order(7)}); b.add_edge(START, 'n')\n"
        f"with open_saver({where!r}) as saver:\n"
        "    graph = b.compile(checkpointer=saver)\n"
        "    graph.invoke({'order': Order(1)}, {'configurable': {'thread_id': 't'}})\n"
    )
    subprocess.run([sys.executable, "-c", write], cwd=tmp_path, check=True, timeout=60)
    command = [sys.executable, "-m", "langgraph_keel.cli", "show", "t", "--url", where, "--json"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "refused_type"
    assert "--import shop_models" in refused.stdout
    read = subprocess.run(
        [*command, "--import", "shop_models"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(read.stdout)["values"]["order"] == {"total": 7}


# ---- what JSON carries


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (float("nan"), "nan"),
        (b"a", "b'a'"),
        ({1: (2, {3})}, {"1": [2, [3]]}),
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        (HumanMessage("hi"), {"type": "human", "content": "hi"}),
        (2**80, 2**80),
        ("\udc80", "\udc80"),
    ],
)
def test_as_json(value: Any, carried: Any) -> None:
    assert as_json(value) == carried
    assert json.loads(json.dumps(as_json(value), allow_nan=False)) == carried


def test_as_json_is_bounded() -> None:
    value: Any = []
    for _ in range(500):
        value = [value]
    json.dumps(as_json(value))


def test_short_ids_tell_apart() -> None:
    assert short_ids(["aaaa-12345678", "bbbb-22345678"]) == {
        "aaaa-12345678": "12345678",
        "bbbb-22345678": "22345678",
    }
    assert short_ids(["a" * 20, "b" + "a" * 19]) == {"a" * 20: "a" * 20, "b" + "a" * 19: "b" + "a" * 19}
    assert short_ids(["1", "2"]) == {"1": "1", "2": "2"}
    assert short_ids([]) == {}


def _functions() -> Iterator[Any]:
    yield from (command.callback for command in COMMANDS.values())


def test_every_command_is_a_documented_function() -> None:
    assert all(function.__doc__ for function in _functions())
