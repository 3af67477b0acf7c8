"""Nothing that a program has stored stands anywhere in plain text, and all of it is read back: the golden story."""

from __future__ import annotations

import asyncio
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from golden import story
from golden.kinds import TYPES
from golden.seen import aseen, seen
from retention_threads import BACKENDS

from langgraph_keel import FileSaver, KeelSaver, Keyring, LocalKey, Retention, SqliteSaver

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))
WORDS = re.compile(rb"[A-Za-z][A-Za-z ]{6,60}")
NAME = re.compile(rb"[a-z]+")
"""May stand there: names of channels, nodes and cells, one word in small letters."""


def words_in(told: Any) -> set[bytes]:
    """The words of all that there is to read, but names."""
    return {word for word in map(bytes.strip, WORDS.findall(repr(told).encode())) if not NAME.fullmatch(word)}


def write(open_: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        story.write(open_)


def left_in(raw: bytes, told: Any, empty: bytes = b"") -> set[bytes]:
    """The words that stand in a store; the names of threads may, and what stands in one that is nearly empty."""
    names = b"\n".join([empty, *(name.encode() for name in told["thread"])])
    return {word for word in words_in(told) if word in raw and word not in names}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_holds_no_word_of_what_is_read_from_it(stores: Any, backend: str) -> None:
    def open_(**options: Any) -> KeelSaver:
        saver: KeelSaver = stores[backend].open(encryption=KEYRING, **options)
        return saver

    with open_() as saver:
        saver.set_retention(Retention(last=9))  # what Keel itself writes beside it, such as settings for git
        empty = stores[backend].raw()
    write(open_)
    with open_(types=TYPES) as saver:
        told = seen(saver)
        assert told["verdict"] != {}
        both = asyncio.run(aseen(saver))
    assert {name: each["labels"] for name, each in told["thread"].items()} == {
        name: each["labels"] for name, each in both["thread"].items()
    }
    assert len(words_in(told)) > 130
    assert left_in(stores[backend].raw(), told, empty) == set()
    stores[backend].wipe()


@pytest.mark.parametrize(("kind", "name"), [(SqliteSaver, "keel.db"), (FileSaver, "")], ids=["sqlite", "files"])
def test_nor_does_any_file(tmp_path: Path, kind: Any, name: str) -> None:
    """The log, free pages, and what is written beside."""

    def open_(**options: Any) -> Any:
        return kind(tmp_path / name, encryption=KEYRING, **options)

    with open_() as saver:
        saver.set_retention(Retention(last=9))
        empty = files_in(tmp_path)
    write(open_)
    with open_(types=TYPES) as saver:
        told = seen(saver)
        raw = files_in(tmp_path)
    assert len(raw) > 2 * len(empty)
    assert left_in(raw, told, empty) == set()


def files_in(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
