"""Whatever becomes of a stored value, what is read is right, or a named error: on every backend, through every way.

A store that has some of everything (`golden`) is damaged at one place, read in all ways, and mended again.
`KEEL_DAMAGES=20000 pytest tests/backends/test_damage.py` looks for an hour; what it finds, it names by its seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import damaged, spots_of
from golden import KINDS, VERSIONS, loaded
from golden.kinds import TYPES
from golden.seen import STATUSES, form, moment_form, thread_config, tuple_form
from places import Place
from tiers import sized

from langgraph_keel import KeelError, KeelSaver

DAMAGES = int(os.environ.get("KEEL_DAMAGES", sized(2, 8, 300)))
TOLD = ("timeline", "verdict")
"""What shows what it can and says of the rest that it is damaged, so that it may say something else than before."""


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    given: dict[str, Any] = {}
    if request.param in ("postgres", "redis"):
        given["url"] = request.getfixturevalue(f"{request.param}_url")
    if request.param == "redis":
        given["prefix"] = request.getfixturevalue("redis_prefix")
    return loaded(VERSIONS[-1], request.param, tmp_path, **given)


def ways(saver: KeelSaver, threads: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All ways to read a store, by name."""
    yield "threads", lambda: [each.thread_id for each in saver.threads()]
    yield "all requests", lambda: [form(each) for each in saver.approvals.pending(status=STATUSES, limit=None)]
    yield "audit", lambda: [form(each) for each in saver.approvals.audit(limit=1000)]
    yield "verdict", lambda: form(saver.approvals.verify_audit())
    yield "retention", lambda: form(list(saver.retention()))
    for thread in threads:
        yield from ((f"{name} of {thread}", partial(read, saver, thread)) for name, read in OF_A_THREAD.items())


OF_A_THREAD: dict[str, Callable[[KeelSaver, str], Any]] = {
    "list": lambda saver, thread: [tuple_form(each) for each in saver.list(thread_config(thread))],
    "latest": lambda saver, thread: tuple_form(saver.get_tuple(thread_config(thread))),
    "timeline": lambda saver, thread: [moment_form(each) for each in saver.timeline(thread)],
    "labels": lambda saver, thread: form(list(saver.labels(thread))),
    "tools": lambda saver, thread: [form(each) for each in saver.tools(thread)],
    "provenance": lambda saver, thread: [form(each) for each in saver.provenance(thread_config(thread))],
    "archive": lambda saver, thread: [form(each) for each in saver.archive(thread).messages()],
}


def look(place: Place, threads: list[str]) -> dict[str, Any]:
    """What is read in each way; the class of an error where there is a named one."""
    found: dict[str, Any] = {}
    with place.open(read_only=True, types=TYPES) as saver:
        for name, read in ways(saver, threads):
            try:
                found[name] = read()
            except KeelError as error:
                found[name] = type(error)
    return found


@pytest.mark.slow
def test_what_is_read_is_right_or_a_named_error(stored: Place) -> None:
    with stored.open(read_only=True) as saver:
        threads = [each.thread_id for each in saver.threads()]
    right = look(stored, threads)
    assert not [name for name, value in right.items() if isinstance(value, type)]
    with spots_of(stored) as spots:
        for seed in range(DAMAGES):
            random = Random(f"{stored.kind} {seed}")
            spot = random.choice(spots)
            new = damaged(spot.value, spots, random)
            spot.write(new)
            told = f"seed {seed}: {spot.where} was {spot.value[:60]!r} and is {new[:60]!r}"
            try:
                found = look(stored, threads)
            except Exception as error:
                raise AssertionError(told) from error
            wrong = {
                name: value
                for name, value in found.items()
                if value != right[name] and not isinstance(value, type) and not name.startswith(TOLD)
            }
            assert not wrong, f"{told}; {wrong!r:.500}"
            spot.write(spot.value)
    assert look(stored, threads) == right
