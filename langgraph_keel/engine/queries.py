"""The arguments of `list` as a query, and metadata filters (see README.md).

As in LangGraph's InMemorySaver, an absent key equals `None`, and a tuple equals a list of the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from langgraph_keel.engine.config import address_of, configurable, text_of
from langgraph_keel.engine.entries import Header, as_lists
from langgraph_keel.engine.records import Query
from langgraph_keel.errors import InvalidInput

FindTerms: TypeAlias = Callable[[Header], Mapping[str, Collection[Any]]]

PAGE = 50
"""Checkpoints per page of `list`; with a filter, ten pages of headers per trip."""


def checked_limit(limit: int | None) -> int | None:
    """Return `limit` if it is valid."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidInput(f"limit must be None or a whole number that is not negative: {limit!r}")
    return limit


def query_of(
    config: Mapping[str, Any] | None,
    filter: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    limit: int | None,
) -> Query:
    """Return the query for the first page."""
    if filter is not None and not isinstance(filter, Mapping):
        raise InvalidInput(f"filter must map metadata keys to values, not {filter!r}")
    size = PAGE if checked_limit(limit) is None else min(PAGE, max(1, limit or 1))
    bound = configurable(before).get("checkpoint_id") if before else None
    query = Query(
        before=text_of(bound, "checkpoint_id of before", empty=False) if bound else None,
        limit=PAGE * 10 if filter else size,
    )
    if config is None:
        return query
    address = address_of(config)
    everywhere = configurable(config).get("checkpoint_ns") is None
    return replace(
        query,
        thread_id=address.thread_id,
        checkpoint_ns=None if everywhere else address.checkpoint_ns,
        checkpoint_id=address.checkpoint_id,
    )


def matches(header: Header, filter: Mapping[str, Any], find_terms: Iterable[FindTerms]) -> bool:
    """Return whether a checkpoint matches a filter, by metadata or features' terms."""
    terms = {name: found for find in find_terms for name, found in find(header).items()}
    return all(
        header.metadata.get(key) == as_lists(value) or (key in terms and value in terms[key])
        for key, value in filter.items()
    )
