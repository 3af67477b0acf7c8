"""A TCP proxy that counts round trips and breaks connections on request."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from .launch import PATIENCE, free_port

T = TypeVar("T")

# The fate of a request: it passes, or the connection breaks before it is forwarded, or when its reply comes.
Fate = Literal["pass", "before request", "before reply"]
# SO_LINGER of zero seconds: a close sends RST and drops the buffers, as if the machine was gone.
RESET = struct.pack("ii", 1, 0)
CHUNK = 1 << 16


class Link:
    """One client's connection, and its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self._ends = [client]
        # A request is in progress: the next bytes of the server are its reply.
        self.is_asking = False
        self.fate: Fate = "pass"

    def add(self, server: asyncio.StreamWriter) -> None:
        """Set the connection to the server."""
        self._ends.append(server)

    def cut(self) -> None:
        """Reset both connections."""
        for end in self._ends:
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()

    async def close(self) -> None:
        """Close both connections, after flushing their buffers."""
        for end in self._ends:
            end.close()
        for end in self._ends:
            with suppress(OSError):
                await end.wait_closed()


class Proxy:
    """A proxy that runs in its own thread.

    Its methods may be called from any thread, and have taken effect when they return.

    A request begins with the first bytes of a client that is not waiting for a reply, and ends with the first bytes of
    the server. So the several messages of PostgreSQL's extended protocol are one request, and so is a pipeline. An
    exception is a pipeline so long that the server replies before it has received the end (Redis: from about 100 KB).
    Opening a connection takes requests too (PostgreSQL: SSL or not, then the user; Redis: HELLO and CLIENT SETINFO), so
    count and cut only on an open connection.

    Attributes:
        port: The port on 127.0.0.1 on which it listens.
        requests: Requests so far.
        round_trips: Requests so far that were replied to.
        bytes_sent: Bytes so far from clients to the server.
        bytes_received: Bytes so far from the server to clients.
        meanwhile: Called when a reply is lost, before the client is notified: it cannot send again until this returns.
    """

    meanwhile: Callable[[], object] | None = None

    def __init__(self, host: str, port: int) -> None:
        self.requests = self.round_trips = self.bytes_sent = self.bytes_received = 0
        self.port = free_port()
        self._target = (host, port)
        self._fates: dict[int, Fate] = {}
        self._chance: Callable[[], Fate] = lambda: "pass"
        self._links: dict[asyncio.Task[None], Link] = {}
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def url_for(self, url: str) -> str:
        """Return the server's URL with the proxy's host and port."""
        parts = urlsplit(url)
        before, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{before}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """The current number of connections."""
        return len(self._links)

    def cut(self) -> None:
        """Reset all connections."""
        self._do(self._cut)

    def cut_before_request(self, n: int = 1) -> None:
        """Reset the connection of the n-th request from now, before it reaches the server."""
        self._do(lambda: self._fates.update({self.requests + n: "before request"}))

    def cut_before_reply(self, n: int = 1) -> None:
        """Reset the connection of the n-th request from now, instead of passing its reply."""
        self._do(lambda: self._fates.update({self.requests + n: "before reply"}))

    def cut_at_random(self, chance: random.Random, probability: float) -> None:
        """Reset the connection at this share of all requests; 0 ends that.

        Half of the cuts happen when the reply comes.
        """

        def drawn() -> Fate:
            side: Fate = "before request" if chance.random() < 0.5 else "before reply"
            return side if chance.random() < probability else "pass"

        self._do(lambda: setattr(self, "_chance", drawn))

    def freeze(self) -> None:
        """Hold all bytes of both directions, without losing any."""
        self._do(self._flows.clear)

    def thaw(self) -> None:
        """Forward all held bytes."""
        self._do(self._flows.set)

    def refuse(self) -> None:
        """Refuse connections from now on, and reset open ones."""
        self._do(self._stop_listening)
        self.cut()

    def accept(self) -> None:
        """Accept connections again."""
        self._run(self._listen())

    def start(self) -> None:
        """Start the thread, and listen."""
        self._thread.start()
        self._flows.set()
        self.accept()

    def stop(self) -> None:
        """Reset all connections, and end the thread."""
        self._run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _do(self, act: Callable[[], T]) -> T:
        async def acting() -> T:
            return act()

        return self._run(acting())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    def _cut(self) -> None:
        for link in self._links.values():
            link.cut()

    async def _finish(self) -> None:
        self._stop_listening()
        self._cut()
        tasks = list(self._links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        link = self._links[task] = Link(writer)
        try:
            await self._carry(link, reader, writer)
        except (OSError, asyncio.CancelledError):
            link.cut()  # reset the other side, too
        finally:
            await link.close()
            del self._links[task]

    async def _carry(self, link: Link, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Forward bytes both ways until one side closes."""
        answers, server = await asyncio.open_connection(*self._target)
        link.add(server)
        ways = [
            asyncio.create_task(self._pump(reader, server, lambda data: self._asks(link, data))),
            asyncio.create_task(self._pump(answers, client, lambda data: self._answers(link, data))),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passes: Callable[[bytes], bool]
    ) -> None:
        while data := await source.read(CHUNK):
            await self._flows.wait()
            if not passes(data):
                return
            sink.write(data)
            await sink.drain()

    def _asks(self, link: Link, data: bytes) -> bool:
        if not link.is_asking:
            link.is_asking = True
            self.requests += 1
            link.fate = self._fates.pop(self.requests) if self.requests in self._fates else self._chance()
        if link.fate == "before request":
            link.cut()
            return False
        self.bytes_sent += len(data)
        return True

    def _answers(self, link: Link, data: bytes) -> bool:
        if link.fate == "before reply":
            if self.meanwhile:
                self.meanwhile()
            link.cut()
            return False
        self.round_trips += link.is_asking
        link.is_asking = False
        self.bytes_received += len(data)
        return True


@contextmanager
def proxy(host: str, port: int) -> Iterator[Proxy]:
    """Run a proxy in front of the server at that host and port."""
    made = Proxy(host, port)
    try:
        made.start()
        yield made
    finally:
        made.stop()
