"""An audit trail that tests append to, read, verify and tamper with."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from langgraph_keel import KeelSaver, MemorySaver
from langgraph_keel.engine import audit
from langgraph_keel.engine.audit import (
    CONTENTS,
    HEAD,
    HEADS,
    LINKS,
    AuditEvent,
    AuditVerdict,
    Link,
    cell_of,
    header_of,
    key_of,
    link_in,
)
from langgraph_keel.engine.cells import Cell, Shelf
from support.savers import SAVERS, needing

AT = "2026-11-22T08:00:00+00:00"


def token() -> str:
    return token_hex(16)


class Trail:
    """The audit trail of a saver, used through one of its faces."""

    def __init__(self, saver: KeelSaver, face: str = "sync") -> None:
        self.saver = saver
        self.session = saver.engine.session
        self.store = saver.engine.session.store
        self.codec = saver.engine.session.codec
        self._face = face

    def run(self, plan: Generator[Any, Any, Any]) -> Any:
        return self.saver.engine.run(plan) if self._face == "sync" else asyncio.run(self.saver.engine.arun(plan))

    def appending(self, kind: str = "asked", thread: str = "t", **content: Any) -> Generator[Any, Any, int]:
        return audit.append(self.session, thread, AT, kind, content)

    def append(self, kind: str = "asked", thread: str = "t", **content: Any) -> int:
        number: int = self.run(self.appending(kind, thread, **content))
        return number

    def append_all(self, who: str, count: int) -> None:
        for n in range(count):
            self.append(thread=f"thread {n % 2}", who=who, n=n)

    def go_on(self, plan: Generator[Any, Any, Any], reply: Any) -> Any:
        """Run a plan to its end, starting with the reply to its first request."""
        try:
            while True:
                reply = self.saver.engine.driver.send(plan.send(reply))
        except StopIteration as over:
            return over.value

    def begin(self, plan: Generator[Any, Any, Any]) -> Any:
        """Send the first request of a plan; return the reply."""
        return self.saver.engine.driver.send(next(plan))

    def crash(self, requests: int) -> bool:
        """Crash after some requests of an append; return whether it had finished by then."""
        plan = self.appending("asked", crashed=requests)
        try:
            request = next(plan)
            for _ in range(requests):
                request = plan.send(self.saver.engine.driver.send(request))
        except StopIteration:
            return True
        plan.close()
        return False

    def events(self, after: int = 0, limit: int = 200) -> Sequence[AuditEvent]:
        found: Sequence[AuditEvent] = self.run(audit.read_events(self.session, after, limit))
        return found

    def verify(self, expected: str | None = None) -> AuditVerdict:
        verdict: AuditVerdict = self.run(audit.verify(self.session, expected))
        return verdict

    def problem(self, expected: str | None = None) -> str:
        """Return the problems that `verify` reports, as one text."""
        verdict = self.verify(expected)
        assert verdict.ok == (not verdict.problems)
        return "; ".join(verdict.problems)

    def fields(self, cell: Cell) -> Any:
        """Return the decoded header of a cell of the trail."""
        (fields,) = self.codec.decode(cell.header)
        return fields

    # -- changes that bypass the trail -----------------------------------------------------------------------------

    def cells(self, shelf: Shelf) -> dict[str, Cell]:
        return dict(self.run(self.store.list_cells(shelf, "", None, 1000)))

    def put(self, shelf: Shelf, key: str, cell: Cell | None) -> None:
        """Overwrite a cell under a new token; `None` empties it."""
        held = self.cells(shelf).get(key)
        new = cell and replace(cell, token=token())
        assert self.run(self.store.swap_cell(shelf, key, held.token if held else None, new)).done

    def link(self, number: int) -> Link:
        return link_in(self.codec, key_of(number), self.cells(LINKS)[key_of(number)])

    def relink(self, number: int, link: Link) -> None:
        """Replace the link of a number."""
        self.put(LINKS, key_of(number), cell_of(self.codec, token(), link))

    def put_content(self, number: int, *values: Any, **more: Any) -> None:
        """Replace the content of an event."""
        digest = self.link(number).digest
        cell = self.cells(CONTENTS)[digest]
        header = header_of(self.codec, *values) if values else cell.header
        self.put(CONTENTS, digest, replace(cell, header=header, **more))

    def put_head(self, *values: Any) -> None:
        self.put(HEADS, HEAD, Cell(token(), header_of(self.codec, *values)) if values else None)


@pytest.fixture(params=SAVERS)
def trail(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trail]:
    """An empty trail, on every backend."""
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        yield Trail(saver)


@pytest.fixture
def memory() -> Iterator[Trail]:
    with MemorySaver() as saver:
        yield Trail(saver)
