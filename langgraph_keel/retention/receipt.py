"""The receipt of an erasure: what went, and what did not, in words that can be handed on."""

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
"""Threads that are named where somebody looks first."""
BEYOND = (
    "Results of tools that all threads share and that no thread of this person wrote.",
    "Stores of LangGraph's other than saver.store(), and whatever tools, models and tracing have kept elsewhere.",
)
"""What no erasure reaches; of interest where something was erased."""


@publish
@dataclass(frozen=True, slots=True)
class Receipt:
    """What an erasure has done. It is returned and not stored; the audit trail keeps counts and the hash.

    Attributes:
        user_hash: SHA-256 of the person's id, in hexadecimal digits. Who has the id can find it again, and who guesses
            it can, too.
        at: ISO time when the erasure ended.
        threads: The ids of the threads that were deleted; with `dry_run`, of those that would be.
        checkpoints: How many checkpoints they held.
        requests: How many requests for approval.
        cached: How many results of nodes were removed from `KeelCache`, of whoever they were.
        shared: The ids of the threads that name others as well, and were left alone.
        failed: Threads that could not be read or deleted, and why.
        exempt: What was not erased, and what this store cannot reach: a sentence each.
        reclaimed: What became of the space; `None` if that was not asked for.
        dry_run: Whether nothing was written.
        problems: What else went wrong, in words.
        what: What was to be erased: `"threads"`, `"data"` (the person's items in `saver.store()`) or `"all"`.
        items: How many items of the person were removed; with `dry_run`, how many would be.
        items_left: How many items of the person were left, because only threads were to be erased.
        strays: How many threads hold something and show no checkpoint, so that nobody can tell whose it is: what a step
            has left that ended after its thread was deleted; or a first run that goes on, before its first checkpoint.
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
        """Whether nothing of the person can be left in this store that Keel knows of.

        It is `False` if a thread could not be read or deleted, if one that names others as well was left alone
        (`shared`), if something is left of which nobody can tell whose it is (`strays`), if items of the person were
        left (`items_left`), and if the space was to be cleaned and is not (`problems`). With `dry_run`: whether nothing
        would be left. It is `True` for somebody whom no thread names: is the id right? With `what="data"`, threads are
        not looked at, and it says whether no item is left.
        """
        return not (self.failed or self.problems or self.shared or self.strays or self.items_left)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data that names no thread, for whoever keeps a record: how many they are, and all else."""
        # A list of the fields that may be shown: a later field may name a person.
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
        """Return it in words, a line each. It names no thread that was deleted; with `dry_run`, the first of them."""
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
            # As Python writes text: what could steer a terminal is spelled out.
            yield from (f"  {title}{thread_id!r}" for thread_id in found[:FEW])
            if len(found) > FEW:
                yield f"  {title}and {len(found) - FEW:,} more"
        if self.what == "data":
            yield "Threads were not looked at" + ("" if self.items or self.problems else ", no item names this person")
        elif not (self.threads or self.shared or self.failed):
            yield "No thread names this person as its owner: is the id right?"
        yield f"User: SHA-256 {self.user_hash}, at {self.at}"
        yield from (f"Not done: {problem}" for problem in self.problems)
        if self.failed:
            yield f"Not done: {count_of(len(self.failed), 'thread')}; see `failed`"
        if self.reclaimed:
            yield f"Space after that: {self.reclaimed}"
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
    """Append to the audit trail that something was erased: how much, and the hash of the person. Nothing personal."""
    content = {
        "user": receipt.user_hash,
        "threads": len(receipt.threads),
        "checkpoints": receipt.checkpoints,
        "requests": receipt.requests,
        **({"items": receipt.items} if receipt.items else {}),
        **({} if by is None else {"by": by}),
    }
    # Of no thread, so it stays.
    return (yield from audit.append(session, "", receipt.at, "erased", content))


def _list_exempt(erased: Erased) -> Iterator[str]:
    order, owners = erased.order, erased.owners
    if erased.shared and order.shared == "report":
        yield (
            f"{count_of(len(erased.shared), 'thread')} with checkpoints that name other persons as well, left alone "
            "(see `shared`): shared='delete' (--shared delete) deletes them, too."
        )
    if erased.items and order.what == "threads":
        yield (
            f"{count_of(erased.items, 'item')} of this person in the store (saver.store()), left alone: what='all' "
            "(--what all) removes them, too."
        )
    if erased.strays:
        yield (
            f"{count_of(erased.strays, 'thread')} with something stored but no checkpoint, so that nobody can tell "
            "whose: retention.reclaim_space(strays=True) (keel reclaim --strays) removes that."
        )
    if owners.unowned:
        yield f"{count_of(owners.unowned, 'thread')} in which nothing names an owner: whose that is cannot be known."
    if erased.cached and order.node_cache == "report":
        yield (
            f"{count_of(erased.cached, 'result')} in the cache of nodes (KeelCache), which do not say whose they are: "
            "node_cache='clear' removes all of them."
        )
    if owners.named:
        yield (
            f"{count_of(owners.named, 'request')} for approval in threads of others, and what the audit trail has of "
            "that: this person is named there as who decides or has decided."
        )
    if owners.policies:
        yield f"{count_of(owners.policies, 'retention rule')} with this person's id in the pattern of its threads."
