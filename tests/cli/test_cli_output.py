"""Output of `keel`: no control of the terminal, named errors, valid JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from support.cli_threads import COMMANDS, EVIL, RAW, keel, keel_json
from typer.testing import CliRunner

from langgraph_keel.cli import app
from langgraph_keel.cli.output import without_password
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import one_line, plain, short_ids

# ---- nothing stored steers the terminal


@pytest.mark.parametrize("columns", ["30", "80", "200"])
@pytest.mark.parametrize("command", [("threads",), ("history", EVIL), ("show", EVIL), ("show", EVIL, "--full")])
def test_control_characters_are_escaped(url: str, command: tuple[str, ...], columns: str) -> None:
    shown = keel(*command, "--url", url, COLUMNS=columns).stdout
    assert not RAW.search(shown)
    assert "x1b" in shown.replace("\n", "")


def test_control_characters_are_escaped_in_colour(url: str) -> None:
    result = CliRunner().invoke(
        app, ["show", EVIL, "--url", url], env={"FORCE_COLOR": "1", "TERM": "xterm"}, color=True
    )
    assert "\x1b[" in result.stdout
    assert not RAW.search(re.sub(r"\x1b\[[\d;]*m", "", result.stdout))
    assert "\x1b[2J" not in result.stdout
    assert "[red]42[/red]" in result.stdout


def test_control_characters_are_escaped_in_errors_and_json(url: str) -> None:
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
def test_plain_escapes_control_characters(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_joins_and_shortens_text() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert len(one_line("word " * 1000, 50)) == 50


def test_a_password_is_masked_in_urls() -> None:
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert (
        without_password("postgresql://host/db?user=me&password=secret") == "postgresql://host/db?user=me&password=***"
    )


# ---- errors


def test_an_unknown_thread_is_an_error_with_advice(url: str) -> None:
    result = keel("history", "tripp", "--url", url, status=1)
    assert result.stdout == ""
    assert "error: there is no thread 'tripp': `keel threads` lists all threads (in sqlite:///" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "nobody"), "not_found"),
        (("show", "trip", "00000000"), "not_found"),
        (("show", "trip", "1f1"), "not_found"),
        (("history", "trip", "--ns", "nowhere"), "not_found"),
        (("show", "trip", "--import", "no_such_module_at_all"), "invalid_input"),
    ],
)
def test_errors_as_json(url: str, arguments: tuple[str, ...], code: str) -> None:
    assert keel_json(*arguments, "--url", url, status=2 if code == "invalid_input" else 1)["error"]["code"] == code


def test_an_ambiguous_id_prefix_is_refused(url: str) -> None:
    first, *_ = keel_json("history", "trip", "--url", url)["checkpoints"]
    error = keel_json("show", "trip", first["checkpoint_id"][:6], "--url", url, status=2)["error"]
    assert error["code"] == "invalid_input"


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    where = tmp_path / "none.db"
    for command in (("threads",), ("history", "t"), ("show", "t")):
        assert keel_json(*command, "--url", f"sqlite:///{where}", status=1)["error"]["code"] == "not_found"
    assert not where.exists()


def test_an_unknown_url_is_an_error() -> None:
    assert keel_json("threads", "--url", "nonsense:", status=2)["error"]["code"] == "invalid_input"


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


@pytest.mark.slow
def test_user_classes_are_read_with_import(tmp_path: Path) -> None:
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
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(shown.stdout)["values"]["order"]["stored"] == {"total": 7}
    assert shown.stderr.endswith("If you trust it: --import shop_models\n")
    read = subprocess.run(
        [*command, "--import", "shop_models"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(read.stdout)["values"]["order"] == {"total": 7}
    assert read.stderr == ""


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
def test_as_json_converts_any_value(value: Any, carried: Any) -> None:
    assert as_json(value) == carried
    assert json.loads(json.dumps(as_json(value), allow_nan=False)) == carried


def test_as_json_is_bounded() -> None:
    value: Any = []
    for _ in range(500):
        value = [value]
    json.dumps(as_json(value))


def test_short_ids_are_unique() -> None:
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
