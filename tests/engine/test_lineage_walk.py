"""The origin of a checkpoint, after prunes, rewinds and damage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import BRANCHED_FROM, REWOUND_TO
from langgraph_keel.engine.lineage import origin_of, root_of, walk_back


@pytest.mark.parametrize(
    ("origins", "line"),
    [
        ({}, []),
        ({"1": None, "2": "1", "3": "2", "4": "2"}, ["3", "2", "1"]),
        ({"2": "1", "3": "2"}, ["3", "2"]),  # "1" was pruned
        ({"1": "3", "2": "1", "3": "2"}, ["3", "2", "1"]),
    ],
)
def test_lineage_ends_at_a_removed_checkpoint_and_at_a_cycle(
    origins: Mapping[str | None, str | None], line: list[str]
) -> None:
    assert list(walk_back("3", origins)) == line


@pytest.mark.parametrize("key", [REWOUND_TO, BRANCHED_FROM])
def test_the_origin_of_a_twin_is_its_existing_original(key: str) -> None:
    assert origin_of("4", {key: "2"}, {"2"}) == "2"
    assert origin_of("4", {key: "2"}, {"3"}) == "4"
    assert origin_of("4", {key: 2}, {2}) == "4"


@pytest.mark.parametrize(
    ("namespace", "metadata", "root"),
    [
        ("", {"parents": {"": "0"}}, "1"),
        ("a:b", {"parents": {"": "0"}}, "0"),
        ("a:b", {"parents": "0"}, None),
        ("a:b", {}, None),
    ],
)
def test_a_subgraph_checkpoint_belongs_to_the_root_step_of_its_start(
    namespace: str, metadata: Mapping[str, Any], root: str | None
) -> None:
    assert root_of(Address("t", namespace, "1"), metadata) == root
