"""Measure 10, `requests`: the Redis requests of `put`, `get_tuple` and `put_writes`, compared with a minimal request.

The real request is timed where the saver's driver sends it. The minimal request is a bare EVALSHA through another
client: its script takes the same keys and arguments, ignores them, and returns a reply of the same shape and size. If
the server syncs its log at every write (`always`), the bare script of a writing request also sets one short key, so
that both requests wait for the disk.
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
    "put_writes": Subject.put_writes,  # last: get_tuple would read all writes
}


class Recorder:
    """Replaces `driver.send`, and keeps the last request, its reply and its duration."""

    def __init__(self, saver: Any) -> None:
        driver = saver.engine.driver
        self._send = driver.send
        driver.send = self

    def __call__(self, request: Any) -> Any:
        self.seconds, reply = timed(self._send, request)
        [self.call], [self.reply] = request.calls, reply
        return reply


def shape(reply: Any) -> str:
    """Return Lua code for a reply of the same shape and size."""
    if isinstance(reply, list):
        return "{" + ",".join(map(shape, reply)) + "}"
    if isinstance(reply, bytes):
        return f"'{'x' * len(reply)}'"  # string.rep would take longer than the request
    return "false" if reply is None else str(reply)


class Bare:
    """Sends the keys and arguments of the last recorded request to a script that only replies."""

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
    label = f"request of {name}, {plan.messages} messages, {policy}; compared with a bare EVALSHA"
    return Row("requests", label, took["bare"], took["ours"], "ms", plan.target("request"))


def measure(plan: Plan) -> list[Row]:
    return [row for policy in POLICIES for row in _on(plan, policy)]
