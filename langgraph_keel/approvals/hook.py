"""Notices the questions of graphs, with no code of the user's: what a saver is told to write says who waits for whom.

A task that asks writes its interrupts to the root namespace, those of subgraphs and of functional tasks too, under the
same ids (study of the extension points, C3 and C4). The request is written before the interrupt is stored: after a
crash in between the task asks again, by the same id. What was asked at a checkpoint is over when the thread has gone on
from it: by its own next step, and the answer was taken; or in another way, and nobody wants to know any more.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt

from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.approvals.interrupts import Ask, asks_of
from langgraph_keel.approvals.requests import (
    CONSUMED,
    OPEN,
    SUPERSEDED,
    ApprovalRequest,
    Approvals,
    Decision,
    Held,
    request_id,
)
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.engine.config import Owner, owner_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Address
from langgraph_keel.engine.serde.codec import Codec
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import StoreError

RESTRICTIONS = ("facts", "before", "approvers", "expires_at", "on_expiry")
_PLACES = 10_000
_log = logging.getLogger(__name__)


class Questions:
    """What one saver knows of the questions that wait. Any thread may call.

    Args:
        store: The store.
        now: The time, as ISO text.
        tokens: Where tokens come from.
        owner: Says whose a thread is, where the config of a run does not.
    """

    def __init__(
        self, store: Store[Any, Any], now: Callable[[], str], tokens: Callable[[], str], owner: Owner | None = None
    ) -> None:
        self._store = store
        self._now = now
        self._tokens = tokens
        self._owner = owner
        # At which checkpoints of which thread a question waits. Whatever is forgotten here, a look at the thread finds.
        # With durability="async" the next question may be written before the last one's step is.
        self._waits: OrderedDict[str, set[str]] = OrderedDict()

    def seen(self, found: CheckpointTuple) -> None:
        """Remember where a run may go on from, if a question waits there."""
        place = found.config["configurable"]
        if not place.get("checkpoint_ns") and any(channel == INTERRUPT for _, channel, _ in found.pending_writes or ()):
            self._remember(place["thread_id"], place["checkpoint_id"])

    def _remember(self, thread_id: str, checkpoint_id: str) -> None:
        self._waits.setdefault(thread_id, set()).add(checkpoint_id)
        if len(self._waits) > _PLACES:
            self._waits.popitem(last=False)

    def written(
        self, codec: Codec, address: Address, config: Mapping[str, Any], writes: Sequence[tuple[str, Any]], task_id: str
    ) -> Plan[Any, Any, None]:
        """Write down what a task asks, if it does."""
        asked = [value for channel, value in writes if channel == INTERRUPT and not address.checkpoint_ns]
        if not asked:
            return
        self._remember(address.thread_id, str(address.checkpoint_id))
        owner = owner_of(config, self._owner)
        for interrupt in [each for value in asked for each in interrupts_in(value)]:
            yield from self.noted(codec, address, interrupt, task_id, owner)

    def noted(
        self, codec: Codec, address: Address, interrupt: Interrupt, task_id: str, owner: str = ""
    ) -> Plan[Any, Any, None]:
        """Write down what an interrupt asks, unless that is done."""
        approvals = Approvals(self._store, codec, self._tokens)
        requests = requests_of(address, interrupt, task_id, owner, self._now())
        for request in requests:
            held: Held | None = yield from approvals.ask(request)
            while held and interrupt.id not in held.request.interrupt_ids:
                held = yield from self._raised(approvals, held, request)
        if is_keels(requests[0]):
            yield from self._replaced(approvals, requests[0])

    def _replaced(self, approvals: Approvals[Any, Any], new: ApprovalRequest) -> Plan[Any, Any, None]:
        """Close what the task has asked in the place of this question before: its arguments have changed."""
        for held in (yield from approvals.of_thread(new.thread_id)):
            old = held.request
            is_same_place = (old.interrupt_id, old.action) == (new.interrupt_id, new.action) and old.id != new.id
            if is_same_place and old.status in OPEN and old.args_hash != new.args_hash:
                yield from approvals.end(held, SUPERSEDED, self._now(), "the arguments have changed")

    def _raised(
        self, approvals: Approvals[Any, Any], held: Held, asked: ApprovalRequest
    ) -> Plan[Any, Any, Held | None]:
        """Write down that a request, which its task has made before, has stopped the graph."""
        ids = (*held.request.interrupt_ids, asked.interrupt_id)
        changed = yield from approvals.change(held, replace(held.request, interrupt_ids=ids, value=asked.value))
        if changed is None:
            return (yield from approvals.read([asked.id])).get(asked.id)
        return changed

    def stepped(self, codec: Codec, new: Address, parent: str | None, source: object) -> Plan[Any, Any, None]:
        """Close what was asked at a checkpoint that a thread has gone on from, or has turned away from."""
        known = self._waits.get(new.thread_id)
        if not known or new.checkpoint_ns:
            return
        is_answered = source == "loop"
        # Ids are in the order of time; what was asked since this one was made waits.
        over = {each for each in known if each == parent or (not is_answered and each < str(new.checkpoint_id))}
        if not over:
            return
        self._forget(new.thread_id, over)
        try:
            yield from self._closed(codec, new.thread_id, over, is_answered=is_answered)
        except StoreError as error:
            # The step is stored, and must not be said to have failed; whoever looks at the thread closes them.
            _log.warning("thread %r: its questions are not closed yet: %s", new.thread_id, error)

    def _forget(self, thread_id: str, over: set[str]) -> None:
        left = self._waits.get(thread_id, set()) - over
        if left:
            self._waits[thread_id] = left
        else:
            self._waits.pop(thread_id, None)

    def _closed(self, codec: Codec, thread_id: str, over: set[str], *, is_answered: bool) -> Plan[Any, Any, None]:
        approvals = Approvals(self._store, codec, self._tokens)
        for held in (yield from approvals.of_thread(thread_id)):
            if held.request.checkpoint_id in over:
                yield from close(approvals, held, self._now(), is_answered=is_answered)

    def rewound(self, codec: Codec, new: Address) -> Plan[Any, Any, None]:
        """Close what a thread has asked, and was rewound from. Of another process's, a look at the thread finds it."""
        if not self._waits.pop(new.thread_id, None):
            return
        approvals = Approvals(self._store, codec, self._tokens)
        for held in (yield from approvals.of_thread(new.thread_id)):
            if held.request.checkpoint_id < str(new.checkpoint_id):
                yield from close(approvals, held, self._now(), is_answered=False)


def close(approvals: Approvals[Any, Any], held: Held, now: str, *, is_answered: bool) -> Plan[Any, Any, None]:
    """Put a request with those that are over.

    Args:
        approvals: The plans.
        held: The request.
        now: ISO time.
        is_answered: Whether its step has ended: then the agent has got an answer, from whomever.
    """
    request = held.request
    # Who has asked by `request_approval` says so when it takes the decision.
    if not is_answered or (is_keels(request) and request.status != CONSUMED):
        yield from approvals.end(held, SUPERSEDED, now, "the thread went on without it")
        return
    if request.decision is None:  # a program has resumed the graph by itself
        held = replace(held, request=replace(request, decision=Decision("answer", "", now)))
    yield from approvals.end(held, CONSUMED, now)


def is_keels(request: ApprovalRequest) -> bool:
    """Return whether `request_approval` has asked it."""
    return isinstance(request.value, Mapping) and request.value.get("type") == "keel_approval"


def interrupts_in(value: Any) -> Sequence[Interrupt]:
    """Return the interrupts in a write to LangGraph's channel for them."""
    values = value if isinstance(value, tuple | list) else (value,)
    return [each for each in values if isinstance(each, Interrupt)]


def requests_of(
    address: Address, interrupt: Interrupt, task_id: str, owner: str, now: str
) -> Sequence[ApprovalRequest]:
    """Return the requests that an interrupt makes, one for each action it asks about."""
    value, schema = as_json(interrupt.value), as_json(interrupt.response_schema)
    asks = asks_of(value, schema)
    whole = ApprovalRequest(
        "",
        address.thread_id,
        str(address.checkpoint_id),
        task_id,
        (interrupt.id,),
        value=value,
        schema=schema,
        asked_at=now,
        owner=owner,
        parts=len(asks),
    )
    return [_part(whole, ask, part) for part, ask in enumerate(asks)]


def _part(whole: ApprovalRequest, ask: Ask, part: int) -> ApprovalRequest:
    args = as_json(ask.args)
    # What restricts Keel's own question is in what the interrupt carries, too: a copy of the thread has only that.
    restricted = {name: ask.keel[name] for name in RESTRICTIONS if name in ask.keel} if ask.keel else {}
    return replace(
        whole,
        id=request_id(whole.thread_id, *_name(whole, ask, part)),
        action=ask.action,
        args=args,
        description=ask.description,
        args_hash=hash_of(args if ask.action else whole.value),
        allowed=tuple(ask.allowed),
        part=part,
        **restricted,
    )


def _name(whole: ApprovalRequest, ask: Ask, part: int) -> Sequence[str]:
    """Return what tells a request from the others of its thread. Keel's own question says it (`asking`)."""
    said = (ask.keel or {}).get("of")
    if isinstance(said, list) and all(isinstance(each, str) for each in said):
        return said
    return whole.checkpoint_id, whole.interrupt_id, str(part)


def hash_of(args: Any) -> str:
    """Return what tells arguments, as plain data, from all others."""
    return sha256(json.dumps(args, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()
