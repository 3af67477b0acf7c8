"""`keel archive`, and archives in a terminal and a notebook, shown as text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from support.cli_threads import EVIL, RAW
from support.summaries.archives import Box, turns
from typer.testing import CliRunner

from langgraph_keel import MemorySaver, open_saver
from langgraph_keel.cli import app

CALL = {"name": "find", "args": {"q": "<b>"}, "id": "1"}
NASTY = "<script>alert(1)</script>\x1b[2J [red]\u202e & more"


def keel(*arguments: str, status: int = 0, columns: int = 120) -> Any:
    result = CliRunner().invoke(app, ["archive", *arguments], env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    assert result.exit_code == status, result.output
    assert not RAW.search(result.output)
    return result


def filled(box: Box, thread: str) -> list[str]:
    first = box.keep(turns(0, 3), thread, by="summary", model="m-1", summary=f"first {NASTY}", summary_id="s")
    said = [
        HumanMessage(f"Invoice {NASTY}", id=NASTY),
        AIMessage("x" * 1000, id="x"),
        AIMessage("", id="y", tool_calls=[CALL]),
    ]
    second = box.keep(said, thread, previous=first.id)
    box.call("pin", second, thread=thread)
    return [first.id, second.id]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The URL of a store with two archives, and the ids of the parts of one."""
    where = f"sqlite:///{tmp_path_factory.mktemp('archive') / Path('agent.db')}"
    with open_saver(where) as saver:
        return where, filled(Box(saver), "trip"), filled(Box(saver), EVIL)


def test_archive_lists_the_parts(store: Any) -> None:
    url, (first, second), _ = store
    lines = keel("trip", "--url", url).stdout.splitlines()
    assert lines[0] == "archive of thread trip: 2 parts, 6 messages, 1.8 kB"
    assert first[:12] in lines[3]
    assert "m-1, n, step 3" in lines[3]
    assert "first <script>" in lines[3]
    assert any(second[:12] in line and "pinned" in line for line in lines)
    assert first in keel("trip", "--url", url, "--full").stdout
    narrow = keel("trip", "--url", url, columns=80).stdout.splitlines()[1:]
    assert [line for line in narrow if "m-1, n, step 3" in line] == [
        "  removed by summary · m-1, n, step 3 · replaced by first"
    ]
    for columns in (40, 80, 200):
        assert second[:12] in keel(EVIL, "--url", url, columns=columns).stdout


def test_archive_shows_and_searches_messages(store: Any) -> None:
    url, (first, second), _ = store
    told = keel("trip", "--url", url, "--part", first[:8]).stdout
    assert [line.strip() for line in told.splitlines() if "said" in line] == ["said 0", "said 1", "said 2"]
    told = keel("trip", "--url", url, "--part", second).stdout
    assert "find(q='<b>')" in told
    assert "more characters (--full)" in told
    assert "more characters" not in keel("trip", "--url", url, "--part", second, "--full").stdout
    told = keel("trip", "--url", url, "--search", "invoice").stdout
    assert f"{second[:12]}, message 0" in told
    assert "said" not in told
    assert told.startswith("1 message contains 'invoice', in 1 part\nhuman  ")
    lines = keel("trip", "--url", url, "--search", "SAID", columns=60).stdout.splitlines()
    assert lines[0] == "3 messages contain 'SAID', in 1 part"
    assert all(line == line.rstrip() for line in lines)
    assert "No archived message" in keel("trip", "--url", url, "-s", "invoice", "--part", first).stdout
    assert "said 1" in keel("trip", "--url", url, "-s", "SAID 1", "--part", first).stdout


def test_a_search_hit_is_shown_anywhere_in_a_long_message(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver:
        Box(saver).keep([HumanMessage(f"{'before ' * 200}a NEEDLE {'after ' * 200}", id="long")])
    told = keel("t", "--url", url, "-s", "needle").stdout
    assert "characters before …" in told
    assert "a NEEDLE after" in told
    assert "more characters (--full)" in told
    shown = CliRunner().invoke(app, ["archive", "t", "--url", url, "-s", "needle"], env={"FORCE_COLOR": "1"}).output
    assert "\x1b[7mNEEDLE\x1b[0m" in shown
    assert "characters" not in keel("t", "--url", url, "-s", "needle", "--full").stdout


def test_archive_json(store: Any) -> None:
    url, (first, second), _ = store
    told = json.loads(keel("trip", "--url", url, "--json").stdout)
    assert [part["id"] for part in told["parts"]] == [first, second]
    assert told["parts"][0]["message_ids"] == ["m0", "m1", "m2"]
    assert told["parts"][1]["previous"] == first
    assert told["parts"][1]["pinned"] is True
    told = json.loads(keel("trip", "--url", url, "--part", first, "--json").stdout)
    assert [(each["part"], each["index"], each["message"]["content"]) for each in told["messages"]] == [
        (first, n, f"said {n}") for n in range(3)
    ]


def test_missing_threads_parts_and_search_texts_are_errors(store: Any) -> None:
    url, _, _ = store
    assert "there is no thread 'nobody'" in keel("nobody", "--url", url, status=1).stderr
    assert "has no part 'zz'" in keel("trip", "--url", url, "--part", "zz", status=1).stderr
    assert "needs a text" in keel("trip", "--url", url, "--search", " ", status=2).stderr
    error = json.loads(keel("trip", "--url", url, "--part", "", "--json", status=1).stdout)
    assert error["error"]["code"] == "not_found"


class Tags(HTMLParser):
    """Record the tags of a page, and check that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        self.open.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_archive_has_a_notebook_and_a_shell_display() -> None:
    with MemorySaver() as saver:
        archive = saver.archive(EVIL)
        assert "is empty" in repr(archive)
        assert "is empty" in archive._repr_html_()
        parts = filled(Box(saver), EVIL)
        page, tags = archive._repr_html_(), Tags()
        tags.feed(page)
        assert not tags.open
        assert tags.seen.isdisjoint({"script", "style", "b"})
        assert "&lt;script&gt;" in page
        for shown in (page, repr(archive), str(archive)):
            assert not RAW.search(shown)
            assert all(part[:12] in shown for part in parts)
        lines = repr(archive).splitlines()
        assert len(lines) == 3
        assert "(pinned)" in lines[2]
        assert "summary m-1, n, step 3" in lines[1]
