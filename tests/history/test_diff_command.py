"""`keel diff`: two moments, named in any way."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from support.cli_threads import EVIL, RAW, keel, keel_json
from support.history.states import stored
from support.places import Place

from langgraph_keel.display.jsonable import as_json

VERSIONS: list[dict[str, Any]] = [
    {"plan": {"steps": ["look"]}, "note": "it is not safe now", "branch:to:a": None},
    {"plan": {"steps": ["look", EVIL]}, "note": "it is safe now"},
    {"plan": {"steps": []}, "note": "long " * 200},
]
on_sqlite = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


@pytest.fixture
def url(place: Place) -> str:
    """A store with two threads."""
    with place.open() as saver:
        stored(saver, VERSIONS)
        (first,) = stored(saver, [{"note": "another"}], EVIL)
        saver.labels.set(first, "start")
    return place.url


@pytest.mark.parametrize("place", ["sqlite", "files", "postgres"], indirect=True)
def test_diff_shows_changes_between_two_moments(url: str) -> None:
    shown = keel("diff", "t", "0000", "0001", "--url", url).stdout
    assert shown.startswith("thread t: 0000 → 0001\n")
    assert "  + steps[1]: pay \\x1b[31m[red]\\u202e1" in shown
    assert "note: it is [-not-] safe now" in shown
    assert "branch" not in shown
    assert not RAW.search(shown)


@on_sqlite
def test_diff_accepts_all_names_of_a_moment(url: str) -> None:
    expected = keel("diff", "t", "0000", "0002", "--url", url).stdout
    for words in (["0", "2"], ["0000", "2"], ["0"]):
        assert keel("diff", "t", *words, "--url", url).stdout == expected
    assert keel("diff", "--url", url, "--", "t", "-3", "-1").stdout == expected


@on_sqlite
def test_diff_with_full_shows_everything(url: str) -> None:
    short = keel("diff", "t", "1", "2", "--url", url).stdout
    full = keel("diff", "t", "1", "2", "--full", "--url", url).stdout
    assert "more characters" in short
    assert full.count("long") == 200
    assert "branch:to:a" in keel("diff", "t", "0", "1", "--full", "--url", url).stdout


@on_sqlite
def test_diff_with_other_compares_two_threads(url: str) -> None:
    shown = keel("diff", "t", "0", "start", "--other", EVIL, "--url", url, COLUMNS="200").stdout
    assert shown.startswith("thread t, 0000 → thread pay \\x1b[31m[red]\\u202e1, 0000\n")
    assert "plan: removed {'steps': ['look']}" in shown
    assert keel("diff", "t", "0", "--other", EVIL, "--url", url, COLUMNS="200").stdout == shown


@on_sqlite
def test_diff_prints_json_and_patches(url: str) -> None:
    found = keel_json("diff", "t", "0", "1", "--url", url)
    assert found["channels"] == ["plan", "note", "branch:to:a"]
    assert found["edits"][0] == {"kind": "added", "path": ["plan", "steps", 1], "after": EVIL}
    for before, after in ((0, 1), (1, 2), (2, 0)):
        patch = json.loads(keel("diff", "t", str(before), str(after), "--patch", "--url", url).stdout)
        assert jsonpatch.apply_patch(as_json(VERSIONS[before]), patch) == as_json(VERSIONS[after])


@on_sqlite
@pytest.mark.parametrize(
    "words", [["x", "0", "1"], ["t", "0", "nowhere"], ["t", "0", "7"]], ids=["thread", "moment", "position"]
)
def test_missing_threads_and_moments_are_errors(url: str, words: list[str]) -> None:
    assert keel_json("diff", *words, "--url", url, status=1)["error"]["code"] == "not_found"
