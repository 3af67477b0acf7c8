"""`--profile NAME`: profile one measure of Keel with cProfile; print the top 25 functions by their own time.

All threads of the process are profiled from their start. On Python 3.12 and later, where only one profiler can be
active, only the calling thread is. If threads wait for each other, waits (`acquire`, `get`, `poll`) come first in the
list; skip them.
"""

import cProfile
import pstats
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from . import cells, chat, fork, threads, turns
from .plan import Plan
from .shapes import SHAPES
from .steps import Calls

Prepared = Callable[[], object]
"""The function to profile, without its preparation."""


def _repeated(count: int, function: Callable[..., Any], *args: Any) -> Prepared:
    return lambda: [function(*args) for _ in range(count)]


def _call(run: Callable[[cells.Subject], float], stack: ExitStack, plan: Plan) -> Prepared:
    """Prepare a call on the first of `--shapes`, or by default a chat of 100 messages."""
    shape = plan.shapes[0] if plan.shapes else SHAPES["chat-100"]
    saver = stack.enter_context(plan.ours.open(plan.directory("profile")))
    return _repeated(plan.rounds(60), run, cells.Subject(Calls(saver), shape))


def _turn(stack: ExitStack, plan: Plan) -> Prepared:
    saver = stack.enter_context(plan.ours.open(plan.directory("profile")))
    return _repeated(plan.rounds(60), turns.Subject(turns.FORMS[1], saver).take_turn)


def _chat(_: ExitStack, plan: Plan) -> Prepared:
    directory = plan.directory("chat")
    return lambda: chat.half(plan.ours, directory, chat.SCHEMAS["add_messages"], range(plan.messages // 2))


def _fork(_: ExitStack, plan: Plan) -> Prepared:
    directory = plan.directory("fork")
    middle = fork.long_thread(plan.ours, directory, plan.count(1000))
    return lambda: fork.fork(plan.ours, directory, middle)


def _threads(stack: ExitStack, plan: Plan) -> Prepared:
    return stack.enter_context(threads.serving(plan, {"ours": plan.ours}))["ours"]


SUBJECTS: dict[str, Callable[[ExitStack, Plan], Prepared]] = {
    **{name.split("(")[0]: partial(_call, run) for name, (run, _) in cells.CALLS.items()},
    "turn": _turn,
    "chat": _chat,
    "fork": _fork,
    "threads": _threads,
}


@contextmanager
def _other_threads(profiles: list[cProfile.Profile]) -> Iterator[None]:
    """Start a profiler in each thread that starts in the block, and collect the profilers."""

    def begin(*_: Any) -> None:
        profile = cProfile.Profile()
        with suppress(ValueError):
            profile.enable()
            profiles.append(profile)

    threading.setprofile(begin)
    try:
        yield
    finally:
        threading.setprofile(None)


def profile(plan: Plan, name: str) -> None:
    profiles: list[cProfile.Profile] = []
    with ExitStack() as stack, _other_threads(profiles):
        run = SUBJECTS[name](stack, plan)
        mine = cProfile.Profile()
        mine.runcall(run)
    profiles = [each for each in (mine, *profiles) if each.getstats()]
    pstats.Stats(*profiles).sort_stats("tottime").print_stats(25)
