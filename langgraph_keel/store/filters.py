"""LangGraph's filters on values, and the index terms that narrow a search.

Filters work as in LangGraph's `InMemoryStore`, except that ordering values other than two numbers or two texts is no
match, instead of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from langgraph_keel.errors import InvalidInput
from langgraph_keel.store.records import term_of

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_OPERATORS = {*_ORDERS, "$eq", "$ne"}


def check_filter(wanted: Any) -> Mapping[str, Any]:
    """Return a filter; `InvalidInput` if it is invalid."""
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping):
        raise InvalidInput(f"filter={wanted!r:.200} is not a filter: use a dict from fields to values")
    left: list[Any] = [*wanted.values()]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            if _has_operators(each) and (unknown := [name for name in each if name not in _OPERATORS]):
                known = ", ".join(sorted(_OPERATORS))
                raise InvalidInput(f"the filter has the unknown operator {unknown[0]!r:.60}: use {known}")
            left += each.values()
        elif isinstance(each, (list, tuple)):
            left += each
    return wanted


def fits(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the value of an item matches a filter."""
    return all(_is_like(value.get(field), each) for field, each in wanted.items())


def terms_of_filter(wanted: Mapping[str, Any]) -> list[str]:
    """Return the index terms that all matches of a filter have."""
    terms = []
    for field, each in wanted.items():
        each = each.get("$eq") if isinstance(each, Mapping) and _has_operators(each) else each
        if isinstance(field, str) and (term := term_of(field, each)):
            terms.append(term)
    return terms


def _has_operators(wanted: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in wanted)


def _is_like(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if _has_operators(wanted):
            return all(_apply(value, name, each) for name, each in wanted.items())
        return isinstance(value, dict) and all(_is_like(value.get(name), each) for name, each in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(_is_like, value, wanted))
    return bool(value == wanted)


def _apply(value: Any, operator: str, wanted: Any) -> bool:
    if operator in _ORDERS:
        both = (value, wanted)
        is_ordered = all(isinstance(each, (int, float)) for each in both) or all(isinstance(each, str) for each in both)
        return is_ordered and _ORDERS[operator](value, wanted)
    return bool(value == wanted) is (operator == "$eq")
