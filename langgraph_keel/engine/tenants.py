"""Tenants: their names, and those of their threads where all tenants share tables.

There the threads of tenant `acme` are named `␟acme␟<id>`, with U+001F (unit separator) for `␟`: all of a tenant stand
together in every index that begins with the thread. No id of a thread begins with that character.
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
"""Sorts after every name that begins with the mark, as nothing lies between the two characters."""
_PAGE = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def check_tenant(name: object) -> str:
    """Return the name of a tenant."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = f"{name!r:.80}" if isinstance(name, str) else f"a {type(name).__name__}"
        raise InvalidInput(
            f"{shown} cannot name a tenant: use 1 to 64 letters, digits, '.', '_', '@', '+' and '-', and begin with a "
            "letter or digit"
        )
    return name


def prefix_of(tenant: str) -> str:
    """Return what the names of a tenant's threads begin with; nothing for none."""
    return f"{MARK}{tenant}{MARK}" if tenant else ""


def head_blocks(prefix: str) -> str | None:
    """Return a beginning of the keys of ranked cells as far as its second block; `None` if it is shorter."""
    end = prefix.rfind(MARK) + 1 + 2 * BLOCK
    return prefix[:end] if len(prefix) >= end else None


def bounds_of(tenant: str) -> tuple[str, str]:
    """Return between which names a tenant's threads are, the second one excluded."""
    return prefix_of(tenant), f"{MARK}{tenant}{PAST}"


def tenant_in(name: str) -> str:
    """Return whose a name is that begins with the mark."""
    return name[1:].partition(MARK)[0]


def read_tenants(store: Any) -> Plan[Sequence[str]]:
    """Return the names of all tenants that have something in a store (`engine.store.Store`), in order."""
    names: list[str] = []
    while True:
        page = yield from store.list_tenants(names[-1] if names else None, _PAGE)
        names += page
        if len(page) < _PAGE:
            return names
