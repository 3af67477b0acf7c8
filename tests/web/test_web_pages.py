"""The pages and forms of `keel web`, over ASGI: their contents and their effects."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from servers.server import Server
from support.places import Place
from support.web_threads import THREADS, Client, Page, chat, fill, graph_of, mail, refund, talk, trip

from langgraph_keel import KeelSaver, Keyring, MemorySaver, SqliteSaver, request_approval
from langgraph_keel.keys.keyring import parse_keys
from langgraph_keel.web import keel_app
from langgraph_keel.web.pages import LONG, link, when


@pytest.fixture
async def memory() -> AsyncIterator[KeelSaver]:
    async with MemorySaver() as saver:
        await fill(saver)
        yield saver


def client(saver: KeelSaver, by: str = "maria", **options: Any) -> Client:
    return Client(keel_app(saver, identify=lambda _: by, **options))


async def request_of(saver: KeelSaver, thread: str) -> str:
    (request,) = await saver.approvals.apending(thread)
    return request.id


@pytest.mark.slow
async def test_pages_and_forms_work_on_each_backend(saver: KeelSaver) -> None:
    await fill(saver)
    async with client(saver) as page:
        inbox = await page.page("/")
        for said in (
            "refund",
            "Window or aisle?",
            "send_email",
            "The parcel arrived broken.",
            "Tool calls with an unknown outcome",
        ):
            assert said in inbox.words
        names = {thread: await request_of(saver, thread) for thread in ("refund/A-1042", "trip", "mail")}
        await page.submit(
            "decide", inbox.form("decide", id=names["refund/A-1042"]) | {"kind": "approve", "reason": "ok"}
        )
        await page.submit("decide", inbox.form("decide", id=names["trip"], kind="answer") | {"value": "aisle"})
        await page.submit("decide", inbox.form("decide", id=names["mail"]) | {"kind": "reject", "reason": "not now"})
        settled = await page.submit("settle", inbox.form("settle") | {"decision": "done", "result": "paid, receipt 17"})
        assert "Settle it" not in settled.words
        assert [call.decided async for call in saver.tools.acalls("paid")] == ["done"]
        for thread, node in (("refund/A-1042", refund), ("trip", trip), ("mail", mail)):
            config: Any = {"configurable": {"thread_id": thread, "user_id": "ada"}}
            state = await graph_of(saver, node).ainvoke(await saver.approvals.aresume(thread), config)
            assert {"refund/A-1042": "approve by maria", "trip": "Seat: aisle"}.get(thread, "ignore") in str(state)

        listed = await page.page("/threads")
        assert {link("thread", id=each) for each in THREADS} <= set(listed.links)
        assert "Refund my order, please" in listed.words  # the first line of its conversation
        talked = await page.page("/thread?id=chat")
        assert "is idle: it takes new input" in talked.words
        moment = next(each for each in talked.links if each.startswith("moment?"))
        shown = await page.page(moment)
        assert "answer 5" in shown.words
        await page.submit("label", shown.form("label") | {"name": "the end"})
        forked = await page.submit("fork", shown.form("fork") | {"target": "chat/2"})
        assert "chat/2" in forked.words
        assert [each.name for each in await saver.labels.alist("chat")] == ["the end"]
        assert await saver.aget_tuple({"configurable": {"thread_id": "chat/2"}}) is not None
        assert "the end" in (await page.page("/threads?label=the+end")).words
        assert "answer 1" in (await page.page("/diff?thread=chat&from=0&to=the+end")).words
        assert "pay" in (await page.page("/calls?thread=paid")).words
        usage = await page.page("/usage")
        assert "ada" in usage.words
        assert "By model" in usage.words
    events = {(event.kind, (event.content or {}).get("by")) for event in await saver.approvals.aaudit()}
    assert {("approved", "maria"), ("answered", "maria"), ("rejected", "maria")} <= events


async def test_a_list_is_filtered_and_read_in_pages(memory: KeelSaver) -> None:
    for number in range(60):
        await talk(memory, chat, f"many-{number:02}", f"question {number}", owner="eve")
    async with client(memory) as page:
        first = await page.page("/threads?q=many")
        older = next(each for each in first.links if each.startswith("threads?") and "after=" in each)
        second = await page.page(older)
        names = re.findall(r"many-\d\d", first.words + second.words)
        assert sorted(set(names)) == [f"many-{number:02}" for number in range(60)]
        assert len([each for each in first.links if each.startswith("thread?")]) == 50
        assert "bank" in (await page.page("/threads?status=failed&error=TimeoutError")).words
        assert "No thread matches." in (await page.page("/threads?owner=nobody")).words
        assert "trip" not in (await page.page("/threads?q=*bank*&days=7")).words.split("Search")[1]
        for wrong in ("status=gone", "days=x", "days=-1", "after=zzz", "skip=1&skip=2"):
            await page.page(f"/threads?{wrong}", 400)


async def test_a_long_thread_is_shown_in_pages(memory: KeelSaver) -> None:
    await talk(memory, chat, "long", *map(str, range(20)))
    async with client(memory) as page:
        first = await page.page("/thread?id=long")
        older = next(each for each in first.links if "skip=50" in each)
        second = await page.page(older)
        count = [
            len([each for each in one.links if each.startswith("moment?") and "ns" not in each])
            for one in (first, second)
        ]
        assert count == [51, 11]  # each with a link to the latest state
        assert any("skip" not in each and each.startswith("thread?") for each in second.links)


async def test_a_thread_page_links_its_handoff(memory: KeelSaver) -> None:
    async with client(memory) as page:
        address = link("handoff", thread="bank")
        assert address in (await page.page("/thread?id=bank")).links
        shown = (await page.page(f"/{address}")).words
        assert "Hand-off of thread bank" in shown
        assert "the bank does not answer" in shown
        await page.page("/handoff", 400)
        await page.page("/handoff?thread=none", 404)


async def test_a_second_decision_names_the_first_reviewer(memory: KeelSaver) -> None:
    name = await request_of(memory, "refund/A-1042")
    async with client(memory, "maria") as maria, client(memory, "tom") as tom:
        theirs = (await tom.page(f"/request?id={name}")).form("decide")
        await maria.decide(f"/request?id={name}", kind="approve")
        told = await tom.submit("decide", theirs | {"kind": "reject"}, 409)
        assert "maria approved this" in told.words
        assert not told.forms
        assert "maria approved this" in (await tom.page(f"/request?id={name}")).words
        # Sending the decision again is not an error: the first reply may have been lost.
        (form,) = [(await maria.page(f"/request?id={name}")).forms]
        assert form == []
    request = await memory.approvals.aget(name)
    assert (request.status, request.decision and request.decision.by) == ("approved", "maria")


async def test_only_an_approver_can_decide(memory: KeelSaver) -> None:
    async with client(memory, "eve") as page:
        told = await page.decide("/request?id=" + await request_of(memory, "refund/A-1042"), 403, kind="approve")
        assert "not among its approvers" in told.words


async def test_a_name_in_a_form_is_never_used_as_the_reviewer(memory: KeelSaver) -> None:
    name = await request_of(memory, "trip")
    async with client(memory, "tom") as page:
        await page.decide(f"/request?id={name}", kind="approve", by="maria", value="x")
    decision = (await memory.approvals.aget(name)).decision
    assert decision
    assert decision.by == "tom"


async def test_an_edit_is_previewed_before_it_is_sent(memory: KeelSaver) -> None:
    name = await request_of(memory, "mail")
    async with client(memory) as page:
        edited = '{"to": "bo@example.org", "body": "Dear Bo, we are sorry"}'
        shown = await page.decide(f"/request?id={name}", kind="preview", args=edited, reason="kinder")
        assert "we are sorry" in shown.words
        assert (await memory.approvals.aget(name)).status == "waiting"
        await page.submit("decide", shown.form("decide"))
    decision = (await memory.approvals.aget(name)).decision
    assert decision is not None
    assert (decision.kind, decision.reason, decision.args["body"]) == ("edit", "kinder", "Dear Bo, we are sorry")


@pytest.mark.parametrize("args", ["{", '{"to": 5, "body": "x"}', "[]", '{"to": NaN, "body": "x"}', "[" * 100_000])
@pytest.mark.parametrize("kind", ["preview", "edit"])
async def test_invalid_arguments_are_refused_and_kept_in_the_form(memory: KeelSaver, kind: str, args: str) -> None:
    name = await request_of(memory, "mail")
    async with client(memory) as page:
        told = await page.decide(f"/request?id={name}", 400, kind=kind, args=args)
        assert "Nothing was decided" in told.words
        assert args in told.words  # in the field, to be corrected
    assert (await memory.approvals.aget(name)).status == "waiting"


async def test_an_answer_is_text_unless_marked_as_json(memory: KeelSaver) -> None:
    answers: Any = (({"value": "12"}, "12"), ({"value": "[1, 2]", "as_json": "1"}, [1, 2]))
    for given, value in answers:
        name = await request_of(memory, "trip")
        async with client(memory) as page:
            await page.decide(f"/request?id={name}", 400, kind="answer", value="[", as_json="1")
            await page.decide(f"/request?id={name}", kind="answer", **given)
        decision = (await memory.approvals.aget(name)).decision
        assert decision
        assert decision.value == value
        await memory.approvals.arevise(name, by="maria")


async def test_an_expired_request_cannot_be_decided() -> None:
    def soon(state: Any) -> Any:
        request_approval("refund", {"amount": 1}, expires_in=60)

    async with MemorySaver() as saver, client(saver) as page:
        await talk(saver, soon, "soon", "Refund")
        name = await request_of(saver, "soon")
        fields = (await page.page(f"/request?id={name}")).form("decide")
        # private: the clock of an open saver
        session = replace(saver.engine.session, clock=lambda: datetime.now(UTC) + timedelta(minutes=2))
        saver._engine = replace(saver.engine, session=session)  # private: as above
        shown = await page.page(f"/request?id={name}")
        assert not shown.forms
        assert "expired" in shown.words
        await page.submit("decide", fields | {"kind": "approve"}, 409)


def keel_token(page: Client, name: str, session: str = "by:maria") -> str:
    """The token that the page would have issued for a request."""
    return str(page.app.guard.sign("form", session, "decide", name))


async def test_a_request_too_long_to_show_cannot_be_decided() -> None:
    async with MemorySaver() as saver, client(saver) as page:

        def asking(size: int) -> Any:
            return lambda state: request_approval("write", {"text": "word " * size})

        await talk(saver, asking(1_000), "long", "Write")
        inbox = await page.page("/")
        assert not inbox.forms
        opened = await page.page(link("request", id=await request_of(saver, "long")))
        assert opened.forms
        await talk(saver, asking(LONG), "longer", "Write")
        opened = await page.page(link("request", id=await request_of(saver, "longer")))
        assert not opened.forms
        assert "keel approval" in opened.words


@pytest.mark.parametrize("thread", ["chat", "trip", "bank", "paid", "refund/A-1042"])
async def test_a_thread_page_shows_the_status(memory: KeelSaver, thread: str) -> None:
    said = str(await memory.astatus(thread))
    async with client(memory) as page:
        shown = (await page.page(link("thread", id=thread))).words
    assert said[1:] in shown
    assert said[:1].upper() in shown


async def test_an_unused_decision_is_listed(memory: KeelSaver) -> None:
    async with client(memory) as page:
        await page.decide("/request?id=" + await request_of(memory, "trip"), kind="approve")
        inbox = await page.page("/")
        assert "Decided, but not used by a run yet" in inbox.words
        assert "No running process is known for this store" in inbox.words


async def test_processes_that_run_graphs_are_listed() -> None:
    async with MemorySaver(recoverable=True) as saver, client(saver) as page:
        await talk(saver, chat, "chat", "Hello")
        assert re.search(r"\(process \d+\) runs graphs on this store", (await page.page("/")).words)


async def test_a_tenant_sees_only_its_own_threads() -> None:
    async with MemorySaver(tenants="allowed") as saver:
        ours, theirs = saver.for_tenant("acme"), saver.for_tenant("zeta")
        await fill(ours)
        name = await request_of(ours, "refund/A-1042")
        async with client(theirs) as page:
            assert "No request waits for a decision." in (await page.page("/")).words
            assert "No thread matches." in (await page.page("/threads")).words
            for path in (f"/request?id={name}", "/thread?id=chat", "/diff?thread=chat&from=0"):
                await page.page(path, 404)
            await page.submit("decide", {"id": name, "kind": "approve", "token": keel_token(page, name)}, 404)
        async with client(ours) as page:
            await page.decide(f"/request?id={name}", kind="approve")


async def test_an_encrypted_store_is_shown(tmp_path: Path) -> None:
    keyring = parse_keys(f"2026:{b64encode(bytes(range(32))).decode()}", "the test")
    async with SqliteSaver(tmp_path / "sealed.db", encryption=Keyring(*keyring)) as saver, client(saver) as page:
        await fill(saver)
        assert "Refund my order, please" in (await page.page("/threads")).words
        assert "answer 1" in (await page.page("/thread?id=chat")).words
        await page.decide("/request?id=" + await request_of(saver, "trip"), kind="approve")


async def test_keel_app_can_be_mounted_in_another_application(memory: KeelSaver) -> None:
    app = FastAPI()
    app.mount("/keel", keel_app(memory, identify=lambda _: "maria"))
    async with Client(app, "http://localhost/keel/") as page:
        assert (await page.get("http://localhost/keel")).url.path == "/keel/"
        shown = await page.page("thread?id=chat")
        await page.page(next(each for each in shown.links if each.startswith("moment?")))
        name = await request_of(memory, "trip")
        await page.decide(f"request?id={name}", kind="approve")
        assert (await page.get("style.css")).headers["content-type"].startswith("text/css")
        assert all(not each.startswith(("/", "http")) for each in shown.links)


async def test_only_pages_that_can_change_refresh(memory: KeelSaver) -> None:
    def is_live(page: Page) -> bool:
        return any(name == "body" and given.get("data-live") for name, given in page.elements)

    async with client(memory) as page:
        assert is_live(await page.page("/"))
        for path in ("/threads", "/thread?id=chat", "/usage", "/thread?id=paid"):
            assert not is_live(await page.page(path))
        name = await request_of(memory, "trip")
        assert not is_live(await page.page(f"/request?id={name}"))  # it has a form
        await page.decide(f"/request?id={name}", kind="approve")
        assert is_live(await page.page(f"/request?id={name}"))
        assert is_live(await page.page("/thread?id=trip"))


async def test_an_unavailable_store_is_reported_with_503(tmp_path: Path) -> None:
    async with SqliteSaver(tmp_path / "agent.db") as saver:
        await fill(saver)
    async with client(saver) as page:  # closed
        for path in ("/", "/threads", "/thread?id=chat", "/usage"):
            assert "The store is not available" in (await page.page(path, 503)).words


@pytest.mark.slow
async def test_pages_recover_after_a_killed_server_is_back(
    mortal: tuple[Server, Place],
) -> None:
    server, place = mortal
    async with place.open() as saver, client(saver) as page:
        await fill(saver)
        request = await request_of(saver, "trip")
        await asyncio.to_thread(server.kill)
        for path in ("/", "/threads", "/thread?id=chat", "/usage"):
            assert "The store is not available" in (await page.page(path, 503)).words
        await asyncio.to_thread(server.restart)
        assert link("request", id=request) in (await page.page("/")).links


def test_times_are_formatted() -> None:
    now = datetime.now(UTC)
    assert "now" in when(now.isoformat())
    assert when("yesterday <b>") == "yesterday &lt;b&gt;"
