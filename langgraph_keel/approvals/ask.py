"""`request_approval`: a node or a tool asks a person before it acts.

The question stops the graph by `interrupt()`; the decision is read from the request, a separate record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from threading import Lock
from typing import Any

from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from langgraph_keel._langgraph import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
)
from langgraph_keel.approvals.checks import check_question, mapping_of, names_of, plain_data, time_after
from langgraph_keel.approvals.interrupts import is_wake
from langgraph_keel.approvals.questions import RESTRICTIONS, hash_of, how_to_decide
from langgraph_keel.approvals.requests import (
    CONSUMED,
    DECIDED,
    SUPERSEDED,
    ApprovalRequest,
    Approvals,
    Decision,
    KeptRequest,
    add_event,
    request_at,
    request_id,
)
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.engine.config import owner_of, thread_id_of
from langgraph_keel.engine.engine import Engine, engine_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidConfig, InvalidInput
from langgraph_keel.runs.hook import RunClaims

_log = logging.getLogger(__name__)

Facts = Mapping[str, Any]
_KINDS = ("approve", "reject", "edit", "answer")
_ALLOWED = _KINDS[:3]  # by default
_RUNS = 10_000
# The questions of each run of a task. LangGraph's objects for runs cannot be weakly referenced: recent ones are kept.
_asked: OrderedDict[int, tuple[object, Counter[tuple[str, ...]]]] = OrderedDict()
_counting = Lock()

_SHOWN = frozenset({"action", "args", "description", "allowed", *RESTRICTIONS})

_OUTSIDE = "request_approval was called outside of a graph with a checkpointer, or without the context of its node"


@dataclass(frozen=True, slots=True)
class _Question:
    request: ApprovalRequest  # without an id: each round has its own
    # Checkpoint, task, action, hash of the arguments, number among equal questions. So a second click, or an answer
    # that LangGraph hands to the wrong tool of a step (langgraph#6533), approves nothing else.
    parts: tuple[str, ...]
    is_still_good: Callable[[Facts, Facts], bool]

    def round(self, nth: int, old: ApprovalRequest | None, now: str) -> tuple[ApprovalRequest, dict[str, Any]]:
        """Return the request of a round, after `old`, and the value of the interrupt."""
        of = (*self.parts, str(nth))
        request = replace(self.request, id=request_id(self.request.thread_id, *of), asked_at=now)
        if old is not None:
            earlier = {"request": old.id, **(asdict(old.decision) if old.decision else {})}
            owner = self.request.owner or old.owner
            request = replace(request, before=old.facts, earlier=earlier, owner=owner)
        shown = {name: value for name, value in asdict(request).items() if name in _SHOWN}
        return request, as_json({"type": "keel_approval", "request": request.id, "of": of, **shown})


@publish
def request_approval(
    action: str,
    args: Any = None,
    *,
    facts: Facts | None = None,
    revalidate: Callable[[Facts, Facts], bool] | None = None,
    description: str = "",
    expires_in: float | timedelta | None = None,
    on_expiry: str = "reject",
    approvers: Collection[str] | None = (),
    allowed: Collection[str] | None = ("approve", "reject", "edit"),
) -> Decision:
    """Ask a person before acting, in a node, a task or a tool of a graph.

        decision = request_approval("book_flight", {"flight": "LH 123"}, facts={"price": price_now()}, expires_in=3600)
        if decision.approved:
            book(**decision.args)

    The graph, which needs one of Keel's checkpointers, stops, and its process may end. It continues when a reviewer has
    decided (`saver.approvals.approve`) and it is resumed (`saver.approvals.resume`). LangGraph then runs the node from
    its beginning, so `facts` are computed again. If they differ from the approved ones, the agent does not act but asks
    again, showing both.

    A node that fails after the approval gets it again when it is retried. Use a `ToolCache` for tools that must run
    once.

    Args:
        action: The action that the agent wants to take.
        args: The arguments of the action: plain data. An approval is valid for these only.
        facts: The current data that the decision depends on: plain data.
        revalidate: A function of the approved facts and the current ones that returns whether the approval still holds;
            by default they must be equal.
        description: A text for the reviewer.
        expires_in: Time until the request expires, in seconds or as a timedelta; by default it does not expire.
        on_expiry: The result of expiry: the agent gets a rejection ("reject"), or continues to wait ("wait").
        approvers: The allowed reviewers; by default, or if `None` or empty, everyone.
        allowed: The allowed kinds of decision: approve, reject, edit, answer. By default, or if `None`, the first
            three.

    Returns:
        The decision.

    Raises:
        InvalidInput: If an argument is invalid, or an event loop is running (use `arequest_approval`).
        InvalidConfig: If it is called outside a graph, or the graph's checkpointer is not one of Keel's.

    Subgraphs compiled with `checkpointer=False` are not supported: LangGraph forgets their position, and the decision
    is refused when the graph is resumed (`InvalidConfig`).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InvalidInput("request_approval would block the running event loop: use `await arequest_approval(...)`")
    engine, plan = _plan(action, args, facts, revalidate, description, expires_in, on_expiry, approvers, allowed)
    return engine.run_patiently(plan)


@publish
async def arequest_approval(
    action: str,
    args: Any = None,
    *,
    facts: Facts | None = None,
    revalidate: Callable[[Facts, Facts], bool] | None = None,
    description: str = "",
    expires_in: float | timedelta | None = None,
    on_expiry: str = "reject",
    approvers: Collection[str] | None = (),
    allowed: Collection[str] | None = ("approve", "reject", "edit"),
) -> Decision:
    """As `request_approval`, asynchronously."""
    engine, plan = _plan(action, args, facts, revalidate, description, expires_in, on_expiry, approvers, allowed)
    return await engine.arun_patiently(plan)


def _plan(
    action: str,
    args: Any,
    facts: Facts | None,
    revalidate: Callable[[Facts, Facts], bool] | None,
    description: str,
    expires_in: float | timedelta | None,
    on_expiry: str,
    approvers: Collection[str] | None,
    allowed: Collection[str] | None,
) -> tuple[Engine, Plan[Decision]]:
    check_question(action, description, on_expiry, revalidate)
    try:
        config: Mapping[str, Any] = get_config()
    except RuntimeError as error:
        raise InvalidConfig(_OUTSIDE) from error
    values = config.get("configurable") or {}
    info = getattr(values.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    if info is None or info.thread_id is None:
        raise InvalidConfig(_OUTSIDE)
    saver = values.get(CONFIG_KEY_CHECKPOINTER)
    engine = engine_of(saver)
    if engine is None:
        raise InvalidConfig(
            f"request_approval stores its requests in the checkpointer: compile the graph with one of Keel's savers, "
            f"not {type(saver).__name__}"
        )
    plain = plain_data("args", args)
    parts = (str(info.checkpoint_id), str(info.task_id), action, hash_of(plain))
    request = ApprovalRequest(
        "",
        thread_id_of(info.thread_id),
        # The root's, which shows whether the thread has continued.
        str((values.get(CONFIG_KEY_CHECKPOINT_MAP) or {}).get("") or info.checkpoint_id),
        parts[1],
        action=action,
        args=plain,
        description=description,
        facts=plain_data("facts", mapping_of("facts", facts)),
        args_hash=parts[3],
        allowed=names_of("allowed", _ALLOWED if allowed is None else allowed, _KINDS),
        approvers=names_of("approvers", () if approvers is None else approvers),
        expires_at=None if expires_in is None else time_after("expires_in", expires_in, engine.session.clock()),
        on_expiry=on_expiry,
        owner=owner_of(config, engine.session.owner),
    )
    # LangGraph counts the answers from the first one again at each attempt, so questions are counted in the same way.
    nth = _count_question(values.get(CONFIG_KEY_SCRATCHPAD), (str(info.node_attempt), *parts[1:]))
    question = _Question(request, (*parts, nth), revalidate or (lambda approved, current: approved == current))
    return engine, _ask_until_decided(engine.session, config, question)


def _count_question(scratchpad: Any, key: tuple[str, ...]) -> str:
    """Return the number of a question among equal ones of this attempt at a task."""
    # A new object for each run of a task, shared by the copies that a `ToolCache` makes of the scratchpad.
    run = scratchpad.call_counter
    with _counting:
        _, numbers = _asked.setdefault(id(run), (run, Counter()))
        numbers[key] += 1
        if len(_asked) > _RUNS:
            _asked.popitem(last=False)
        return str(numbers[key])


def _ask_until_decided(session: Session, config: Mapping[str, Any], question: _Question) -> Plan[Decision]:
    """Return the decision on a question; ask again whenever the facts have changed."""
    if runs := session.hooks.find(RunClaims):
        yield from runs.claim_to_ask(session, question.request.thread_id, config)
    approvals = Approvals(session)
    old: ApprovalRequest | None = None
    nth = 0
    while True:
        asked, payload = question.round(nth, old, approvals.now)
        held = yield from approvals.ask(asked)
        is_nested = question.parts[0] != question.request.checkpoint_id  # in a subgraph
        if is_nested and not held.request.interrupt_ids:
            yield from _check_place(approvals, held)
        _count_answers(held.request, payload, approvals.now)
        while (held := (yield from _check_facts(approvals, question, held))).request.status != SUPERSEDED:
            if not request_at(held.request, approvals.now).is_settled:
                interrupt(payload)  # returns if a program has resumed the graph without a decision
            elif taken := (yield from _take_decision(approvals, held)):
                return taken
            held = (yield from approvals.read([asked.id]))[asked.id]
        old, nth = held.request, nth + 1


def _check_place(approvals: Approvals, held: KeptRequest) -> Plan[None]:
    """Check that a resumed graph is at the position where it asked."""
    new = held.request
    for old in [each.request for each in (yield from approvals.of_thread(new.thread_id))]:
        is_same = (old.checkpoint_id, old.action, old.args_hash) == (new.checkpoint_id, new.action, new.args_hash)
        if is_same and old.task_id != new.task_id and old.status in DECIDED and old.interrupt_ids:
            yield from approvals.end(held, SUPERSEDED, approvals.now, "its task is gone")
            raise InvalidConfig(
                f"thread {new.thread_id!r}: {new.action!r} was decided, but the task that asked is gone: a subgraph "
                "compiled with checkpointer=False forgets its position. Compile it without that option, and ask again"
            )


def _count_answers(request: ApprovalRequest, payload: Mapping[str, Any], now: str) -> None:
    """Make LangGraph count earlier answers to this question as given."""
    # In a `ToolNode`, another tool may have received an answer to this one. A decided question is not asked again.
    answer: Any = None
    for _ in request.interrupt_ids:
        try:
            answer = interrupt(payload)
        except GraphInterrupt:
            if not request_at(request, now).is_settled:
                raise
    if answer is not None and not is_wake(answer) and not request_at(request, now).is_settled:
        _log.warning(
            "thread %r was resumed with a value, as by Command(resume=...), which does not decide a request: it still "
            "waits. Decide it by %s, then invoke the graph with saver.approvals.resume(%r)",
            request.thread_id,
            how_to_decide(request),
            request.thread_id,
        )


def _check_facts(approvals: Approvals, question: _Question, held: KeptRequest) -> Plan[KeptRequest]:
    """Return a request, superseded if its facts have changed and it was not rejected."""
    said, current = request_at(held.request, approvals.now), question.request.facts
    is_no = said.decision is not None and not said.decision.approved
    if said.status == SUPERSEDED or is_no or question.is_still_good(said.facts, current):
        return held
    new = add_event(
        replace(said, status=SUPERSEDED), SUPERSEDED, approvals.now, reason="the facts have changed", facts=current
    )
    changed = yield from approvals.change(held, new)
    return changed or (yield from _check_facts(approvals, question, (yield from approvals.read([said.id]))[said.id]))


def _take_decision(approvals: Approvals, held: KeptRequest) -> Plan[Decision | None]:
    """Consume and return a decision; `None` if the request was changed concurrently."""
    held = yield from approvals.expire(held, approvals.now)
    if held.request.status == CONSUMED:  # by an earlier attempt at the task
        return held.request.decision
    taken = yield from approvals.consume(held, approvals.now)
    return taken.request.decision if taken else None
