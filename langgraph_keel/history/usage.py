"""The usage of threads by owner, tenant, status, day or thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tenants import read_tenants
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.threads import ThreadFilter, ThreadPages, Usage, day_of
from langgraph_keel.retention.erase import Tell
from langgraph_keel.retention.prune import Pruning, prune

By: TypeAlias = Literal["owner", "tenant", "status", "day", "thread"]


def check_by(by: str, tenant: str | None) -> None:
    """Check the key by which usage is grouped."""
    if by == "tenant" and tenant is not None:
        raise InvalidInput(f"this saver belongs to tenant {tenant!r} and cannot list other tenants")
    if not isinstance(by, str) or by not in get_args(By):
        why = ": tokens are kept by thread; saver.provenance.read(config) has those of each model" * (by == "model")
        raise InvalidInput(f"by must be one of {', '.join(get_args(By))}, not {by!r:.100}{why}")


def read_usage(session: Session, by: By, wanted: ThreadFilter, weighs: bool, tell: Tell) -> Plan[Mapping[str, Usage]]:
    """Return usage by key, largest first, days in order; `weighs` reads all data."""
    found: defaultdict[str, Usage] = defaultdict(Usage)
    tenants = (yield from read_tenants(session.store)) if by == "tenant" else ()
    views = {name: replace(session, store=session.store.of_tenant(name), tenant=name) for name in tenants}
    seen, weighing = 0, Pruning(None, session.milliseconds, is_dry=True)
    for tenant, each in {"": session, **views}.items():
        pages = ThreadPages(each, None, wanted)
        while (page := (yield from pages.next())) is not None:
            for info in page:
                size = (yield from prune(each, info.thread_id, weighing)).bytes if weighs else None
                names = {"owner": info.owner, "tenant": tenant, "status": info.status, "thread": info.thread_id}
                name = names.get(by) if by != "day" else day_of(info)
                found[str(name)] = found[str(name)].add(info, size)
                seen += 1
                tell(seen, None)
    if by == "day":
        return dict(sorted(found.items()))
    return dict(sorted(found.items(), key=lambda one: (-sum(one[1].tokens), -one[1].threads, one[0])))
