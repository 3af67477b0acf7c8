"""Names of tenants, and of their threads in shared tables.

In shared tables, the threads of tenant `acme` are named `␟acme␟<id>`, where `␟` is U+001F (unit separator). So a
tenant's threads are adjacent in every index that begins with the thread. No other thread id begins with that character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from langgraph_keel.engine.cells import BLOCK
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import InvalidInput

MARK = "\x1f"
PAST = " "
"""Sorts after every name that begins with the mark, as it is the next character."""
_PAGE = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def check_tenant(name: object) -> str:
    """Return the name of a tenant if it is valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = f"{name!r:.80}" if isinstance(name, str) else f"a {type(name).__name__}"
        raise InvalidInput(
            f"{shown} cannot name a tenant: use 1 to 64 letters, digits, '.', '_', '@', '+' and '-', and begin with a "
            "letter or digit"
        )
    return name


def prefix_of(tenant: str) -> str:
    """Return the prefix of the names of a tenant's threads; empty for no tenant."""
    return f"{MARK}{tenant}{MARK}" if tenant else ""


def head_blocks(prefix: str) -> str | None:
    """Return a prefix of ranked keys up to its second block; `None` if it is shorter."""
    end = prefix.rfind(MARK) + 1 + 2 * BLOCK
    return prefix[:end] if len(prefix) >= end else None


def bounds_of(tenant: str) -> tuple[str, str]:
    """Return the bounds of the names of a tenant's threads, the end excluded."""
    return prefix_of(tenant), f"{MARK}{tenant}{PAST}"


def tenant_in(name: str) -> str:
    """Return the tenant in a name that begins with the mark."""
    return name[1:].partition(MARK)[0]


def read_tenants(store: Any) -> Plan[Sequence[str]]:
    """Return the names of all tenants with data in a store, in order."""
    names: list[str] = []
    while True:
        page = yield from store.list_tenants(names[-1] if names else None, _PAGE)
        names += page
        if len(page) < _PAGE:
            return names
