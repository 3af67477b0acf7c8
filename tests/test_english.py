"""The prose of Keel is plain English, as far as a program can see it (CONTRIBUTING.md, "Style").

Budgets are rates per 1,000 words, or shares. Those of the odd grammar are near the rates of psycopg 3.3 and dbos 3.4
(`python -m support.english DIRECTORY`): clauses as nouns 0.34 and 0.36, the others 0 to 0.12. If a budget is exceeded,
rewrite the sentences with a noun as their subject; words in another order read no better.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.english import ODD, Text, long_first_lines, rates_of, sentences_of, texts_in, unconditional_raises

ROOT = Path(__file__).parents[1]
BUDGETS = {
    "a clause as a noun": 0.5,
    "nobody, somebody, whoever": 0.2,
    "stands, stood": 0.2,
    "goes on": 0.2,
    "anew, meanwhile, beside": 0.3,
    "but for": 0.05,
    "is told": 0.1,
    "words in a sentence, mean": 20.0,
    "sentences over 30 words, %": 1.5,
    "first lines over 80, %": 2.0,
    "raises without a condition, %": 2.0,
}


def texts(kind: str) -> list[Text]:
    if kind == "package":
        return [*texts_in(ROOT / "langgraph_keel")]
    pages = [*texts_in(ROOT / "langgraph_keel", ".md"), *texts_in(ROOT / "tests", ".md")]
    return pages + [text for path in sorted(ROOT.glob("*.md")) for text in texts_in(path, ".md")]


def places(found: list[Text], name: str) -> list[str]:
    if name in ODD:
        return [f"{each.place}: {odd[0]}" for each in found for odd in ODD[name].finditer(each.text)]
    return (unconditional_raises if "raises" in name else long_first_lines)(found)


@pytest.mark.parametrize("kind", [pytest.param("package", marks=pytest.mark.slow), "pages"])
def test_prose_is_plain(kind: str) -> None:
    found = texts(kind)
    rates = rates_of(found)
    over = {name: (rates[name], places(found, name)) for name, budget in BUDGETS.items() if rates[name] > budget}
    assert over == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a clause as a noun", "What was put is read again."),
        ("nobody, somebody, whoever", "Whoever comes next has to wait."),
        ("stands, stood", "It stands in the header."),
        ("goes on", "The run goes on from here."),
        ("anew, meanwhile, beside", "It is read anew."),
        ("but for", "All threads but for this one."),
        ("is told", "The caller is told so."),
    ],
)
def test_odd_grammar_is_counted(name: str, text: str) -> None:
    assert rates_of([Text("here", text)])[name] > BUDGETS[name]
    assert rates_of([Text("here", "The store reads each record again.")])[name] == 0


def test_long_sentences_and_first_lines_are_counted() -> None:
    long = Text("here", f"{'word ' * 31}end.", is_docstring=True)
    short = Text("there", "A short one. And `code` that counts once.", is_docstring=True)
    found = rates_of([long, short])
    assert found["first lines over 80, %"] == 50
    assert found["sentences over 30 words, %"] == pytest.approx(100 / 3)


def test_a_list_item_counts_as_a_sentence() -> None:
    text = (
        "These are read:\n\n* the first of them\n* and the second one\n\nArgs:\n    limit: Maximum number of entries."
    )
    assert [*sentences_of(text)] == [
        "These are read:",
        "the first of them",
        "and the second one",
        "Maximum number of entries.",
    ]


def test_raises_needs_a_condition() -> None:
    text = "Read.\n\nRaises:\n    NotFound: If it is gone,\n        or has expired.\n    StoreBusy: Locked by others."
    assert unconditional_raises([Text("here", text)]) == ["here StoreBusy: Locked by others."]
