"""A timeline as HTML: complete as text, inert user content, readable in any theme."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Interrupt
from support.history.moments import HOSTILE, bushy, calls, chain, hostile, long, messages, story, wide
from support.pages import Element, check_harmless, page

from langgraph_keel.display.html import LANES
from langgraph_keel.display.text import UNSAFE, plain
from langgraph_keel.history.comparison import compare_branches
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.records import Change
from langgraph_keel.history.render.details import moment_html
from langgraph_keel.history.render.html import timeline_html


def cells(moments: list[Moment], place: int) -> list[str]:
    """Return the text of the cells of one moment's row."""
    row = next(row for row in page(timeline_html(moments, 0)).all("tr") if row.all("td") and place_of(row) == place)
    return [" ".join(cell.text().split()) for cell in row.all("td")]


def place_of(row: Element) -> int:
    return int(row.all("td")[1].text())


def test_rows_are_newest_first_with_every_column() -> None:
    read = check_harmless(timeline_html(story(), 0))
    assert [name.text() for name in read.all("th")] == ["", "#", "checkpoint", "what happened", "model, stored"]
    assert [place_of(row) for row in read.all("tbody")[0].all("tr")] == [*range(14, -1, -1)]
    assert "thread support-42 · 15 moments · 2026-11-22" in read.text()
    time = f"{story()[13].time.astimezone():%H:%M:%S}"  # type: ignore[union-attr]
    assert cells(story(), 13) == [
        *("", "13", f"08d12dfd{time}", "repair continues #11bad 311 → 0", "gpt-5.11.5 MB"),
    ]


def test_the_table_is_complete_without_pictures_and_styles() -> None:
    assert "branch from #5" in cells(story(), 12)[3]
    assert "rewound to #5" in cells(story(), 11)[3]
    assert "waits: Send the report?" in cells(story(), 14)[3]
    assert "failed: MigrationError" in cells(story(), 10)[3]
    assert "drift: model gpt-5.1 → gpt-5.2" in cells(story(), 10)[3]
    assert "migrate › input called at #5" in cells(story(), 6)[3]
    assert "count_rows (replayed)" in cells(story(), 3)[3]
    assert [mark.text() for mark in page(timeline_html(story())).all("mark")] == [
        "with repair",
        "before migration",
        "asked",
    ]


def test_each_row_has_the_full_id_as_a_title() -> None:
    titles = [code.attributes.get("title") for code in page(timeline_html(chain(2))).all("code")]
    assert titles == [moment.id for moment in chain(2)][::-1]


def test_messages_are_in_collapsed_details() -> None:
    details = page(timeline_html(story())).all("details")
    said = next(each for each in details if "read_schema(" in each.text())
    assert said.all("summary")[0].text() == 'messages +1 ai: "I read the schema first."'
    assert "→ read_schema(table='customers')" in said.text()
    assert not [each for each in details if "open" in each.attributes]


def test_a_structured_question_is_in_collapsed_details() -> None:
    details = page(timeline_html(story())).all("details")
    assert "asked: question: Migrate 12,482 rows?, rows: 12482" in [each.inside[0].text() for each in details]  # type: ignore[union-attr]
    assert [pre.text() for each in details for pre in each.all("pre")] == [
        '{\n  "question": "Migrate 12,482 rows?",\n  "rows": 12482\n}'
    ]


@pytest.mark.parametrize(
    "shown",
    [
        lambda: timeline_html(hostile()),
        lambda: "".join(map(moment_html, hostile())),
        lambda: compare_branches(hostile()[:2], hostile()[::3])._repr_html_(),
    ],
    ids=["table", "moment", "beside"],
)
def test_user_content_is_inert(shown: Callable[[], str]) -> None:
    html = shown()
    read = check_harmless(html)
    assert not read.all("script")
    assert not UNSAFE.search(html.replace("\n", ""))
    assert plain(HOSTILE) in read.text()


def test_hostile_text_is_shown_literally() -> None:
    told = cells(hostile(), 1)[3]
    assert told.count(plain(HOSTILE)) >= 12
    read = check_harmless(
        timeline_html([replace(chain(1)[0], nodes=('"><img src=x onerror=1>',), models=("' onload='",))])
    )
    assert "><img src=x onerror=1>" in read.text()
    assert "' onload='" in read.text()


def test_a_lone_surrogate_can_be_encoded() -> None:
    check_harmless(timeline_html([replace(chain(1)[0], changes=messages(HumanMessage("\ud800")), summary="\ud800")]))


def test_colours_are_readable_in_both_themes() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert LANES[0] == "currentColor"
    for colour in LANES[1:]:
        assert 1.05 / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / 0.05 >= 3


def test_backgrounds_are_transparent_and_text_inherits_its_colour() -> None:
    for html in (timeline_html(story()), moment_html(story()[5]), compare_branches(story(), story())._repr_html_()):
        styles = re.findall(r'style="([^"]*)"', html)
        assert all(found == "inherit" for style in styles for found in re.findall(r"(?<![-\w])color:([^;]*)", style))
        grounds = [found for style in styles for found in re.findall(r"background:([^;]*)", style)]
        assert all(re.fullmatch(r"none|rgba\(\d+,\d+,\d+,\.\d+\)", ground) for ground in grounds)


def test_each_row_has_a_picture() -> None:
    pictures = page(timeline_html(story())).all("svg")
    assert len(pictures) == 15
    assert all(each.attributes["width"] == "70" for each in pictures)
    assert [len(each.all("path")) for each in pictures] == [*[0] * 9, 2, 1, 0, 0, 0, 0]
    assert [len(each.all("circle")) for each in pictures] == [2, *[1] * 14]
    dashed = [any("stroke-dasharray" in line.attributes for line in each.all("line")) for each in pictures]
    assert dashed == [place in (6, 7, 8) for place in range(14, -1, -1)]


def test_pictures_of_adjacent_rows_connect() -> None:
    pictures = page(timeline_html(story())).all("svg")
    for above, below in pairwise(pictures):
        down = {line.attributes["x1"] for line in above.all("line") if line.attributes["y2"] == "100%"}
        up = {line.attributes["x1"] for line in below.all("line") if line.attributes["y1"] == "0"}
        bends = {path.attributes["d"].split()[0].removeprefix("M") for path in below.all("path")}
        assert down == up | bends


@pytest.mark.parametrize(
    ("older", "said"),
    [
        (9980, "… 9,980 older moments: keel timeline --all, or timeline[:] in Python"),
        (None, "… older moments: keel timeline --all, or timeline[:] in Python"),
    ],
)
def test_older_moments_are_counted(older: int | None, said: str) -> None:
    assert page(timeline_html(chain(30)[-20:], older)).text().endswith(said)
    assert "older" not in timeline_html(chain(3), 0) + timeline_html(chain(3), None)


def test_an_empty_timeline() -> None:
    assert page(timeline_html([])).text() == "no moments"


def test_one_moment_as_html() -> None:
    read = check_harmless(moment_html(story()[5]))
    facts = {row.all("th")[0].text(): row.all("td")[0].text() for row in read.all("tr")}
    assert facts["checkpoint"] == story()[5].id
    assert facts["continues"] == story()[4].id
    assert [each.text() for each in read.all("mark")] == ["before migration"]
    assert [each.all("summary")[0].text() for each in read.all("details")] == ["asked i1", "metadata"]
    assert "open" in read.all("details")[0].attributes
    assert read.text().count("asked") == 1
    assert "failed: MigrationError" in page(moment_html(story()[10])).text()


def test_the_messages_of_one_moment() -> None:
    new = messages(ToolMessage("gone", tool_call_id="c", name="drop", status="error"), AIMessage(""))
    text = page(moment_html(replace(chain(1)[0], changes=(*new, Change("plan", "= 3"))))).text()
    assert "tool drop failedgone" in text
    assert "ai(empty)" in text
    assert "plan = 3" in text


def test_long_lists_are_shortened() -> None:
    new = messages(*(HumanMessage(str(number) * 10_000) for number in range(1000)))
    html = timeline_html([replace(chain(1)[0], changes=new)])
    assert "… 980 before these" in html
    assert len(html) < 60_000


def test_many_questions_are_shortened() -> None:
    values = [{"n": 0}, "text", {"n": 2}, *({"n": number} for number in range(3, 20))]
    asked = tuple(Interrupt(value=value, id=str(number)) for number, value in enumerate(values))
    read = page(timeline_html([replace(chain(1)[0], interrupts=asked)]))
    assert [each.all("summary")[0].text() for each in read.all("details")] == [
        f"waits: n: {number}" for number in (0, 2, 3, 4, 5, 6, 7)
    ]
    assert "waits: … 12 more" in read.text()
    assert "waits: text" in read.text()


@pytest.mark.parametrize("made", [long, wide, bushy], ids=["long", "wide", "bushy"])
def test_size_and_work_grow_linearly(made: Callable[[int], list[Moment]]) -> None:
    few, many = made(60), made(600)
    assert len(timeline_html(many)) < 13 * len(timeline_html(few))
    assert calls(lambda: timeline_html(many)) < 12 * calls(lambda: timeline_html(few))
