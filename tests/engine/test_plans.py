"""How drivers run plans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from langgraph_keel.engine.plan import StorePlan, arun


class Swallowing:
    """A driver that loses a cancellation that comes with the reply.

    `asyncio.wait_for` does that.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.is_asked = asyncio.Event()

    async def send(self, request: Any) -> Any:
        self.requests.append(request)
        self.is_asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "a reply"
        raise AssertionError("nobody has cancelled it")


async def test_a_cancellation_swallowed_by_a_client_ends_the_plan() -> None:
    ended: list[BaseException] = []

    def plan() -> StorePlan[str, Any, None]:
        try:
            yield "first"
            yield "second"
        except BaseException as error:
            ended.append(error)
            raise

    driver = Swallowing()
    task = asyncio.create_task(arun(plan(), driver))
    await driver.is_asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert driver.requests == ["first"]
    assert [type(error) for error in ended] == [asyncio.CancelledError]


async def test_an_earlier_cancellation_does_not_end_a_later_plan() -> None:
    """After a cancellation, a program may continue, for example to clean up."""

    async def main() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await arun(plan(), Answering())
        raise AssertionError("nobody has cancelled it")

    class Answering:
        async def send(self, request: Any) -> str:
            return f"a reply to {request}"

    def plan() -> StorePlan[str, Any, str]:
        reply: str = yield "a request"
        return reply

    task = asyncio.create_task(main())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "a reply to a request"
