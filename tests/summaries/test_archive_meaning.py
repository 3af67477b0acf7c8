"""Summarized messages are found by meaning, on demand, and embedded once."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from support.store.meaning import Recorded, cosine
from support.summaries.archives import Box, box, turns

from langgraph_keel import InvalidInput, MemorySaver

__all__ = ["box"]  # a fixture


def test_archived_messages_are_found_by_meaning(box: Box) -> None:
    embed = Recorded()
    assert box.call("search", "anything", semantic=embed) == []
    old = box.keep([*turns(0, 3), AIMessage("", id="blank")])
    new = box.keep([HumanMessage("a window seat", id="x")], previous=old.id)
    (first, *others) = box.call("search", "a window seat", semantic=embed)
    assert (first.entry.id, first.index, first.message.id) == (new.id, 0, "x")
    assert first.score == pytest.approx(1, abs=1e-5)
    scores = [cosine(str(hit.message.text), "a window seat") for hit in others]
    assert [hit.score for hit in others] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    assert sorted(hit.message.id for hit in others) == ["m0", "m1", "m2"]
    assert box.call("search", "a window seat", 1, semantic=embed) == [first]
    assert box.call("search", "a window seat", limit=0, semantic=embed) == []
    assert box.call("messages", first) == [first.message]  # a hit names its part
    later = box.keep(turns(7, 8), previous=new.id)
    assert [hit.entry.id for hit in box.call("search", str(turns(7, 8)[0].text), 1, semantic=embed)] == [later.id]
    texts = [text for call in embed.calls for text in call]
    assert len(texts) == len({*texts}) == 5
    assert [hit.score for hit in box.call("search", "window")] == [None]


@pytest.mark.parametrize("semantic", [5, "nobody:knows"])
def test_an_invalid_embedding_is_refused(semantic: Any) -> None:
    with MemorySaver() as saver:
        archive = saver.archive("t")
        with pytest.raises(InvalidInput, match=f"embed={semantic!r} cannot embed texts"):
            archive.search("x", semantic=semantic)
        assert archive.search("x", semantic=lambda texts: [[1.0] for _ in texts]) == []
