"""Measure 10, `requests`: what `put`, `get_tuple` and `put_writes` ask of Redis, beside the least that could be asked.

The very request that the store makes is timed where the saver's driver sends it. Beside it stands a bare EVALSHA
through a client of its own, of a script that takes the same keys and arguments, does nothing with them, and returns a
reply of the same shape and size. Where the server syncs its log at every write (`always`), the bare script of a request
that writes sets one short key too: otherwise the disk would be asked of the one only.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

from redis import Redis

from .cells import Subject
from .plan import Plan
from .redis import opened, server
from .report import Row
from .shapes import chat
from .steps import Calls
from .timing import Clocked, interleaved, timed

POLICIES = ("everysec", "always")
CALLS: dict[str, Callable[[Subject], object]] = {
    "put": Subject.put,
    "get_tuple": Subject.get_tuple,
    "put_writes": Subject.put_writes,  # last: get_tuple would read them all
}


class Recorder:
    """Stands in for `driver.send`: keeps the last request, its reply, and the seconds it took."""

    def __init__(self, saver: Any) -> None:
        driver = saver.engine.driver
        self._send = driver.send
        driver.send = self

    def __call__(self, request: Any) -> Any:
        self.seconds, reply = timed(self._send, request)
        [self.call], [self.reply] = request.calls, reply
        return reply


def shape(reply: Any) -> str:
    """A reply of the same shape and size, in Lua."""
    if isinstance(reply, list):
        return "{" + ",".join(map(shape, reply)) + "}"
    if isinstance(reply, bytes):
        return f"'{'x' * len(reply)}'"  # string.rep would take longer than the request
    return "false" if reply is None else str(reply)


class Bare:
    """Sends the keys and arguments of the request that was recorded last to a script that only replies."""

    def __init__(self, client: Any, recorder: Recorder, writes: bool) -> None:
        self._client, self._recorder = client, recorder
        self._loaded = cache(client.script_load)
        self._write = "redis.call('SET', 'floor', 'x') " if writes else ""

    def __call__(self) -> float:
        call = self._recorder.call
        sha = self._loaded(f"{self._write}return {shape(self._recorder.reply)}")
        return timed(self._client.evalsha, sha, len(call.keys), *call.keys, *call.args)[0]


def _request(run: Callable[[], object], recorder: Recorder) -> float:
    run()
    return recorder.seconds


def _on(plan: Plan, policy: str) -> list[Row]:
    with ExitStack() as stack:
        url = stack.enter_context(server(plan.root, policy))
        client = stack.enter_context(Redis.from_url(url))
        saver = stack.enter_context(opened(url, "requests"))
        subject = Subject(Calls(saver), chat(plan.messages, threads=1))
        recorder = Recorder(saver)
        return [_beside(plan, policy, name, partial(run, subject), recorder, client) for name, run in CALLS.items()]


def _beside(plan: Plan, policy: str, name: str, run: Callable[[], object], recorder: Recorder, client: Any) -> Row:
    run()
    runs: dict[str, Clocked] = {
        "ours": partial(_request, run, recorder),
        "bare": Bare(client, recorder, writes=policy == "always" and name != "get_tuple"),
    }
    took = interleaved(plan.rounds(101), runs)
    label = f"request of {name}, {plan.messages} messages, {policy}; beside a bare EVALSHA"
    return Row("requests", label, took["bare"], took["ours"], "ms", plan.target("request"))


def measure(plan: Plan) -> list[Row]:
    return [row for policy in POLICIES for row in _on(plan, policy)]
