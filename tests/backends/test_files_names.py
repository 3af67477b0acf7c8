"""Thread ids as names of directories."""

from __future__ import annotations

import re
import unicodedata
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.tiers import examples

from langgraph_keel.backends.files.disk import LONGEST, directory_of, thread_of
from langgraph_keel.errors import CorruptStore, InvalidInput

NAMES = {
    "user-1": "user-1",
    "User_1": "+user_1",
    "a.b": "a.b",
    "": "%",
    ".": "%2e",
    "..": "%2e%2e",
    "...": "%2e.%2e",
    ".hidden": "%2ehidden",
    "end.": "end%2e",
    "../../etc/passwd": "%2e.%2f..%2fetc%2fpasswd",
    "a/b\\c": "a%2fb%5cc",
    "a\0b\n": "a%00b%0a",
    "50 %": "50%20%25",
    "1+1": "1%2b1",
    "straße": "stra%c3%9fe",
    "CON": "+c+o+n",
    "con": "%63on",
    "nul.tar.gz": "%6eul.tar.gz",
    "com1": "%63om1",
    "lpt9.": "%6cpt9%2e",
    "console": "console",
    "acon": "acon",
    "com10": "com10",
    "com\u00b9": "com%c2%b9",
    "x" * 200: "x" * 200,
    "x" * 201: "x" * 150 + "%%" + "84a0678c90937f5dcf9994d5866668da6b995109",
}
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
ids = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.text("aA.%+/\\1c", max_size=8),
    st.text("aÄ+. ", min_size=60, max_size=260),
    st.sampled_from(["con", "NUL", "aux.", "prn.x", "lpt1"]).flatmap(
        lambda name: st.text("a.A", max_size=2).map(name.__add__)
    ),
)


@pytest.mark.parametrize("thread_id", NAMES, ids=range(len(NAMES)))
def test_directory_names_are_part_of_the_format(thread_id: str) -> None:
    assert directory_of(thread_id) == NAMES[thread_id]


@settings(max_examples=examples(400), deadline=None)
@given(ids)
@example("é" * 24 + "aa" + "é")
def test_a_directory_name_is_safe_and_reversible(thread_id: str) -> None:
    name = directory_of(thread_id)
    assert re.fullmatch(r"[a-z0-9._+%-]{1,200}", name)
    assert not name.startswith(".")
    assert not name.endswith(".")
    assert not DEVICE.fullmatch(name)
    assert thread_of(name) == (None if "%%" in name else thread_id)
    assert ("%%" in name) == (name[-42:-40] == "%%")


@settings(max_examples=examples(200), deadline=None)
@given(ids)
def test_no_id_leaves_the_root(thread_id: str) -> None:
    root = Path("/root/threads")
    path = root / directory_of(thread_id)
    assert path.parent == root
    assert path.resolve().parent == root.resolve()


def folded(name: str, form: str) -> str:
    return unicodedata.normalize(form, name.casefold())  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_ids_stay_distinct_without_case_and_normalization(form: str) -> None:
    alphabet = [
        "a",
        "A",
        "é",
        "e\u0301",
        "É",
        "ß",
        "ss",
        "SS",
        "ſ",
        "K",
        "\u212a",
        "İ",
        "ı",
        ".",
        "%",
        "+",
        "2e",
        "%2e",
    ]
    every = {"".join(parts) for n in range(4) for parts in product(alphabet, repeat=n)}
    long = {"A" * 300, "a" * 300, "é" * 99, "e\u0301" * 99, "É" * 99, "a" * 299 + "A", "a" * 299 + "b"}
    assert len({folded(directory_of(each), form) for each in every | long}) == len(every | long)


@pytest.mark.parametrize("before", range(6))
def test_a_long_name_is_cut_between_characters(before: int) -> None:
    for end in ("é" * 100, "A" * 200, "/" * 100):
        name = directory_of("a" * before + end)
        head, digits = name.split("%%")
        assert len(name) <= LONGEST
        assert 148 <= len(head) <= 150
        assert len(digits) == 40
        assert re.fullmatch(r"([a-z0-9._-]|\+[a-z]|%[0-9a-f]{2})+", head)
        assert thread_of(name) is None


STRAY = {
    "empty": "", "upper case": "User", "hidden": ".new-12", "dots": "..", "dot at the end": "a.", "device": "con",
    "needless escape": "%61", "escape in upper case": "%2F", "half an escape": "a%2", "sign alone": "a+",
    "no letter": "+1", "no UTF-8": "%ff", "surrogate": "%ed%a0%80", "not decoded": "a\udcff", "space": "lost found",
    "other": "straße", "newline": "a\n", "short before the digest": "a%%" + "0" * 40,
    "short digest": "a" * 150 + "%%" + "0" * 39, "long digest": "a" * 150 + "%%" + "0" * 41,
    "hidden and long": "." + "a" * 149 + "%%" + "0" * 40, "digest of letters": "a" * 150 + "%%" + "g" * 40,
    "too long": "a" * 201, "two cuts": "%%" * 60 + "0" * 40,
}  # fmt: skip


@pytest.mark.parametrize("name", STRAY.values(), ids=STRAY.keys())
def test_a_directory_that_is_not_of_a_thread_is_recognized(name: str) -> None:
    with pytest.raises(CorruptStore, match="does not belong to a thread"):
        thread_of(name)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=12) | st.text("a%2e+.6c3f", max_size=12))
def test_a_directory_name_belongs_to_at_most_one_id(name: str) -> None:
    try:
        thread_id = thread_of(name)
    except CorruptStore:
        return
    assert thread_id is not None
    assert directory_of(thread_id) == name


def test_an_id_without_utf8_is_refused() -> None:
    with pytest.raises(InvalidInput, match="UTF-8"):
        directory_of("a\ud800")
