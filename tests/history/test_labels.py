"""User-defined names of moments, on every backend."""

from __future__ import annotations

from typing import Any

import pytest
from support.history.conversations import CONFIG, saver, talk

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, NotFound

__all__ = ["saver"]


def test_labels_are_set_listed_and_removed(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")
    for place, name in ((3, "b"), (1, "a"), (3, "ß \u202e <script>")):
        tl.label(place, name)
    assert [(label.name, label.address) for label in saver.labels.list("t")] == [
        ("a", tl[1].address),
        ("b", tl[3].address),
        ("ß \u202e <script>", tl[3].address),
    ]
    saver.labels.set(CONFIG, "latest")
    assert tl.refresh()["latest"] == tl[-1]
    with pytest.raises(InvalidInput, match="already"):
        tl.label(2, "b")
    tl.unlabel("b")
    tl.label(2, "b")
    assert tl["b"].position == 2
    with pytest.raises(NotFound, match="no label"):
        tl.unlabel("gone")
    with pytest.raises(NotFound):
        saver.labels.set({"configurable": {"thread_id": "other"}}, "x")
    with pytest.raises(NotFound):
        saver.labels.set({"configurable": {"thread_id": "t", "checkpoint_id": "other"}}, "x")


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "14", "-1", "\ud800", None, 3])
def test_invalid_labels_are_refused(name: Any) -> None:
    with MemorySaver() as saver:
        talk(saver, 1)
        with pytest.raises(InvalidInput, match="label"):
            saver.labels.set(CONFIG, name)
        assert saver.labels.list("t") == []


def test_a_prune_keeps_labelled_checkpoints(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")
    kept, state = tl[3], tl[3].values
    kept.label("keep me")
    saver.prune(["t"])
    tl.refresh()
    assert [moment.id for moment in tl] == [kept.id, tl[-1].id]
    assert tl["keep me"].values == state
    assert tl[0].parent is None
    tl.unlabel("keep me")
    saver.prune(["t"])
    assert len(tl.refresh()) == 1


def test_labels_are_deleted_with_their_thread(saver: KeelSaver) -> None:
    talk(saver)
    saver.labels.set(CONFIG, "mine")
    saver.copy_thread("t", "copy")
    assert saver.labels.list("copy") == []
    saver.delete_thread("t")
    assert saver.labels.list("t") == []


def test_a_rewind_to_a_label_shows_it_on_the_new_head(saver: KeelSaver) -> None:
    talk(saver)
    tl = saver.timeline("t")
    tl.label(3, "before")
    original = tl.refresh()["before"].id
    for _ in range(2):
        tl.rewind("before")
        assert tl.head is not None
        assert (tl.head.labels, tl["before"].id) == (("before",), original)
    tl.rewind(tl.head)
    assert tl[-1].labels == ("before",)
    assert [label.name for label in saver.labels.list("t")] == ["before"]
