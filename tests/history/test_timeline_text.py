"""A timeline as text: every width, every alphabet, and no control of the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Interrupt, Send
from rich.cells import cell_len
from rich.console import Console
from support.history.moments import HOSTILE, bushy, calls, chain, hostile, long, messages, story, wide
from typer.testing import CliRunner

from langgraph_keel import MemorySaver, open_saver, request_approval
from langgraph_keel._langgraph import TASKS
from langgraph_keel.cli import app
from langgraph_keel.display.text import UNSAFE, format_size, plain, short_ids
from langgraph_keel.history.comparison import compare_branches
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.records import Change, ToolUse
from langgraph_keel.history.render.details import MomentPage
from langgraph_keel.history.render.terminal import WIDTH, TimelinePage, page_text
from langgraph_keel.testing.rig import Author, SyncFace, at


def as_text(moments: Sequence[Moment], older: int | None = None, width: int = WIDTH) -> str:
    return page_text(TimelinePage(moments, older), width)


def moment_text(moment: Moment, width: int = WIDTH) -> str:
    return page_text(MomentPage(moment), width)


TREE = " │┊●○◉─┴╯╰┼"


def line_of(text: str, place: int) -> str:
    """Return the lines of one moment, joined, without the tree and repeated spaces."""
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if any(mark in line[:20] for mark in "●○◉…")]
    start = next(at for at in starts if lines[at].strip(TREE).startswith(f"{place} "))
    later = [at for at in starts if at > start]
    return " ".join(" ".join(line.strip(TREE) for line in lines[start : min(later, default=len(lines))]).split())


def said(moment: Moment, **changed: object) -> str:
    return line_of(as_text([replace(moment, **changed)], 0, 200), moment.position)  # type: ignore[arg-type]


@pytest.fixture
def moment() -> Moment:
    return chain(3)[2]


def test_rows_are_newest_first_with_every_column() -> None:
    lines = as_text(story(), 0, 160).split("\n")
    assert lines[0].startswith("thread support-42 · 15 moments · 2026-11-22")
    assert lines[1].split() == ["#", "checkpoint", "time", "nodes", "what", "happened", "model", "stored"]
    assert [line.split()[1] for line in lines[2:4]] == ["14", "13"]
    local = f"{story()[13].time.astimezone():%H:%M:%S}"  # type: ignore[union-attr]
    assert lines[3].split() == f"● 13 08d12dfd {local} repair continues #11 · bad 311 → 0 gpt-5.1 1.5 MB".split()


@pytest.mark.parametrize("width", [160, 100, 80])
def test_rows_describe_events_at_every_width(width: int) -> None:
    text = as_text(story(), 0, width)
    assert "report" in line_of(text, 14)
    assert "waits: Send the report? · next: send" in line_of(text, 14)
    assert "[with repair] · branch from #5" in line_of(text, 12)
    assert "rewound to #5" in line_of(text, 11)
    failed = "failed: MigrationError('311 rows have no e-mail address') · drift: model gpt-5.1 → gpt-5.2"
    assert set(failed.split()) <= set(line_of(text, 10).split())
    assert "1 written: audit" in line_of(text, 10)
    assert "copy_row ×31" in line_of(text, 9)
    assert "migrate › check" in line_of(text, 8)
    assert "called at #5" in line_of(text, 6)
    assert "[before migration]" in line_of(text, 5)
    assert "asked: question:" in line_of(text, 5)
    assert "read_schema · count_rows (replayed)" in line_of(text, 3)


@pytest.mark.parametrize("made", [story, hostile, lambda: wide(20)], ids=["story", "hostile", "wide"])
@pytest.mark.parametrize("width", [160, 100, 80, 60, 40])
def test_no_line_exceeds_the_width(made: Callable[[], list[Moment]], width: int) -> None:
    assert max(map(cell_len, as_text(made(), 3, width).split("\n"))) <= width


def test_wide_letters_take_two_columns(moment: Moment) -> None:
    text = as_text([replace(moment, summary="雪" * 100, nodes=("雪国",))], 0, 80)
    assert max(map(cell_len, text.split("\n"))) <= 80
    assert text.count("雪") == 101


def test_control_characters_are_escaped() -> None:
    shown = [as_text(hostile(), None, 90), *(moment_text(moment) for moment in hostile())]
    assert not any(UNSAFE.search(text.replace("\n", "")) for text in shown)
    assert all("\\x1b[31m" in text for text in shown)


def test_rich_shows_the_same_text_with_literal_brackets() -> None:
    for made, page in ((story(), TimelinePage(story(), 7)), (hostile(), TimelinePage(hostile(), 7))):
        out = io.StringIO()
        Console(file=out, width=90).print(page)
        assert [line.rstrip() for line in out.getvalue().split("\n")[:-1]] == as_text(made, 7, 90).split("\n")


def test_rich_has_colours() -> None:
    out = io.StringIO()
    Console(file=out, width=90, force_terminal=True, color_system="standard").print(TimelinePage(story(), 0))
    assert "\x1b[1;31mMigrationError" in out.getvalue() or "\x1b[1;31mfailed: " in out.getvalue()


@pytest.mark.parametrize(
    ("older", "last"),
    [
        (9980, "┊ … 9,980 older moments: keel timeline --all, or timeline[:] in Python"),
        (1, "┊ … 1 older moment: keel timeline --all, or timeline[:] in Python"),
        (None, "┊ … older moments: keel timeline --all, or timeline[:] in Python"),
    ],
    ids=str,
)
def test_older_moments_are_counted(older: int | None, last: str) -> None:
    assert as_text(chain(30)[-20:], older).split("\n")[-1] == last


def test_no_older_moments_are_mentioned_at_the_start() -> None:
    assert "older" not in as_text(chain(3), None) + as_text(chain(3), 0)


def test_an_empty_timeline() -> None:
    assert as_text([], None) == "no moments"


def test_dates_are_shown_if_a_timeline_has_several_days(moment: Moment) -> None:
    assert moment.time is not None
    later = replace(moment, time=moment.time + timedelta(days=400))
    lines = as_text([chain(1)[0], later], 0).split("\n")
    assert f"{later.time.astimezone():%Y-%m-%d %H:%M}" in lines[2]  # type: ignore[union-attr]
    assert lines[0] == "thread support-42 · 2 moments"


def test_unknown_fields_are_omitted(moment: Moment) -> None:
    assert said(moment, step=None, time=None, nodes=(), source="").split()[:2] == ["2", moment.id[-8:]]


def test_the_origin_of_twins_and_forks_is_shown(moment: Moment) -> None:
    origin = {"thread_id": HOSTILE, "checkpoint_id": "x"}
    assert "agent branched from 12345678" in said(moment, metadata={"keel_branched_from": "x12345678"})
    assert "agent rewound to the start" in said(moment, metadata={"keel_rewound_to": None})
    assert f"forked from thread {plain(HOSTILE)[:20]}" in said(moment, metadata={"keel_forked_from": origin})
    assert "forked" not in said(moment, metadata={"keel_forked_from": 3})
    assert "forked from    <script>" in moment_text(replace(moment, metadata={"keel_forked_from": origin}))
    assert "branched from  x1" in moment_text(replace(moment, metadata={"keel_branched_from": "x1"}))
    assert "rewound to     the start" in moment_text(replace(moment, metadata={"keel_rewound_to": None}))


def test_an_empty_label_is_shown(moment: Moment) -> None:
    assert "[]" in said(moment, labels=("",))


def test_an_answered_question_is_not_shown_as_waiting(moment: Moment) -> None:
    asks = (Interrupt(value="Go?", id="1"),)
    assert "asked: Go?" in said(moment, interrupts=asks, is_leaf=False)
    assert "waits: Go?" in said(moment, interrupts=asks, is_leaf=True)


def test_long_lists_are_shortened_to_counts(moment: Moment) -> None:
    text = said(
        moment,
        interrupts=tuple(Interrupt(value=str(number), id=str(number)) for number in range(1000)),
        tools=tuple(ToolUse(f"tool{number}") for number in range(1000)),
        nodes=tuple(f"node{number}" for number in range(1000)),
        errors=tuple("x" * 5000 for _ in range(1000)),
    )
    assert "waits: … 992 more" in text
    assert "… 992 more tools" in text
    assert "node7, … 992 more" in text
    assert len(text) < 5000


def test_the_head_of_a_finished_thread_is_done(moment: Moment) -> None:
    assert said(moment).endswith("done 397 B")
    assert "done" not in said(moment, next=("agent",))


def test_one_moment_as_text() -> None:
    text = moment_text(story()[5])
    assert text.startswith("#5 · plan [before migration]\ncheckpoint     1f1e6316-")
    assert "asked: question: Migrate 12,482 rows?, rows: 12482" in text
    assert "tokens         410 read, 12 written\ncost           0.000916" in moment_text(story()[10])
    assert "rewound to     " + story()[5].id in moment_text(story()[11])
    assert "migrate › check" in moment_text(story()[8])


def test_the_messages_of_one_moment() -> None:
    assert "  ai\n    I read the schema first.\n    → read_schema(table='customers')" in moment_text(story()[2])
    failed = messages(ToolMessage("no such table", tool_call_id="c", name="drop", status="error"))
    assert "  tool drop" in moment_text(replace(chain(1)[0], changes=failed))
    assert "failed" in moment_text(replace(chain(1)[0], changes=failed))


def test_content_blocks_and_other_values_are_shown() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    new = (AIMessage([{"type": "text", "text": "two\nlines"}, image, "bare"]), {"a": [1]}, "text", None)
    text = moment_text(replace(chain(1)[0], changes=(Change("log", "+4", new),)))
    assert "    two\n    lines\n" in text
    assert '"image_url"' in text
    assert "bare" in text
    assert '"a": [' in text
    assert "  NoneType\n    null" in text


def test_long_messages_are_shortened() -> None:
    text = moment_text(replace(chain(1)[0], changes=messages(HumanMessage("word " * 100_000))))
    assert "498,000 more characters" in text
    assert len(text) < 4000


def test_one_moment_fits_its_width() -> None:
    for moment in [*story(), *hostile()]:
        assert max(map(cell_len, moment_text(moment, 60).split("\n"))) <= 60
    out = io.StringIO()
    Console(file=out, width=60).print(MomentPage(story()[5]))
    assert [line.rstrip() for line in out.getvalue().split("\n")[:-1]] == moment_text(story()[5], 60).split("\n")


def test_rich_shows_brackets_of_a_moment_literally() -> None:
    for page in (MomentPage(hostile()[1]), compare_branches(hostile()[:2], hostile()[::3])):
        out = io.StringIO()
        Console(file=out, width=400).print(page)
        assert "[red]" in out.getvalue()
        assert page_text(page, 400).count("[red]") == out.getvalue().count("[red]")


@pytest.mark.slow
@pytest.mark.parametrize("made", [long, wide, bushy], ids=["long", "wide", "bushy"])
def test_the_work_grows_linearly(made: Callable[[int], list[Moment]]) -> None:
    few, many = made(60), made(600)
    assert calls(lambda: as_text(many)) < 12 * calls(lambda: as_text(few))
    assert len(as_text(many)) < 13 * len(as_text(few))


def test_ids_are_as_short_as_they_can_be() -> None:
    assert short_ids(["a" * 30, "b" + "a" * 29]) == {"a" * 30: "a" * 30, "b" + "a" * 29: "b" + "a" * 29}
    assert short_ids(["x1234567890", "y2234567890"]) == {"x1234567890": "1234567890"[-10:], "y2234567890": "2234567890"}
    assert short_ids(["short", HOSTILE]) == {"short": "short", HOSTILE: HOSTILE[-8:]}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (12_345, "12 kB"),
        (999_600, "1.0 MB"),
        (7 * 10**15, "7000 TB"),
    ],
)
def test_sizes_are_formatted(count: int, text: str) -> None:
    assert format_size(count) == text


def test_an_approval_request_shows_its_action_and_arguments() -> None:
    def pay(state: MessagesState) -> dict[str, Any]:
        request_approval("pay", {"who": "bob", "cents": 1000})
        return {}

    with MemorySaver() as saver:
        graph = StateGraph(MessagesState).add_node("pay", pay).add_edge(START, "pay").compile(checkpointer=saver)
        graph.invoke({"messages": []}, {"configurable": {"thread_id": "t"}})
        shown = as_text(list(saver.timeline("t")), width=140)
    assert 'waits: pay {"who": "bob", "cents": 1000}' in shown
    assert "keel_approval" not in shown


@pytest.mark.parametrize("sent", [Send("node", 1), [Send(cast("Any", {}), 1), "node", 7]])
def test_malformed_sent_tasks_are_ignored(sent: Any) -> None:
    with MemorySaver() as saver:
        author = Author(SyncFace(lambda: saver), at(), (f"{number:08}" for number in count(1)))
        for _ in range(2):
            author.put({TASKS: sent})  # LangGraph stores a list of `Send`
        assert len(str(saver.timeline("t")).splitlines()) > 2
        assert saver.status("t").next == ()


@pytest.mark.parametrize("calls", [None, 7, ["x", {"name": 1}, {"args": {}}]])
def test_malformed_messages_are_shown(calls: Any, tmp_path: Path) -> None:
    """Fields of a stored message are unchecked, as after damage."""
    odd = AIMessage.model_construct(content=7, tool_calls=calls, invalid_tool_calls=None)
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver:
        author = Author(SyncFace(lambda: saver), at(), (f"{number:08}" for number in count(1)))
        for known in ([], [odd], [odd, odd]):
            author.put({"messages": known})
        timeline = saver.timeline("t")
        pages = [
            str(timeline[2]),
            *(page for one in (timeline, timeline.diff(0, 2)) for page in (str(one), one._repr_html_())),
        ]
        assert all("7" in page for page in pages)
    assert CliRunner().invoke(app, ["show", "t", "--url", url]).exit_code == 0
