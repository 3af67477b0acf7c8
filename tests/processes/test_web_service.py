"""The service of the page "In a web service" under kills, forks and restarts."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from support.places import Place
from support.tiers import sized
from test_docs import ROOT, blocks_of

from langgraph_keel import KeelSaver

PAGE = ROOT / "langgraph_keel" / "web_service.md"
RANDOM = random.Random(37)


class Service:
    """The service of the page, in its own directory.

    Attributes:
        url: Its address.
        refunds: The file in which its payment provider records each refund.
    """

    def __init__(self, place: Place, directory: Path, *options: str, thinks: float = 0) -> None:
        (code,) = [block.text for block in blocks_of(PAGE) if block.text.startswith('"""service.py')]
        opening = "open_saver(url,"
        asked = "        said = messages[-1]\n"
        assert opening in code
        assert asked in code
        code = code.replace(asked, f"{asked}        __import__('time').sleep({thinks})\n")
        (directory / "service.py").write_text(code.replace(opening, f"open_saver(url, **{dict(place.options)!r},"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._place, self._directory, self._options = place, directory, options
        self.url = f"http://127.0.0.1:{self._port}"
        self.refunds = directory / "refunds.log"
        self.refunds.touch()
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start two workers, and wait until one answers."""
        words = [sys.executable, "-m", "uvicorn", "service:app", "--workers", "2", "--port", str(self._port)]
        words += self._options
        env = {**os.environ, "KEEL_URL": self._place.url}
        log = (self._directory / "log").open("ab")
        self._server = subprocess.Popen(
            words, cwd=self._directory, env=env, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        until(lambda: self.ask("GET", "/approvals") is not None, "the service to answer", seconds=60)

    def stop(self, how: signal.Signals) -> None:
        """End all of its processes with a signal."""
        assert self._server is not None
        os.killpg(self._server.pid, how)
        self._server.wait(60)
        self._server = None

    def kill_worker(self) -> None:
        """Kill one of the workers, which uvicorn starts again."""
        if workers := self.workers():
            os.kill(RANDOM.choice(sorted(workers)), signal.SIGKILL)

    def workers(self) -> set[int]:
        """Return the current workers."""
        assert self._server is not None
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        return {int(pid) for pid in children if b"spawn_main" in _command(pid)}

    def restart(self) -> None:
        """Have uvicorn replace its workers one by one (SIGTERM); wait for their end."""
        assert self._server is not None
        before = self.workers()
        os.kill(self._server.pid, signal.SIGHUP)
        until(lambda: not before & self.workers(), "the workers to be replaced", seconds=90)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """Send a request; return `None` if its worker is gone, or dies."""
        try:
            return httpx.request(method, self.url + path, timeout=60, **more)
        except httpx.TransportError:
            return None

    def say(self, thread: str, text: str) -> httpx.Response | None:
        """Send a message to a thread."""
        return self.ask("POST", f"/threads/{thread}/messages", json={"text": text})

    def messages(self, thread: str) -> list[dict[str, str]]:
        """Return the conversation of a thread."""
        shown = self.ask("GET", f"/threads/{thread}")
        assert shown is not None
        messages: list[dict[str, str]] = shown.json()["messages"]
        return messages

    def approve(self, request_id: str) -> httpx.Response | None:
        """Approve a request."""
        return self.ask("POST", f"/approvals/{request_id}", json={"kind": "approve"}, headers={"X-Reviewer": "maria"})


def until(is_so: Callable[[], object], what: str, *, seconds: float) -> None:
    """Wait for other processes, which send no event."""
    end = monotonic() + seconds
    while not is_so():
        assert monotonic() < end, f"waited {seconds} s for {what}"
        sleep(0.1)


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def served(place: Place, directory: Path, *options: str, thinks: float = 0) -> Iterator[Service]:
    service = Service(place, directory, *options, thinks=thinks)
    service.start()
    try:
        yield service
    finally:
        if service._server is not None:
            service.stop(signal.SIGKILL)


def waiting_in(saver: KeelSaver, thread: str) -> str | None:
    """Return the pending request of a thread."""
    return next((each.id for each in saver.approvals.pending(thread)), None)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres", "redis"], indirect=True)
def test_a_refund_is_paid_once_despite_kills_forks_and_restarts(place: Place, tmp_path: Path) -> None:
    orders = [f"o{number}" for number in range(sized(2, 2, 20))]
    with served(place, tmp_path) as service, place.open() as saver:
        for number, order in enumerate(orders):
            until(partial(_has_asked, service, saver, order), f"thread {order} to ask", seconds=90)
            request = waiting_in(saver, order)
            assert request is not None
            service.approve(request)
            message = Thread(target=service.say, args=(order, "thanks"))  # waits for its turn, or is refused
            message.start()
            if number % 2:
                service.kill_worker()
            else:
                service.stop(RANDOM.choice([signal.SIGKILL, signal.SIGTERM]))
            saver.timeline(order).fork(RANDOM.randrange(len(saver.timeline(order))), thread_id=f"{order}-what-if")
            if not number % 2:
                service.start()
            service.approve(request)  # the second click
            message.join()
        until(lambda: not _left(service, saver, orders), "the threads to end", seconds=90)
        paid = Counter(line.split()[0] for line in service.refunds.read_text().splitlines())
        in_doubt = {order for order in orders if saver.status(order).doubts}
    assert max(paid.values()) == 1
    assert set(paid) | in_doubt == set(orders)
    assert in_doubt != set(orders)


def _has_asked(service: Service, saver: KeelSaver, order: str) -> bool:
    if saver.status(order).state == "new":
        service.say(order, f"refund {order}")
    return waiting_in(saver, order) is not None


def _left(service: Service, saver: KeelSaver, orders: list[str]) -> list[str]:
    """Return the threads that are neither at their end nor in doubt.

    An operator resumes those that must not continue alone.
    """
    left = []
    for order in orders:
        status = saver.status(order)
        if status.state == "idle" or status.doubts:
            continue
        left.append(order)
        if status.state not in ("waits", "runs", "decided"):
            service.ask("POST", f"/operator/threads/{order}/resume")
    return left


# -- a rolling restart -------------------------------------------------------------------------------------------------

OPTIONS = ("--timeout-graceful-shutdown", "0", "--timeout-worker-healthcheck", "90")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_rolling_restart_loses_no_turn(place: Place, tmp_path: Path) -> None:
    """Each message is stored and answered once, and each refund is made once.

    No operator is needed. Uvicorn does not wait for open streams here, so turns are drained, and clients lose their
    streams.
    """
    threads, is_replaced, is_over = ["ada", "bob", "eve"], Event(), Event()
    with served(place, tmp_path, *OPTIONS, thinks=0.3) as service, ThreadPoolExecutor(4) as pool:
        try:
            reviewer = pool.submit(approve_all, service, is_over)
            clients = [pool.submit(talk, service, thread, is_replaced) for thread in threads]
            service.restart()
            is_replaced.set()
            counts = dict(zip(threads, [client.result() for client in clients], strict=True))
            for thread, says in counts.items():
                assert [each["text"] for each in service.messages(thread)] == list(conversation(thread, says))
        except BaseException as error:  # the service's log explains why a turn has not ended
            shown = {thread: getattr(service.ask("GET", f"/threads/{thread}"), "text", None) for thread in threads}
            asked = getattr(service.ask("GET", "/approvals"), "text", None)
            error.add_note(f"{shown}\napprovals: {asked}\nreviewer: {reviewer}\n{(tmp_path / 'log').read_text()}")
            raise
        finally:
            is_replaced.set()
            is_over.set()
        reviewer.result()
    paid = Counter(line.split()[0] for line in service.refunds.read_text().splitlines())
    assert paid == Counter(f"{thread}-{number}" for thread, says in counts.items() for number in range(0, says, 4))


def text_of(thread: str, number: int) -> str:
    """Return a message of a client: every fourth one asks for a refund."""
    return f"{'' if number % 4 else 'refund '}{thread}-{number}"


def conversation(thread: str, says: int) -> Iterator[str]:
    """Return the texts of a thread, with all answers."""
    for number in range(says):
        said = text_of(thread, number)
        yield said
        if not number % 4:
            said = f"refunded 40.0 for order {thread}-{number}"
            yield from ("", said)
        yield f"The last message was: {said}"


def talk(service: Service, thread: str, is_replaced: Event) -> int:
    """Send messages until the workers are replaced; return their number.

    If no answer comes, the client reads the thread, and sends the message again with the same id.
    """
    for number in count():
        said = {"text": text_of(thread, number), "id": str(number)}

        def is_answered(said: Mapping[str, str] = said) -> bool:
            shown = service.ask("GET", f"/threads/{thread}")
            if shown is None or shown.status_code != 200:
                return False
            if all(each["text"] != said["text"] for each in shown.json()["messages"]):
                service.ask("POST", f"/threads/{thread}/messages", json=said)
                return False
            return bool(shown.json()["state"] == "idle")

        until(is_answered, f"an answer to {said}", seconds=90)
        if is_replaced.is_set():
            return number + 1
    raise AssertionError


def approve_all(service: Service, is_over: Event) -> None:
    """Approve all requests, until all clients have their answers."""
    while not is_over.wait(0.1):
        found = service.ask("GET", "/approvals")
        for each in found.json() if found is not None and found.status_code == 200 else ():
            service.approve(each["id"])
