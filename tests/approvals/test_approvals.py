"""Requests as records, on every backend: finding, deciding, storing, closing."""

from __future__ import annotations

import asyncio
import time
from asyncio import to_thread
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.types import Command, interrupt
from support.approvals.children import Order, graph_of
from support.approvals.questions import Asking, Question, T, paying
from support.history.conversations import saver
from support.places import Place
from support.tool_graphs import ASKED, FACES, thread

from langgraph_keel import AlreadyDecided, InvalidInput, KeelSaver, NotAllowed, NotFound
from langgraph_keel.approvals.requests import CURRENT, OVER, STATUSES, TABLES, ApprovalRequest
from langgraph_keel.display.jsonable import as_json

__all__ = ["saver"]


async def call(saver: KeelSaver, face: str, name: str, *args: Any, **more: Any) -> Any:
    """Call a method of the inbox by one of its faces."""
    inbox = saver.approvals
    if face == "sync":
        return await to_thread(getattr(inbox, name), *args, **more)
    return await getattr(inbox, f"a{name}")(*args, **more)


def ask(saver: KeelSaver, name: str = "t", owner: str | None = None, **question: Any) -> Any:
    """Let a thread ask; return its graph."""
    graph = Asking(paying() | question).graph(saver)
    graph.invoke({}, {"configurable": {"thread_id": name} | ({"user_id": owner} if owner else {})})
    return graph


def one(saver: KeelSaver, name: str | None = "t", status: Sequence[str] = STATUSES) -> ApprovalRequest:
    (request,) = saver.approvals.pending(name, status=status)
    return request


def threads(requests: Sequence[ApprovalRequest]) -> list[str]:
    return [request.thread_id for request in requests]


# -- finding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_pending_filters_requests(saver: KeelSaver, face: str) -> None:
    for number in range(5):
        await to_thread(ask, saver, str(number), ["ann", "bob"][number % 2], action=["pay", "mail"][number // 3])
    await call(saver, face, "approve", one(saver, "0").id, by="eve")
    await call(saver, face, "claim", one(saver, "1").id, by="eve")
    for found, wanted in (
        ({}, "1234"),
        ({"owner": "ann"}, "24"),
        ({"action": "mail"}, "34"),
        ({"owner": "bob", "action": "mail"}, "3"),
        ({"status": "approved"}, "0"),
        ({"status": ["approved", "claimed"]}, "01"),
        ({"status": "claimed", "thread_id": "1"}, "1"),
        ({"thread_id": "no such"}, ""),
        ({"owner": "nobody"}, ""),
        ({"older_than": 0}, "1234"),
        ({"older_than": 1000}, ""),
        ({"limit": 2}, "12"),
        ({"limit": 0}, ""),
        ({"limit": None}, "1234"),
    ):
        assert threads(await call(saver, face, "pending", **found)) == list(wanted), found


@pytest.mark.parametrize("face", FACES)
async def test_pending_is_paged_by_cursor(saver: KeelSaver, face: str) -> None:
    for number in range(5):
        await to_thread(ask, saver, str(number))
    pages, after = [], None
    while page := await call(saver, face, "pending", limit=2, after=after):
        pages.append(threads(page))
        after = page[-1].id
    assert pages == [["0", "1"], ["2", "3"], ["4"]]
    for wrong in ({"after": "no such"}, {"limit": -1}, {"status": "done"}, {"older_than": float("nan")}):
        with pytest.raises(InvalidInput):
            await call(saver, face, "pending", **wrong)


@pytest.mark.parametrize("face", FACES)
async def test_a_request_is_found_by_a_prefix_of_its_id(saver: KeelSaver, face: str) -> None:
    await to_thread(ask, saver)
    request = one(saver)
    assert await call(saver, face, "get", request.id[:10]) == request
    for name in ("", "f" * 24, request.id[::-1], 5, None):
        with pytest.raises((NotFound, InvalidInput)):
            await call(saver, face, "approve", name, by="bob")
    assert one(saver).status == "waiting"


# -- holding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_only_the_holder_of_a_claimed_request_decides_it(saver: KeelSaver, face: str) -> None:
    await to_thread(ask, saver)
    request = one(saver)
    held = await call(saver, face, "claim", request.id, by="ann")
    assert (held.status, held.claimed_by) == ("claimed", "ann")
    for name in ("approve", "reject", "claim"):
        with pytest.raises(NotAllowed, match="is claimed by 'ann'"):
            await call(saver, face, name, request.id, by="bob")
    assert (await call(saver, face, "claim", request.id, by="ann", seconds=0)).status == "waiting"
    assert (await call(saver, face, "claim", request.id, by="bob", seconds=60)).claimed_by == "bob"
    decided = await call(saver, face, "approve", request.id, by="bob")
    assert (decided.status, decided.claimed_by, decided.decision.by) == ("approved", "", "bob")
    with pytest.raises(AlreadyDecided, match="bob approved this"):
        await call(saver, face, "claim", request.id, by="ann")


async def test_a_claim_on_a_request_expires(saver: KeelSaver) -> None:
    await to_thread(ask, saver)
    await saver.approvals.aclaim(one(saver).id, by="ann", seconds=0.2)
    await asyncio.sleep(0.25)
    assert one(saver).status == "waiting"
    assert (await saver.approvals.areject(one(saver).id, by="bob")).status == "rejected"


async def test_an_expired_request_is_reported_as_expired_immediately(saver: KeelSaver) -> None:
    await to_thread(ask, saver, expires_in=2)
    await saver.approvals.aclaim(one(saver).id, by="ann")
    await asyncio.sleep(2.05)
    assert threads(await saver.approvals.apending()) == []
    for thread_id in ("t", None):
        (request,) = await saver.approvals.apending(thread_id, status="expired")
        assert request.decision
        assert request.decision.by == "keel:expiry"
    with pytest.raises(AlreadyDecided, match="expired"):
        await saver.approvals.aapprove(request.id, by="ann")


# -- what a thread goes on without -------------------------------------------------------------------------------------


def new_input(saver: KeelSaver, graph: Any) -> None:
    graph.invoke({"said": ["never mind"]}, T)


def update(saver: KeelSaver, graph: Any) -> None:
    graph.update_state(T, {"said": ["no"]}, as_node="pay")


def rewind(saver: KeelSaver, graph: Any) -> None:
    saver.rewind(saver.timeline("t")[0].config)


def replay(saver: KeelSaver, graph: Any) -> None:
    graph.invoke(None, saver.timeline("t")[0].config)


@pytest.mark.parametrize("is_decided", [False, True], ids=["waiting", "approved"])
@pytest.mark.parametrize("go_on", [new_input, update, rewind, replay])
def test_a_request_is_superseded_when_its_thread_continues_without_it(
    saver: KeelSaver, go_on: Any, is_decided: bool
) -> None:
    graph = ask(saver)
    request = one(saver)
    if is_decided:
        saver.approvals.approve(request.id, by="bob")
    go_on(saver, graph)
    assert saver.approvals.get(request.id).status == "superseded"
    with pytest.raises(AlreadyDecided, match="superseded"):
        saver.approvals.approve(request.id, by="bob")
    assert [each.id for each in saver.approvals.pending() if each.id == request.id] == []
    with pytest.raises(NotFound, match="nothing to resume"):
        saver.approvals.resume("t")


@pytest.mark.parametrize(
    ("allowed", "call", "options"),
    [
        (["approve", "reject"], "approve({!r}, by=...)", "--by NAME`"),
        (["reject"], "reject({!r}, by=...)", "--by NAME`"),
        (["edit"], "edit({!r}, by=..., args=...)", "--by NAME --args JSON`"),
        (["answer"], "answer({!r}, by=..., value=...)", "--by NAME --value JSON`"),
    ],
)
@pytest.mark.parametrize("is_claimed", [False, True])
def test_resume_before_a_decision_explains_how_to_decide(
    saver: KeelSaver, allowed: list[str], call: str, options: str, is_claimed: bool
) -> None:
    ask(saver, allowed=allowed)
    request = one(saver)
    if is_claimed:
        saver.approvals.claim(request.id, by="ann")
    with pytest.raises(NotFound, match="nothing to resume with") as told:
        saver.approvals.resume("t")
    assert f"decide it first, by saver.approvals.{call.format(request.id)} or `keel " in str(told.value)
    assert str(told.value).endswith(f"`keel {allowed[0]} {request.id} {options}")


class Slow(KeelSaver):
    """Another saver, which stores a checkpoint after the writes of the next steps."""

    def __init__(self, saver: KeelSaver) -> None:
        self.serde, self._engine = saver.serde, saver.engine

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        time.sleep(0.05)
        return super().put(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("is_decided", [False, True], ids=["waiting", "approved"])
def test_a_request_is_superseded_by_a_question_of_an_unstored_step(saver: KeelSaver, is_decided: bool) -> None:
    graph = ask(Slow(saver))
    request = one(saver)
    if is_decided:
        saver.approvals.approve(request.id, by="bob")
    assert ASKED in graph.invoke({"said": ["never mind"]}, T, durability="async")
    assert saver.approvals.get(request.id).status == "superseded"
    assert [each.id == request.id for each in saver.approvals.pending()] == [False]


def test_a_request_is_superseded_by_another_process(place: Place) -> None:
    """The saver that asked has not read the change; a refresh or a sweep finds it."""
    with place.open() as first, place.open() as second:
        for name in ("a", "b"):
            ask(first, name)
        ids = [request.id for request in first.approvals.pending()]
        for name in ("a", "b"):
            Asking().graph(second).update_state(thread(name), {"said": ["no"]}, as_node="pay")
        with pytest.raises(AlreadyDecided, match="superseded"):
            first.approvals.approve(ids[0], by="bob")
        first.approvals.sweep()
        assert [first.approvals.get(name).status for name in ids] == ["superseded", "superseded"]


def test_a_question_is_kept_if_another_process_deleted_its_thread_before(place: Place) -> None:
    """The saver that asks again remembers the former question when it stores the new first checkpoint, after writes."""
    with place.open() as first, place.open() as second:
        ask(Slow(first))
        second.delete_thread("t")
        ask(Slow(first))
        assert one(first).status == "waiting"


@pytest.mark.parametrize("is_decided", [False, True], ids=["waiting", "approved"])
def test_a_request_is_superseded_by_a_rewind_in_another_process(place: Place, is_decided: bool) -> None:
    """No list shows its request as waiting, even before its thread is refreshed."""
    with place.open() as first, place.open() as second:
        ask(first)
        (request,) = first.approvals.pending()
        if is_decided:
            first.approvals.approve(request.id, by="bob")
        rewind(second, None)
        assert first.approvals.pending() == []
        assert [first.approvals.get(request.id).status] == ["superseded"]
        assert first.approvals.wait(timeout=0) == ()


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_requests_are_deleted_with_their_thread(saver: KeelSaver) -> None:
    for name in ("t", "other"):
        graph = ask(saver, name)
    saver.approvals.approve(one(saver, "other").id, by="bob")
    graph.invoke(saver.approvals.resume("other"), thread("other"))
    graph.invoke({}, thread("other"))  # one request is closed, one is waiting
    events = len(saver.approvals.audit())
    saver.delete_thread("other")
    assert threads(saver.approvals.pending(status=STATUSES)) == ["t"]
    assert saver.approvals.verify_audit().ok
    assert len(saver.approvals.audit()) >= events


def test_a_request_survives_a_prune(saver: KeelSaver) -> None:
    graph = ask(saver)
    graph.update_state(T, {"said": ["first"]}, as_node="__start__")
    graph.invoke(None, T)
    saver.prune(["t"])
    request = one(saver, status=["waiting"])
    saver.approvals.approve(request.id, by="bob")
    saver.prune(["t"])
    assert graph.invoke(saver.approvals.resume("t"), T)["said"] == ["first", "approve"]
    saver.prune(["t"])
    assert saver.approvals.get(request.id).status == "consumed"
    assert saver.approvals.verify_audit().ok


@pytest.mark.parametrize("is_decided", [False, True], ids=["waiting", "approved"])
def test_a_copied_thread_has_its_own_request(saver: KeelSaver, is_decided: bool) -> None:
    conditions: Question = {"approvers": ["ann"], "facts": {"price": 0}, "description": "why", "allowed": ["reject"]}
    graph = ask(saver, expires_in=3600, on_expiry="wait", **conditions)
    request = one(saver)
    if is_decided:
        saver.approvals.reject(request.id, by="ann")
    saver.copy_thread("t", "copy")
    copy = one(saver, "copy")
    assert (copy.status, copy.id == request.id, copy.args) == ("waiting", False, request.args)
    for name in ("approvers", "facts", "before", "description", "allowed", "expires_at", "on_expiry", "args_hash"):
        assert as_json(getattr(copy, name)) == as_json(getattr(request, name)), name
    with pytest.raises(NotAllowed):
        saver.approvals.reject(copy.id, by="eve")
    saver.approvals.reject(copy.id, by="ann")
    assert graph.invoke(saver.approvals.resume("copy"), thread("copy"))["said"] == ["reject"]
    assert one(saver).status == ("rejected" if is_decided else "waiting")


@pytest.mark.parametrize("face", FACES)
async def test_a_lost_request_is_restored_from_its_thread(saver: KeelSaver, face: str) -> None:
    graph = await to_thread(ask, saver, approvers=["ann"], facts={"price": 1})
    request = one(saver)
    await to_thread(lose, saver, request)
    assert await call(saver, face, "pending") == []
    (found,) = await call(saver, face, "pending", "t")
    for name in ("id", "interrupt_ids", "task_id", "args", "facts", "approvers", "allowed", "checkpoint_id"):
        assert as_json(getattr(found, name)) == as_json(getattr(request, name)), name
    await call(saver, face, "approve", found.id, by="ann")
    assert (await to_thread(graph.invoke, saver.approvals.resume("t"), T))["said"] == ["approve"]


def lose(saver: KeelSaver, request: ApprovalRequest) -> None:
    held = saver.engine.run(saver.approvals.plans.read([request.id]))[request.id]
    saver.engine.run(saver.engine.session.store.remove_cells(CURRENT, {request.id: held.token}))
    assert saver.engine.run(saver.approvals.plans.all(OVER)) == []


def test_a_lost_request_of_a_plain_interrupt_is_restored(saver: KeelSaver) -> None:
    graph = graph_of(saver, ("ask", lambda state: {"said": [interrupt({"who": "pays?"})]}))
    graph.invoke({}, T)
    request = one(saver)
    lose(saver, request)
    assert (one(saver).id, one(saver).value) == (request.id, {"who": "pays?"})
    saver.approvals.answer(request.id, by="bob", value="ann")
    assert graph.invoke(saver.approvals.resume("t"), T)["said"] == ["ann"]


class CutOff(Exception):
    """Raised in place of the death of the process."""


class Dying(KeelSaver):
    """Another saver, whose process dies before an interrupt is stored."""

    def __init__(self, saver: KeelSaver) -> None:
        self.serde, self._engine = saver.serde, saver.engine

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if any(channel == ASKED for channel, _ in writes):
            raise CutOff
        super().put_writes(config, writes, task_id, task_path)


@pytest.mark.parametrize("decides", ["before", "after", "never"])
def test_a_request_survives_a_crash_before_its_interrupt_is_stored(saver: KeelSaver, decides: str) -> None:
    asking = Asking(paying())
    with pytest.raises(CutOff):
        asking.graph(Dying(saver)).invoke({}, T)
    graph = asking.graph(saver)
    request = one(saver)
    assert (request.status, request.interrupt_id) == ("waiting", "")
    if decides == "before":
        saver.approvals.approve(request.id, by="bob")
        with pytest.raises(NotFound, match="is approved"):
            saver.approvals.resume("t")
        assert graph.invoke(None, T) == {"said": ["approve"]}
    else:
        assert ASKED in graph.invoke(None, T)
        assert (one(saver).id, one(saver).interrupt_id != "") == (request.id, True)
        getattr(saver.approvals, "approve" if decides == "after" else "reject")(request.id, by="bob")
        assert graph.invoke(saver.approvals.resume("t"), T)["said"] == ["approve" if decides == "after" else "reject"]
    assert [request.status for request in saver.approvals.pending("t", status=STATUSES)] == ["consumed"]


def test_a_question_of_an_unknown_class_can_be_shown_and_decided(place: Place) -> None:
    """Without the class, the fields are shown, and the request can be decided.

    The interrupt itself cannot be read there.
    """
    with place.open(types=[Order]) as saver:
        graph = graph_of(saver, ("ask", lambda state: {"said": [interrupt(Order("a flight"))]}))
        graph.invoke({}, T)
        with place.open() as other:
            request = one(other)
            assert request.value == {"what": "a flight"}
            other.approvals.answer(request.id, by="bob", value="yes")
            assert other.approvals.sweep() == []
            command = other.approvals.resume("t")
        assert graph.invoke(command, T)["said"] == ["yes"]


# -- sweeping ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
async def test_sweep_returns_requests_to_remind_of(saver: KeelSaver, face: str) -> None:
    for name in ("a", "b"):
        await to_thread(ask, saver, name)
    await to_thread(ask, saver, "short", expires_in=2)  # on a busy machine, asking takes a while
    await call(saver, face, "approve", one(saver, "b").id, by="bob")
    assert await call(saver, face, "sweep") == []
    assert await call(saver, face, "sweep", remind_after=1000) == []
    await asyncio.sleep(2.05)
    assert threads(await call(saver, face, "sweep", remind_after=2)) == ["a"]
    assert await call(saver, face, "sweep", remind_after=2) == []
    held = saver.engine.run(saver.approvals.plans.read([one(saver, "short").id]))
    assert [each.request.status for each in held.values()] == ["expired"]  # the status is stored, too
    await asyncio.sleep(2.05)
    assert threads(await call(saver, face, "sweep", remind_after=2)) == ["a"]


def test_a_repeated_resume_never_answers_the_next_question(saver: KeelSaver) -> None:
    """A second answer to a question is refused or ignored.

    It never answers the next question.
    """
    asking = Asking(paying(), paying(7))
    graph = asking.graph(saver)
    graph.invoke({}, T)
    saver.approvals.approve(one(saver, status=["waiting"]).id, by="bob")
    command = saver.approvals.resume("t")
    for _ in range(3):
        assert ASKED in graph.invoke(Command(resume=command.resume), T)
        assert one(saver, status=["waiting"]).args == {"amount": 7}
    assert asking.got == []
    saver.approvals.reject(one(saver, status=["waiting"]).id, by="bob")
    last = saver.approvals.resume("t")
    assert graph.invoke(last, T) == {"said": ["approve", "reject"]}
    assert graph.invoke(last, T) == {"said": ["approve", "reject"]}
    assert len(asking.got) == 1


@pytest.mark.parametrize(
    "wrong", [{"task_id": 5}, {"interrupt_ids": [[]]}, {"part": "x"}, {"facts": 5}, {"decision": {"kind": "no"}}]
)
def test_request_fields_of_wrong_types_are_rejected(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"id": "a" * 24, "thread_id": "t"}
    for table in TABLES:
        assert table.unpack([right]) == ApprovalRequest(**right)
        with pytest.raises(ValueError, match=next(iter(wrong))):
            table.unpack([right | wrong])
