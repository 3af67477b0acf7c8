"""`keel web` in a real browser: Debian's Chromium with playwright, a real server.

An error in the console, an exception of a script, or a request to another origin fails the test in which it occurs.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import servers
import uvicorn
from servers.skipping import NOT_TESTED
from support.web_threads import fill, graph_of, talk, trip

from langgraph_keel import KeelSaver, SqliteSaver
from langgraph_keel.web.app import KeelApp
from langgraph_keel.web.security import Guard

CHROMIUM = shutil.which("chromium")
ARGS = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
ARGS += ["disable-component-update", "disable-sync"]
Open = Callable[..., Any]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for all tests of the module."""
    if CHROMIUM is None:
        stop: Callable[[str], None] = pytest.fail if servers.required() else pytest.skip
        stop(f"{NOT_TESTED}there is no chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[f"--{each}" for each in ARGS])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all kinds of data that the page shows."""
    path = tmp_path_factory.mktemp("web") / "agent.db"
    with SqliteSaver(path) as saver:
        in_a_thread(fill(saver))
    return path


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Iterator[KeelSaver]:
    """The test's own store, which the server reads, too."""
    with SqliteSaver(shutil.copy(filled, tmp_path / "agent.db")) as saver:
        yield saver


def in_a_thread(work: Any) -> None:
    """Run a coroutine in a thread, because playwright runs this thread's loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@pytest.fixture
def served(store: KeelSaver, tmp_path: Path) -> Iterator[str]:
    """The URL by which a browser signs in at a server on the store."""
    with SqliteSaver(tmp_path / "agent.db") as saver, socket.create_server(("127.0.0.1", 0)) as listening:
        guard = Guard(lambda _: None, login=True, by="maria")
        options: Any = {"log_level": "warning", "lifespan": "off", "timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(KeelApp(saver, guard), **options))
        running = Thread(target=server.run, kwargs={"sockets": [listening]})
        running.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/login?token={guard.token}"
        server.should_exit = True
        running.join()


@pytest.fixture
def browse(chromium: Any, served: str) -> Iterator[Open]:
    """Opens the page in a new profile, signed in; finally checks the browser's log."""
    contexts, wrong = [], list[str]()
    origin = urlsplit(served)[:2]

    def open_page(path: str = "", *, width: int = 1200, dark: bool = False, sign_in: bool = True) -> Any:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: wrong.append(asked.url) if not is_ours(asked.url) else None)
        page.goto(served if sign_in else served.partition("/login")[0])
        if path:
            page.goto(f"{served.partition('/login')[0]}/{path}")
        return page

    def is_ours(url: str) -> bool:
        return url.startswith("data:") or urlsplit(url)[:2] == origin

    open_page.wrong = wrong  # type: ignore[attr-defined]
    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def card(page: Any, title: str) -> Any:
    return page.locator("article", has=page.get_by_role("heading", name=title))


def test_keel_web_is_opened_only_by_its_link(browse: Open, served: str) -> None:
    page = browse()
    assert "token" not in page.url
    assert page.get_by_role("heading", name="Inbox").is_visible()
    assert "maria" in page.locator("header").inner_text()
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    stranger = browse(sign_in=False)
    assert "Not signed in" in stranger.content()
    # The browser logs the status of the page itself.
    browse.wrong[:] = [each for each in browse.wrong if "401" not in each]  # type: ignore[attr-defined]


def test_keel_web_serves_the_page(chromium: Any, store: KeelSaver, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "langgraph_keel", "web", "--url", f"sqlite:///{tmp_path / 'agent.db'}"]
    with subprocess.Popen([*command, "--by", "maria", "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        page = chromium.new_page()
        page.goto(server.stdout.readline().removeprefix("Open ").strip())
        card(page, "refund").get_by_role("button", name="Approve").click()
        page.get_by_text("maria approved this").wait_for()
        page.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) in (0, 130, -signal.SIGINT)


def test_an_approved_request_disappears_from_the_inbox(browse: Open, store: KeelSaver) -> None:
    page = browse()
    card(page, "refund").get_by_label("Reason").first.fill("the photo is enough")
    card(page, "refund").get_by_role("button", name="Approve").click()
    page.get_by_text("maria approved this").wait_for()
    assert "was decided, and no run has used the decision yet" in page.content()
    page.get_by_role("link", name="Inbox").click()
    assert card(page, "refund").count() == 0
    assert "Decided, but not used by a run yet" in page.content()
    (request,) = store.approvals.pending(status="approved")
    assert request.decision
    assert (request.decision.by, request.decision.reason) == ("maria", "the photo is enough")


def test_a_request_is_rejected_and_a_question_answered(browse: Open, store: KeelSaver) -> None:
    page = browse()
    card(page, "send_email").get_by_role("button", name="Reject").click()
    page.get_by_text("maria rejected this").wait_for()
    page.get_by_role("link", name="Inbox").click()
    asked = card(page, "Window or aisle?")
    asked.get_by_label("Answer", exact=True).fill("aisle\nplease")
    asked.get_by_role("button", name="Send the answer").click()
    page.get_by_text("maria answered this").wait_for()
    (request,) = store.approvals.pending("trip", status="answered")
    assert request.decision
    assert request.decision.value == "aisle\nplease"


def test_arguments_are_edited_and_the_difference_is_shown(browse: Open, store: KeelSaver) -> None:
    page = browse()
    asked = card(page, "send_email")
    asked.get_by_text("Edit before it is done").click()
    area = asked.get_by_label("All arguments, as JSON")
    given = area.input_value()
    area.fill(given.replace("Dear Bo", "Dear Bo, we are sorry") + "}")
    asked.get_by_role("button", name="Show the difference").click()
    assert "Nothing was decided" in page.content()
    browse.wrong[:] = [each for each in browse.wrong if "400" not in each]  # type: ignore[attr-defined]
    page.get_by_label("All arguments, as JSON").fill(given.replace("Dear Bo", "Dear Bo, we are sorry"))
    page.get_by_role("button", name="Show the difference").click()
    assert page.locator("ins").all_inner_texts() != []
    page.get_by_role("button", name="Approve with these arguments").click()
    page.get_by_text("maria edited this").wait_for()
    (request,) = store.approvals.pending(status="edited")
    assert request.decision
    assert request.decision.args["body"] == "Dear Bo, we are sorry"


def test_a_doubt_is_settled(browse: Open, store: KeelSaver) -> None:
    page = browse()
    doubt = card(page, "pay")
    doubt.get_by_label("it happened", exact=True).check()
    doubt.get_by_label("If it happened").fill("paid, receipt 17")
    doubt.get_by_role("button", name="Settle it").click()
    page.get_by_role("heading", name="Thread paid").wait_for()
    assert [call.decided for call in store.tools.calls("paid")] == ["done"]


def test_threads_are_searched_compared_labelled_and_forked(browse: Open, store: KeelSaver) -> None:
    page = browse("threads")
    page.get_by_role("textbox", name="Id").fill("ch")
    page.get_by_role("button", name="Search").click()
    assert page.locator("tbody th a").all_inner_texts() == ["chat"]
    page.get_by_role("link", name="chat").click()
    page.get_by_label("From").fill("0")
    page.get_by_role("button", name="Compare").click()
    assert "answer 5" in page.locator(".diff").inner_text()
    page.go_back()
    page.locator(".timeline a").first.click()
    page.get_by_label("Name").fill("the end")
    page.get_by_role("button", name="Label this").click()
    assert "the end" in page.locator("main").inner_text()
    page.get_by_label("Id of the new thread").fill("chat/second")
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_role("heading", name="Thread chat/second").wait_for()
    assert store.get_tuple({"configurable": {"thread_id": "chat/second"}}) is not None
    page.go_back()
    assert page.get_by_role("heading", name="Moment of chat").is_visible()


def test_the_second_of_two_reviewers_sees_the_first_decision(browse: Open) -> None:
    first, second = browse(), browse()
    card(first, "refund").get_by_role("button", name="Approve").click()
    first.get_by_text("maria approved this").wait_for()
    card(second, "refund").get_by_role("button", name="Reject").click()
    second.get_by_text("maria approved this").first.wait_for()
    assert "Nothing was decided" in second.content()
    browse.wrong[:] = [each for each in browse.wrong if "409" not in each]  # type: ignore[attr-defined]


def test_a_decision_is_sent_once_after_back_and_reload(browse: Open, store: KeelSaver) -> None:
    page = browse()
    card(page, "refund").get_by_role("button", name="Approve").click()
    page.get_by_text("maria approved this").wait_for()
    page.reload()
    page.go_back()
    page.reload()
    assert card(page, "refund").count() == 0
    (request,) = store.approvals.pending(status="approved")
    assert [each["kind"] for each in request.history].count("approved") <= 1


def test_the_inbox_shows_new_requests_but_not_over_a_form(browse: Open, store: KeelSaver) -> None:
    page = browse()
    in_a_thread(talk(store, trip, "another trip", "Bergen, please"))
    page.get_by_role("link", name="another trip").wait_for()
    assert page.title().startswith("(5)")
    reason = card(page, "refund").get_by_label("Reason").first
    reason.fill("I am still")
    in_a_thread(talk(store, trip, "a third trip", "Rome, please"))
    page.get_by_text("Something has changed since").wait_for()
    assert reason.input_value() == "I am still"
    assert page.get_by_role("link", name="a third trip").count() == 0


def test_a_decided_thread_is_followed_to_its_end(browse: Open, store: KeelSaver) -> None:
    page = browse()
    asked = card(page, "Window or aisle?")
    asked.get_by_label("Answer", exact=True).fill("aisle")
    asked.get_by_role("button", name="Send the answer").click()
    page.get_by_text("no run has used the decision yet").wait_for()
    config: Any = {"configurable": {"thread_id": "trip", "user_id": "ada"}}
    graph_of(store, trip).invoke(store.approvals.resume("trip"), config)
    page.get_by_text("is idle: it takes new input").wait_for()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_a_phone_and_are_readable(browse: Open, dark: bool) -> None:
    page = browse(width=375, dark=dark)
    base = page.url
    for path in (
        "",
        "threads",
        "thread?id=chat",
        "thread?id=bank",
        "diff?thread=chat&from=0",
        "usage",
        "calls?thread=paid",
    ):
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
        assert page.evaluate(CONTRAST) == [], path
    page.goto(base + "thread?id=chat")
    with page.expect_navigation():  # wait until it is loaded: without its stylesheet a page is wider
        page.locator(".timeline a").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const parse = (colour) => [...colour.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (top, below) => [0, 1, 2].map((n) => top[n] * top[3] + below[n] * (1 - top[3])).concat(1);
  const light = (colour) => {
    const of = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const part = colour.slice(0, 3).map((each) => of(each / 255));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !each.checkVisibility()) continue;
    let back = [0, 0, 0, 0], opacity = 1;
    const above = [];
    for (let at = each; at; at = at.parentElement) above.push(at);
    back = [255, 255, 255, 1];
    for (const at of above.reverse()) {
      const style = getComputedStyle(at);
      back = over(parse(style.backgroundColor), back);
      opacity *= Number(style.opacity);
    }
    const ink = parse(getComputedStyle(each).color);
    const shown = over([...ink.slice(0, 3), ink[3] * opacity], back);
    const [high, low] = [light(shown), light(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${each.tagName} ${each.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Returns the texts whose contrast with their background is below 4.5."""


def test_pages_can_be_used_with_the_keyboard_alone(browse: Open, store: KeelSaver) -> None:
    page = browse()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.textContent")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if name == "Approve":
            break
    page.keyboard.press("Enter")
    page.get_by_text("maria approved this").wait_for()
    assert len(store.approvals.pending(status="approved")) == 1
    page.goto(page.url.partition("request")[0])
    fields = "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
    assert page.evaluate(f"{fields}.length") > 3
    assert page.evaluate(f"{fields}.filter((each) => !each.labels.length).length") == 0


def test_a_hostile_thread_runs_no_script(browse: Open, store: KeelSaver) -> None:
    from test_web_hostile import EVILS, hostile

    for evil in list(EVILS)[:16]:
        in_a_thread(hostile(store, EVILS[evil]))
    page = browse("threads")
    addresses = [each.get_attribute("href") for each in page.locator("tbody th a").all()]
    base = page.url.removesuffix("threads")
    for address in ["", *addresses[:20]]:
        page.goto(base + str(address))
        assert page.evaluate("document.querySelector('h1, .empty') !== null")
    assert re.match(r"\(\d+\+?\) Inbox|Thread|.*Keel", page.title())
