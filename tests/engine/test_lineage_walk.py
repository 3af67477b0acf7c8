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
def test_a_line_ends_where_nothing_is_left_and_leads_in_no_circle(
    origins: Mapping[str | None, str | None], line: list[str]
) -> None:
    assert list(walk_back("3", origins)) == line


@pytest.mark.parametrize("key", [REWOUND_TO, BRANCHED_FROM])
def test_a_twin_came_from_where_it_is_a_twin_of(key: str) -> None:
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
def test_a_subgraphs_checkpoint_is_of_the_root_step_it_began_in(
    namespace: str, metadata: Mapping[str, Any], root: str | None
) -> None:
    assert root_of(Address("t", namespace, "1"), metadata) == root
