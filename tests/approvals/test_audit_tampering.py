"""Tampering with the audit trail is detected, and the changed events are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.approvals.audit import AT, Trail, memory, token, trail
from support.places import files_place
from support.tiers import examples

from langgraph_keel import CorruptStore, InvalidInput, MemorySaver
from langgraph_keel.engine.audit import BEGIN, CONTENTS, HEAD, HEADS, LINKS, cell_of, key_of, next_link
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.encoding.bodies import frame

__all__ = ["memory", "trail"]  # fixtures


def forge(trail: Trail, number: int, **changes: Any) -> None:
    """Change a link, and recompute its own hash."""
    link = replace(trail.link(number), **changes)
    trail.relink(number, next_link(number - 1, link.previous, link.at, link.kind, link.digest))


def insert(trail: Trail) -> None:
    """Append an event without updating the head."""
    forged = next_link(5, trail.link(5).hash, AT, "approved", trail.link(1).digest)
    trail.put(LINKS, key_of(7), cell_of(trail.codec, token(), forged))


def cut_off(trail: Trail) -> None:
    for number in (4, 5):
        trail.put(LINKS, key_of(number), None)


def remove_all(trail: Trail) -> None:
    for number in range(1, 6):
        trail.put(LINKS, key_of(number), None)


def other_text(trail: Trail) -> None:
    salt, text = trail.fields(trail.cells(CONTENTS)[trail.link(2).digest])
    trail.put_content(2, salt, text.replace("asked", "x").replace("me", "you"))


def swapped_contents(trail: Trail) -> None:
    trail.put(CONTENTS, trail.link(2).digest, trail.cells(CONTENTS)[trail.link(4).digest])


# Manipulations of a trail of five events, and the report of a check.
TAMPERED: dict[str, tuple[Callable[[Trail], Any], str]] = {
    "kind": (lambda trail: trail.relink(2, replace(trail.link(2), kind="rejected")), r"^event 2 was changed: its hash"),
    "time": (lambda trail: trail.relink(5, replace(trail.link(5), at="never")), r"^event 5 was changed: its hash"),
    "hash": (lambda trail: trail.relink(2, replace(trail.link(2), hash="0" * 64)), r"event 2 was changed.*3 does not"),
    "kind and hash": (lambda trail: forge(trail, 2, kind="rejected"), r"^event 3 does not follow event 2"),
    "kind and hash of the first": (lambda trail: forge(trail, 1, kind="rejected"), r"^event 2 does not follow event 1"),
    "kind and hash of the last": (lambda trail: forge(trail, 5, kind="x"), r"^event 5 is not the one that the head"),
    "previous": (lambda trail: forge(trail, 1, previous="1" * 64), r"^event 1 does not follow event 0"),
    "digest": (lambda trail: forge(trail, 3, digest=trail.link(1).digest), r"^event 4 does not follow event 3"),
    "another number": (lambda trail: trail.relink(3, trail.link(2)), r"^event 3 of the audit trail was changed"),
    "order": (lambda trail: trail.relink(3, replace(trail.link(4), number=3)), r"event 3 does not follow event 2"),
    "no link": (
        lambda trail: trail.put(LINKS, key_of(3), trail.cells(HEADS)[HEAD]),
        r"^event 3 of the audit trail was",
    ),
    "damage": (
        lambda trail: trail.put(LINKS, key_of(3), Cell(token(), frame(b"\xc1"))),
        r"^event 3 of the audit trail cannot be read: [^;]*$",
    ),
    "removed": (lambda trail: trail.put(LINKS, key_of(3), None), r"^event 3 is missing$"),
    "first removed": (lambda trail: trail.put(LINKS, key_of(1), None), r"^event 1 is missing$"),
    "cut off": (cut_off, r"^event 5 is gone: the head names it, but the last one is 3$"),
    "all removed": (remove_all, r"^event 5 is gone: the head names it, but the last one is 0$"),
    "inserted": (insert, r"^event 7 of the audit trail was changed"),
    "a key of no number": (
        lambda trail: trail.put(LINKS, "x", trail.cells(LINKS)[key_of(1)]),
        r"^event x of the audit",
    ),
    "number 0": (lambda trail: trail.relink(0, replace(trail.link(1), number=0)), r"0 of the audit trail was changed"),
    "would be deleted": (
        lambda trail: trail.put(LINKS, key_of(2), replace(trail.cells(LINKS)[key_of(2)], origin="t")),
        r"^event 2 was changed: it would be deleted",
    ),
    "content": (other_text, r"^event 2: its content was changed$"),
    "content of another": (swapped_contents, r"^event 2: its content was changed$"),
    "no content": (lambda trail: trail.put_content(2, 1, 2), r"^the content of event 2 of the audit trail was changed"),
    "content that is no JSON": (lambda trail: trail.put_content(2, "salt", "{"), r"^the content of event 2 .*changed"),
    "content of no thread": (lambda trail: trail.put_content(2, origin="x"), r"^event 2: its content.*own thread$"),
    "head": (lambda trail: trail.put_head(5, "0" * 64), r"^event 5 is not the one that the head names"),
    "head moved on": (lambda trail: trail.put_head(9, "0" * 64), r"^event 9 is gone: the head names it"),
    "head removed": (lambda trail: trail.put_head(), r"^the head is missing"),
    "no head": (lambda trail: trail.put_head("x"), r"^the head cannot be read"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_verify_names_each_kind_of_tampering(trail: Trail, how: str) -> None:
    trail.append_all("me", 5)
    assert trail.problem() == ""
    tamper, named = TAMPERED[how]
    tamper(trail)
    said = trail.problem()
    assert len(trail.verify().problems) <= 3
    assert re.search(named, said), said


def test_later_events_do_not_hide_missing_ones(trail: Trail) -> None:
    trail.append_all("me", 5)
    cut_off(trail)
    assert trail.append() == 6
    assert trail.problem() == "events 4 to 5 are missing"


def test_a_lost_or_invalid_head_is_rebuilt(trail: Trail) -> None:
    trail.append_all("me", 3)
    trail.put_head("x")
    assert trail.append() == 4
    trail.put_head()
    assert trail.append() == 5
    trail.put_head(10**16, BEGIN)
    assert trail.append() == 6
    assert trail.problem() == ""


def made_anew(trail: Trail) -> None:
    """Rebuild the trail without its second event, with a consistent head."""
    number, previous = 0, BEGIN
    for old in [trail.link(n) for n in (1, 3, 4, 5)]:
        link = next_link(number, previous, old.at, old.kind, old.digest)
        trail.relink(link.number, link)
        number, previous = link.number, link.hash
    trail.put(LINKS, key_of(5), None)
    trail.put_head(number, previous)


def test_only_a_noted_head_reveals_a_rewritten_trail(trail: Trail) -> None:
    trail.append_all("me", 5)
    noted = [trail.verify().head, f"2:{trail.link(2).hash}", f"1:{trail.link(1).hash}"]
    assert [trail.problem(each) for each in noted] == ["", "", ""]
    trail.append()
    assert [trail.problem(each) for each in noted] == ["", "", ""]
    trail.put(LINKS, key_of(6), None)
    made_anew(trail)
    assert [trail.problem(), *(trail.problem(each) for each in noted)] == [
        "",
        "event 5 is gone: the expected head names it, but the last one is 4",
        "event 2 is not the one that the expected head names: it was replaced",
        "",
    ]


@pytest.mark.parametrize("noted", ["", "5", "x:" + "0" * 64, "5:abc", f"5:{'0' * 64} "])
def test_invalid_anchors_are_refused(memory: Trail, noted: str) -> None:
    with pytest.raises(InvalidInput, match="number and hash"):
        memory.verify(noted)


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    with files_place(tmp_path).open() as saver:
        trail = Trail(saver)
        trail.append_all("me", 5)
        (file,) = tmp_path.rglob(f"{key_of(4)}.json")
        file.write_bytes(file.read_bytes().replace(b"asked", b"azked"))
        assert trail.problem().startswith("the check is incomplete after event 0: ")
        assert key_of(4) in trail.problem()
        with pytest.raises(CorruptStore):
            trail.events()


@pytest.mark.slow
@given(data=st.data(), count=st.integers(1, 6))
@settings(max_examples=examples(300), deadline=None)
def test_verify_detects_any_single_change(data: st.DataObject, count: int) -> None:
    with MemorySaver() as saver:
        trail = Trail(saver)
        trail.append_all("me", count)
        shelf = data.draw(st.sampled_from([LINKS, CONTENTS, HEADS]))
        cells = trail.cells(shelf)
        key = data.draw(st.sampled_from(sorted(cells)))
        changed = data.draw(st.sampled_from(["nothing", "a bit", "a field", "another's"]))
        if changed == "nothing":
            trail.put(shelf, key, None)
            removed = trail.verify().removed
            assert removed == 1 if shelf is CONTENTS else not trail.verify().ok
            return
        header = changed_header(data, trail, changed, cells[key].header, [cell.header for cell in cells.values()])
        if header != cells[key].header:
            trail.put(shelf, key, replace(cells[key], header=header))
            assert not trail.verify().ok


def changed_header(data: st.DataObject, trail: Trail, how: str, header: bytes, others: list[bytes]) -> bytes:
    if how == "another's":
        return data.draw(st.sampled_from(others))
    if how == "a bit":
        bit = data.draw(st.integers(0, len(header) * 8 - 1))
        return bytes(byte ^ (1 << bit % 8) * (place == bit // 8) for place, byte in enumerate(header))
    (fields,) = trail.codec.decode(header)
    place = data.draw(st.integers(0, len(fields) - 1))
    fields[place] = data.draw(st.integers(0, 9) | st.text(max_size=3) | st.just(BEGIN) | st.none())
    return trail.codec.encode([fields])
