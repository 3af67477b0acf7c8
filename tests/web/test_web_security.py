"""Requests that `keel web` refuses, as listed in langgraph_keel/web/README.md."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.web_threads import Client, Page, fill
from typer.testing import CliRunner

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver
from langgraph_keel.cli import app as keel
from langgraph_keel.web import keel_app
from langgraph_keel.web.app import ROUTES, KeelApp
from langgraph_keel.web.security import HEADERS, MOST_BODY, Guard, from_proxy

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
PATHS = [*ROUTES, "style.css", "live.js", "login", "nope", "../x", "favicon.ico"]
OURS = {"sec-fetch-site": "same-origin"}


@pytest.fixture
async def saver() -> AsyncIterator[KeelSaver]:
    async with MemorySaver() as saver:
        await fill(saver)
        yield saver


@pytest.fixture
def login(saver: KeelSaver) -> KeelApp:
    """The page as `keel web` serves it."""
    return KeelApp(saver, Guard(lambda _: None, login=True, by="maria"))


async def request_of(saver: KeelSaver) -> str:
    (request,) = await saver.approvals.apending("trip")
    return request.id


async def signed_in(page: Client, app: KeelApp) -> None:
    await page.page(f"/login?token={app.guard.token}")


@pytest.mark.parametrize("method", METHODS)
async def test_only_the_login_is_answered_without_a_session(login: KeelApp, method: str) -> None:
    async with Client(login) as page:
        for path in PATHS:
            reply = await page.request(method, f"/{path}", headers=OURS)
            wanted = 403 if (path, method) == ("login", "GET") else 401
            assert reply.status_code == wanted, path
            assert "trip" not in reply.text
            assert HEADERS.items() <= {name: reply.headers.get(name) for name in HEADERS}.items()


@pytest.mark.parametrize("method", METHODS)
async def test_each_route_accepts_only_its_methods(login: KeelApp, method: str) -> None:
    async with Client(login) as page:
        await signed_in(page, login)
        for path, route in ROUTES.items():
            reply = await page.request(method, f"/{path}", headers=OURS)
            if method in route:
                assert reply.status_code in (200, 400, 403, 415), path
            else:
                assert (reply.status_code, reply.headers["allow"]) == (405, ", ".join(route)), path
            assert (
                HEADERS.items()
                <= dict(reply.headers).items() | {name: reply.headers.get(name) for name in HEADERS}.items()
            )


def test_no_route_erases_or_runs() -> None:
    posts = {path for path, route in ROUTES.items() if "POST" in route}
    assert posts == {"decide", "settle", "label", "fork"}


async def test_a_token_is_exchanged_for_a_cookie(login: KeelApp) -> None:
    async with Client(login) as page:
        reply = await page.get(f"/login?token={login.guard.token}", follow_redirects=False)
        assert (reply.status_code, reply.headers["location"]) == (303, "./")
        (cookie,) = SimpleCookie(reply.headers["set-cookie"]).values()
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
        assert login.guard.token not in reply.headers["set-cookie"]
        await page.page("/")
    for wrong in ("", "0" * 64, login.guard.token[:-1], "é" * 64):
        async with Client(login) as page:
            await page.page(f"/login?token={wrong}", 403)


async def test_a_cookie_of_another_server_is_refused(login: KeelApp, saver: KeelSaver) -> None:
    other = KeelApp(saver, Guard(lambda _: None, login=True, by="tom"))
    assert other.guard.cookie != login.guard.cookie  # two servers on one machine have separate cookies
    async with Client(other) as page:
        await signed_in(page, other)
        (value,) = [each.value for each in page.cookies.jar]
    for forged in (value, "", ".", "x." + "0" * 64, login.guard.token):
        async with Client(login, cookies={login.guard.cookie: str(forged)}) as page:
            await page.page("/", 401)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8722", "localhost.evil.example", "", "127.0.0.1.nip.io", "[::2]:80", "::1"]
)
async def test_another_host_name_is_refused(login: KeelApp, host: str) -> None:
    async with Client(login) as page:
        await signed_in(page, login)
        for path in ("/", f"/login?token={login.guard.token}", "/style.css"):
            assert (await page.get(path, headers={"host": host})).status_code == 400
        for known in ("localhost:8722", "127.0.0.1:1", "[::1]:8722", "LOCALHOST"):
            assert (await page.get("/threads", headers={"host": known})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:8080"},
        {"origin": "null"},
        {},
    ],
)
async def test_a_form_of_another_origin_is_refused(saver: KeelSaver, headers: dict[str, str]) -> None:
    name = await request_of(saver)
    async with Client(keel_app(saver, identify=lambda _: "maria")) as page:
        fields = (await page.page(f"/request?id={name}")).form("decide") | {"kind": "approve"}
        assert (await page.post("/decide", data=fields, headers=headers)).status_code == 403
        assert (await saver.approvals.aget(name)).status == "waiting"
        reply = await page.post("/decide", data=fields, headers={"origin": "http://localhost"})
        assert reply.status_code == 200  # from a browser that sends no Sec-Fetch-Site


async def test_a_form_token_is_bound_to_session_form_and_subject(saver: KeelSaver) -> None:
    app = keel_app(saver, identify=lambda request: request.headers["x-user"])
    name = await request_of(saver)
    (other,) = [each.id for each in await saver.approvals.apending("mail")]
    async with Client(app, headers={"x-user": "maria"}) as page:
        inbox = await page.page("/")
        token = inbox.form("decide", id=name)["token"]
        moment = await page.page(next(each for each in (await page.page("/thread?id=chat")).links if "moment?" in each))
        wrong = {
            "none": "",
            "of another request": inbox.form("decide", id=other)["token"],
            "of another form": moment.form("label")["token"],
            "almost": token[:-1],
        }
        for given in wrong.values():
            await page.submit("/decide", {"id": name, "kind": "approve", "token": given}, 403)
        await page.submit("/decide", {"id": name, "kind": "approve"}, 403)
        await page.submit("/decide", {"id": name, "kind": "approve", "token": token}, 403, {"x-user": "tom"})
        await page.submit("/fork", {**moment.form("label"), "target": "x"}, 403)
        await page.submit("/settle", {"thread": "paid", "key": "0" * 12, "decision": "done", "token": token}, 403)
        assert (await saver.approvals.aget(name)).status == "waiting"
        await page.submit("/decide", {"id": name, "kind": "approve", "token": token})


async def test_a_read_only_app_refuses_all_changes(saver: KeelSaver) -> None:
    name = await request_of(saver)
    app = keel_app(saver, identify=lambda _: "maria", read_only=True)
    async with Client(app) as page:
        for path in ("/", f"/request?id={name}", "/thread?id=paid", "/thread?id=chat"):
            shown = await page.page(path)
            assert all(action in ("threads", "diff") for action, _ in shown.forms)
        token = app.guard.sign("form", "by:maria", "decide", name)
        await page.submit("/decide", {"id": name, "kind": "approve", "token": token}, 403)
        for path in ("settle", "label", "fork"):
            await page.submit(f"/{path}", {"thread": "chat"}, 403)
    assert (await saver.approvals.aget(name)).status == "waiting"


async def test_identify_must_return_a_valid_name(saver: KeelSaver) -> None:
    async def later(request: Any) -> str:
        return "tom"

    for identify, status in ((lambda _: None, 401), (lambda _: "keel:expiry", 403), (lambda _: " ", 403), (later, 200)):
        async with Client(keel_app(saver, identify=identify)) as page:
            await page.page("/threads", status)


async def test_bodies_and_fields_are_bounded(saver: KeelSaver) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", **OURS}
    bad = [
        (b"a=" + b"x" * MOST_BODY, form, 413),
        (b"reason=" + b"x" * 2_001, form, 413),
        (b"args=" + b"x" * 500_001, form, 413),
        ("&".join(f"f{n}=1" for n in range(21)).encode(), form, 400),
        (b"kind=approve&kind=reject", form, 400),
        (b"id=%ff%fe", form, 400),
        (b"id=\xff", form, 400),
        (b'{"id": 1}', {**OURS, "content-type": "application/json"}, 415),
        (b"id=1", OURS, 415),
        (b"", form, 403),
    ]
    async with Client(keel_app(saver, identify=lambda _: "maria")) as page:
        for body, headers, status in bad:
            assert (await page.post("/decide", content=body, headers=headers)).status_code == status

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"a" * 65_536

        assert (await page.post("/decide", content=endless(), headers=form)).status_code == 413
        assert (await page.get("/thread?id=" + "x" * 2_001)).status_code == 413
        assert (await page.get("/thread?id=%ff")).status_code == 400


async def test_a_websocket_is_closed(saver: KeelSaver) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    app = keel_app(saver, identify=lambda _: "maria")
    await app({"type": "websocket"}, receive, send)
    await app({"type": "lifespan"}, receive, send)
    assert [each["type"] for each in sent] == ["websocket.close"]


async def test_an_internal_error_reveals_no_details(saver: KeelSaver, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: Any) -> str:
        raise RuntimeError("secret of the program")

    async with Client(keel_app(saver, identify=broken)) as page:
        reply = await page.get("/")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "secret" in caplog.text


@pytest.mark.parametrize("options", [{"secret": "short"}, {"hosts": "localhost"}, {"identify": "maria"}])
async def test_invalid_options_are_refused(saver: KeelSaver, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        keel_app(saver, **{"identify": lambda _: "maria", **options})


async def test_processes_with_one_secret_accept_each_others_forms(saver: KeelSaver) -> None:
    apps = [keel_app(saver, identify=lambda _: "maria", secret="0123456789abcdef") for _ in range(2)]
    name = await request_of(saver)
    async with Client(apps[0]) as one, Client(apps[1]) as other:
        fields = (await one.page(f"/request?id={name}")).form("decide") | {"kind": "approve"}
        await other.submit("/decide", fields)


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("10.0.0.9", [("x-user", "maria")], 200),
        ("10.0.0.8", [("x-user", "maria")], 401),
        ("10.0.0.9", [], 401),
        ("10.0.0.9", [("x-user", "maria"), ("x-user", "tom")], 401),
        ("10.0.0.9", [("x-user", "")], 403),
    ],
)
async def test_a_header_names_the_reviewer_only_from_the_proxy(
    saver: KeelSaver, peer: str, headers: list[tuple[str, str]], status: int
) -> None:
    app = keel_app(saver, identify=from_proxy("X-User", ["10.0.0.9"]))
    transport = httpx.ASGITransport(app, client=(peer, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as page:
        given = [*headers, ("x-forwarded-for", "10.0.0.9")]
        assert (await page.get("/", headers=given)).status_code == status


@pytest.fixture
def url(tmp_path: Path) -> str:
    from langgraph_keel import SqliteSaver

    with SqliteSaver(tmp_path / "agent.db") as saver:
        saver.setup()
    return f"sqlite:///{tmp_path / 'agent.db'}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "other machines could reach this page"),
        (["--host", "0.0.0.0", "--by", "maria"], "other machines could reach this page"),
        (["--user-header", "X-User"], "need each other"),
        (["--trusted-proxy", "10.0.0.9"], "need each other"),
        (["--user-header", "X-User", "--trusted-proxy", "::1", "--by", "maria"], "give only one of them"),
        (["--by", "keel:expiry"], "must name the person"),
    ],
)
def test_keel_web_refuses_unsafe_options(url: str, words: list[str], said: str) -> None:
    done = CliRunner().invoke(keel, ["web", "--url", url, *words])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_keel_web_reports_a_taken_port_or_a_missing_store(url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = CliRunner().invoke(keel, ["web", "--url", url, "--port", str(taken.getsockname()[1])])
    assert (done.exit_code, "cannot listen" in done.output) == (2, True)
    done = CliRunner().invoke(keel, ["web", "--url", f"sqlite:///{tmp_path / 'none.db'}", "--by", "maria"])
    assert done.exit_code == 1


async def test_a_refusal_page_loads_no_resources(login: KeelApp) -> None:
    async with Client(login) as page:
        shown = Page((await page.get("/")).text)
    assert not [name for name, _ in shown.elements if name in ("script", "form", "a")]
    assert [given["href"] for name, given in shown.elements if name == "link"] == ["data:,"]
