"""The receipt of an erasure: the erased and the remaining data, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_keel.display import html
from langgraph_keel.display.text import count_of
from langgraph_keel.engine import audit
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.retention.erase import Erased
from langgraph_keel.retention.reclaim import Reclaimed

FEW = 20
"""Maximum number of threads that a dry run names."""
BEYOND = (
    "Shared tool results that were not written by a thread of this person.",
    "Other LangGraph stores than saver.store(), and data kept elsewhere by tools, models and tracing.",
)
"""Data that no erasure reaches; listed if something was erased."""


@publish
@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of an erasure.

    It is not stored; the audit trail keeps the counts and the hash.

    Attributes:
        user_hash: SHA-256 of the person's id, hexadecimal. It can be verified with the id, or by guessing the id.
        at: ISO time when the erasure ended.
        threads: The ids of the deleted threads; with `dry_run`, of the threads to delete.
        checkpoints: Number of checkpoints in these threads.
        requests: Number of requests for approval in these threads.
        cached: Number of results removed from `KeelCache`, of any person.
        shared: The ids of threads that also name other people and were left alone.
        failed: Threads that could not be read or deleted, and the reason.
        exempt: Data that was not erased or is out of reach: a sentence each.
        reclaimed: The result of reclaiming space; `None` if that was not requested.
        dry_run: Whether nothing was written.
        problems: Other failures, in words.
        what: The requested scope: `"threads"`, `"data"` (the person's items in `saver.store()`) or `"all"`.
        items: Number of the person's removed items; with `dry_run`, of items to remove.
        items_left: Number of the person's items that were left, because only threads were to be erased.
        strays: Number of threads with records but no checkpoint, and thus no known owner. They come from a step that
            ended after its thread was deleted, or from a first run before its first checkpoint.
    """

    user_hash: str
    at: str
    threads: Sequence[str]
    checkpoints: int
    requests: int
    cached: int
    shared: Sequence[str]
    failed: Mapping[str, str]
    exempt: Sequence[str]
    reclaimed: Reclaimed | None = None
    dry_run: bool = False
    problems: Sequence[str] = ()
    strays: int = 0
    what: str = "threads"
    items: int = 0
    items_left: int = 0

    @property
    def complete(self) -> bool:
        """Whether, as far as Keel knows, nothing of the person is left in this store.

        It is `False` if a thread could not be read or deleted, if a thread that names other people was left alone
        (`shared`), if records without a known owner exist (`strays`), if items of the person were left (`items_left`),
        or if the freed space could not be cleaned (`problems`). With `dry_run`: whether nothing would be left. It is
        also `True` for an id that no thread names, such as a misspelt one. With `what="data"`, threads are not read,
        and it states whether no item is left.
        """
        return not (self.failed or self.problems or self.shared or self.strays or self.items_left)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for records, with counts in place of thread ids."""
        # An explicit list of fields, because a later field may name a person.
        return {
            "user_hash": self.user_hash,
            "at": self.at,
            "dry_run": self.dry_run,
            "complete": self.complete,
            "thread_count": len(self.threads),
            "checkpoints": self.checkpoints,
            "requests": self.requests,
            "cached": self.cached,
            "shared_count": len(self.shared),
            "failed_count": len(self.failed),
            "strays": self.strays,
            "what": self.what,
            "items": self.items,
            "items_left": self.items_left,
            "problems": list(self.problems),
            "exempt": list(self.exempt),
            "reclaimed": self.reclaimed and self.reclaimed.to_dict(),
        }

    def __str__(self) -> str:
        """Describe it, line by line; only dry runs name threads, the first ones."""
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return html.pre(str(self))

    def _lines(self) -> Iterator[str]:
        done = "Would be erased" if self.dry_run else "Erased"
        items = f"{count_of(self.items, 'item')} of the store"
        threads = (
            f"{count_of(len(self.threads), 'thread')}, {count_of(self.checkpoints, 'checkpoint')}, "
            f"{count_of(self.requests, 'request')} for approval, {count_of(self.cached, 'cached result')} of nodes"
        )
        yield f"{done}: {({'threads': threads, 'data': items}).get(self.what, f'{threads}, {items}')}"
        for title, found in (("", self.threads), ("shared: ", self.shared)) if self.dry_run else ():
            # As `repr`, which escapes control characters of terminals.
            yield from (f"  {title}{thread_id!r}" for thread_id in found[:FEW])
            if len(found) > FEW:
                yield f"  {title}and {len(found) - FEW:,} more"
        if self.what == "data":
            yield "Threads were not searched" + ("" if self.items or self.problems else ", no item names this person")
        elif not (self.threads or self.shared or self.failed):
            yield "No thread names this person as its owner: is the id right?"
        yield f"User: SHA-256 {self.user_hash}, at {self.at}"
        yield from (f"Not done: {problem}" for problem in self.problems)
        if self.failed:
            yield f"Not done: {count_of(len(self.failed), 'thread')}; see `failed`"
        if self.reclaimed:
            yield f"Reclaimed space: {self.reclaimed}"
        yield from (f"Not erased: {sentence}" for sentence in self.exempt)


def receipt_of(erased: Erased, at: str, elsewhere: Sequence[str]) -> Receipt:
    """Return the receipt of an erasure."""
    order = erased.order
    done = {name: whose for name, whose in sorted(erased.threads.items()) if name not in erased.failed}
    removed = erased.items if order.what != "threads" else 0
    is_done = bool(done or removed)
    return Receipt(
        order.user_hash,
        at,
        tuple(done),
        sum(whose.checkpoints for whose in done.values()),
        sum(whose.requests for whose in done.values()),
        erased.cached if order.node_cache == "clear" else 0,
        tuple(erased.shared if order.shared == "report" else ()),
        dict(erased.failed),
        (*_list_exempt(erased), *(BEYOND if is_done else ()), *(elsewhere if is_done else ())),
        dry_run=order.dry_run,
        problems=tuple(erased.problems),
        strays=erased.strays,
        what=order.what,
        items=removed,
        items_left=erased.items - removed,
    )


def record_receipt(session: Session, receipt: Receipt, by: str | None) -> Plan[int]:
    """Append counts and the person's hash to the audit trail, nothing personal."""
    content = {
        "user": receipt.user_hash,
        "threads": len(receipt.threads),
        "checkpoints": receipt.checkpoints,
        "requests": receipt.requests,
        **({"items": receipt.items} if receipt.items else {}),
        **({} if by is None else {"by": by}),
    }
    # Without a thread, so that it stays.
    return (yield from audit.append(session, "", receipt.at, "erased", content))


def _list_exempt(erased: Erased) -> Iterator[str]:
    order, owners = erased.order, erased.owners
    if erased.shared and order.shared == "report":
        yield (
            f"{count_of(len(erased.shared), 'thread')} with checkpoints that also name other people, left alone "
            "(see `shared`): shared='delete' (--shared delete) deletes them."
        )
    if erased.items and order.what == "threads":
        yield (
            f"{count_of(erased.items, 'item')} of this person in the store (saver.store()), left alone: what='all' "
            "(--what all) erases them."
        )
    if erased.strays:
        yield (
            f"{count_of(erased.strays, 'thread')} with something stored but no checkpoint, and so without a known "
            "owner: retention.reclaim_space(strays=True) (keel reclaim --strays) removes them."
        )
    if owners.unowned:
        yield f"{count_of(owners.unowned, 'thread')} without an owner, which may belong to anyone."
    if erased.cached and order.node_cache == "report":
        yield (
            f"{count_of(erased.cached, 'result')} in the cache of nodes (KeelCache), without owners: "
            "node_cache='clear' removes all of them."
        )
    if owners.named:
        yield (
            f"{count_of(owners.named, 'request')} for approval in threads of others, and their events in the audit "
            "trail: they name this person as a reviewer."
        )
    if owners.policies:
        yield f"{count_of(owners.policies, 'retention rule')} with this person's id in the pattern of its threads."
