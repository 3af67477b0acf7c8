"""A diff as text, in a terminal and in a notebook, with harmless stored text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from rich.console import Console
from support.cli_threads import RAW
from support.history.states import stored

from langgraph_keel import MemorySaver
from langgraph_keel.history.diff import StateDiff

EVIL = "<script>alert(1)</script> [red]a[/red] \x1b[31mred\x9b2J\u202e \" '"


@dataclass
class Place:
    city: str
    zip: str = ""


@dataclass
class Rude:
    size: int

    def __repr__(self) -> str:
        raise RuntimeError("no")


def between(before: dict[str, Any], after: dict[str, Any]) -> StateDiff:
    with MemorySaver() as saver:
        return saver.diff(*stored(saver, [before, after]))


def lines(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the text without its title."""
    return between(before, after).to_text().split("\n")[1:]


def call(sql: str) -> dict[str, Any]:
    return {"name": "run_sql", "args": {"sql": sql, "n": 1}, "id": "c", "type": "tool_call"}


def chat() -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return a chat before and after edits, a removal and two additions."""
    asked = HumanMessage("Drop the old column, please.", id="1")
    answer = AIMessage("I will drop legacy_id.", id="2", tool_calls=[call("DROP legacy_id")])
    wait = HumanMessage("Wait.", id="3")
    done = ToolMessage("ok", tool_call_id="c", name="run_sql", id="4", status="error")
    newer = AIMessage("I will drop customer_id.", id="2", tool_calls=[call("DROP customer_id")])
    more = AIMessage("Once more.\n\nNow.", id="5", tool_calls=[call("SELECT 1")])
    edited = asked.model_copy(update={"content": "Drop the odd column, please."})
    return [asked, answer, wait], [edited, newer, done, more]


def test_changed_messages_are_shown_in_order() -> None:
    before, after = chat()
    assert lines({"messages": before}, {"messages": after}) == [
        "messages: 2 edited, 1 removed, 2 added",
        "  ~ [0] human: Drop the [-old-]{+odd+} column, please.",
        "  ~ [1] ai",
        "    content: I will drop [-legacy_id-]{+customer_id+}.",
        "    tool_calls[0].args.sql: DROP legacy_id → DROP customer_id",
        "  - [2] human: Wait.",
        "  + [2] tool run_sql failed: ok",
        "  + [3] ai: Once more.",
        "",
        "    Now.",
        "    → run_sql(sql='SELECT 1', n=1)",
    ]


def test_a_new_list_of_messages_is_shown_as_added() -> None:
    assert lines({}, {"messages": chat()[0][:1]}) == [
        "messages: 1 added",
        "  + [0] human: Drop the old column, please.",
    ]


def test_moved_messages_are_shown_as_moved() -> None:
    said = [HumanMessage(text, id=text) for text in "abc"]
    assert lines({"m": said}, {"m": [said[2], *said[:2]]}) == ["m: 1 moved", "  > [0]: moved here from [2]"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (100, 80, ["x: 100 → 80"]),
        (1, "1", ["x: 1 → '1'"]),
        (None, {"a": 1}, ["x: None → {'a': 1}"]),
        ("", "new", ["x: '' → new"]),
        ("Oslo", "Rome", ["x: Oslo → Rome"]),
        ("it is not safe now", "it is safe now", ["x: it is [-not-] safe now"]),
        ({"a", "b", "c"}, {"a", "d"}, ["x: [-'b'-] [-'c'-] {+'d'+}"]),
        (b"ab", b"ac", ["x: b'ab' → b'ac'"]),
        (Place("Oslo"), Place("Rome", "1"), ["x: 2 changed", "  ~ city: Oslo → Rome", "  ~ zip: '' → 1"]),
        (
            {"a": {"b": [1, 2]}, "odd key": 1, "old": 2},
            {"a": {"b": [1, 3]}, "odd key": 2, "new": [4]},
            [
                "x: 2 changed, 1 removed, 1 added",
                "  ~ a.b[1]: 2 → 3",
                "  ~ ['odd key']: 1 → 2",
                "  - old: 2",
                "  + new: [4]",
            ],
        ),
        (Rude(1), [Rude(2)], [r"x: <test_diff_shown\.Rude object at \w+> → <list object at \w+>"]),
    ],
    ids=["number", "type", "none", "empty", "word", "words", "set", "bytes", "data", "paths", "rude"],
)
def test_changed_values_are_shown_on_one_line(before: Any, after: Any, expected: Sequence[str]) -> None:
    shown = lines({"x": before}, {"x": after})
    assert shown == expected or (len(shown) == 1 and re.fullmatch(expected[0], shown[0]))


def test_added_and_removed_channels_are_shown() -> None:
    assert lines({"a": 1}, {"b": "x\ny"}) == ["a: removed 1", "b: added x", "  y"]


def test_long_values_are_shortened_without_full() -> None:
    long = "word " * 2000
    found = between({"a": f"{long}y {long}", "c": list(range(99))}, {"a": f"{long}x {long}", "b": long, "c": []})
    text, full = found.to_text(), found.to_text(full=True)
    assert max(map(len, text.split("\n"))) < 600
    assert re.search(r"a: … (word ){10,20}\[-y-\]\{\+x\+\} (word ){10,20}…", text)
    assert "9,600 more characters" in text
    assert "… 59 more changes" in text
    assert full.count("word") == 3 * 2000
    assert "more" not in full


def test_internal_channels_of_langgraph_are_hidden_without_full() -> None:
    found = between({"branch:to:a": None, "x": 1}, {"branch:to:b": None, "x": 2})
    assert "branch" not in found.to_text()
    assert "branch:to:b" in found.to_text(full=True)
    assert found.channels == ["branch:to:a", "x", "branch:to:b"]
    only = between({"branch:to:a": None}, {})
    assert only
    assert "nothing changed but what LangGraph keeps for itself (branch:to:a)" in str(only)


def test_an_empty_diff_is_shown() -> None:
    found = between({"x": 1}, {"x": 1})
    assert (bool(found), len(found), list(found), found.to_patch()) == (False, 0, [], [])
    assert str(found) == repr(found) == "thread t: 0000 → 0001\nnothing changed"
    assert "nothing changed" in found.to_html()


def test_a_diff_names_its_two_checkpoints() -> None:
    with MemorySaver() as saver:
        a, b = stored(saver, [{"x": 1}, {"x": 2}])
        (c,) = stored(saver, [{"x": 3}], "other <b>")
        assert str(saver.diff(b, b)).startswith("thread t: 0001 → 0001\n")
        assert str(saver.diff(a, c)).startswith("thread t, 0000 → thread other <b>, 0000\n")
        assert "thread other &lt;b&gt;, 0000" in saver.diff(a, c).to_html()


def test_a_diff_as_plain_data() -> None:
    place = {"thread_id": "t", "checkpoint_ns": ""}
    assert between({"x": 1, "y": {1}}, {"x": 2, "z": Place("Oslo")}).plain() == {
        "before": {**place, "checkpoint_id": "0000"},
        "after": {**place, "checkpoint_id": "0001"},
        "channels": ["x", "y", "z"],
        "edits": [
            {"kind": "changed", "path": ["x"], "before": 1, "after": 2},
            {"kind": "removed", "path": ["y"], "before": [1]},
            {"kind": "added", "path": ["z"], "after": {"city": "Oslo", "zip": ""}},
        ],
        "deltas": [],
    }


# -- what users wrote ------------------------------------------------------------------------------------------


def evil() -> StateDiff:
    """Return a diff with hostile text in every place that can contain a user's text."""
    old = AIMessage(f"{EVIL} so", id="1", tool_calls=[call(EVIL)], name=EVIL)
    new = AIMessage(f"{EVIL} not so", id="1", tool_calls=[call(f"{EVIL}!")], name=EVIL)
    tool = ToolMessage(EVIL, tool_call_id=EVIL, name=EVIL, id="2")
    named = ToolMessage("a long enough answer", tool_call_id=EVIL, name=EVIL, id="3")
    edited = named.model_copy(update={"content": "a long \x1b[31mred enough answer"})
    before = {"messages": [old, named], EVIL: {EVIL: EVIL, "k": 1}, "set": {1}, "deep": [EVIL]}
    after = {
        "messages": [new, edited, tool],
        EVIL: {EVIL: 1, EVIL * 2: EVIL},
        "set": {EVIL},
        "deep": [[EVIL * 99]],
        "b": EVIL,
    }
    with MemorySaver() as saver:
        (a,), (b,) = stored(saver, [before], EVIL), stored(saver, [after], "t")
        return saver.diff(a, b)


def printed(found: StateDiff, **options: Any) -> str:
    out = StringIO()
    Console(file=out, width=100, **options).print(found)
    return out.getvalue()


def test_control_characters_are_escaped() -> None:
    found = evil()
    for shown in (found.to_text(), found.to_text(full=True), printed(found), printed(found, no_color=True)):
        assert not RAW.search(shown)
        assert "[red]a[/red]" in "".join(shown.split("\n"))
        assert r"\x1b[31mred" in shown
    coloured = printed(found, force_terminal=True, color_system="standard")
    codes = set(re.findall("\x1b[^m]*m", coloured))
    assert codes
    assert all(re.fullmatch(r"\x1b\[[\d;]*m", code) for code in codes)
    assert not RAW.search(re.sub(r"\x1b\[[\d;]*m", "", coloured))


class Page(HTMLParser):
    """Collects the elements that a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_escaped() -> None:
    page = Page(evil().to_html())
    assert set(page.tags) <= {"div", "b", "span", "code", "del", "ins", "br", "details", "summary"}
    assert page.attributes == {"style"}
    assert page.open == []
    assert page.text.count("<script>alert(1)</script>") > 10
    assert not RAW.search(page.text)


def test_html_is_readable_in_both_themes_and_without_styles() -> None:
    found = between({"messages": chat()[0], "x": "long " * 500}, {"messages": chat()[1], "x": "long " * 500 + "more"})
    html = found.to_html()
    assert not re.search(r"url\(|@import|<style|<script|class=|src=|href=", html)
    assert set(re.findall(r"(?:color|background|border-left):([^;\"]+)", html)) <= {
        "inherit", "none", *(f"rgba({each},.22)" for each in ("248,81,73", "46,160,67")),
        *(f"3px solid rgba({each},.9)" for each in ("46,160,67", "248,81,73", "187,128,9")),
    }  # fmt: skip
    bare = re.sub(r' style="[^"]*"', "", html)
    assert "~ <code>[0]</code> <b>human</b> <span>Drop the <del>old</del><ins>odd</ins> column, please.</span>" in bare
    assert "Once more.<br><br>Now.<br>→ run_sql(" in bare
    assert html.count("<details>") == 1
    assert Page(html).text.count("long") > 500


def test_a_notebook_gets_both_forms() -> None:
    found = between({"x": 1}, {"x": 2})
    assert found._repr_mimebundle_() == {"text/plain": str(found), "text/html": found._repr_html_()}


def test_a_terminal_without_colours_shows_brackets() -> None:
    found = between({"x": "it is not safe now"}, {"x": "it is safe now"})
    assert "it is [-not-] safe now" in printed(found)
    coloured = printed(found, force_terminal=True, color_system="standard")
    assert "[-" not in coloured
    assert "\x1b[9;31mnot \x1b[0m" in coloured


def test_removed_elements_are_shown_before_their_replacements() -> None:
    kept = [HumanMessage("Go on.", id="0")]
    before = [*kept, *(ToolMessage(text, tool_call_id=text, id=f"b-{text}") for text in ("drop", "copy"))]
    after = [*kept, *(ToolMessage(text, tool_call_id=text, id=f"a-{text}") for text in ("copy all", "drop all"))]
    shown = [line.split()[:2] for line in lines({"m": [*before, kept[0]]}, {"m": [*after, kept[0]]}) if "[" in line]
    assert shown == [["-", "[1]"], ["-", "[2]"], ["+", "[1]"], ["+", "[2]"]]
