"""The audit trail: one chain of many writers, also with crashes.

Every later change to it is found and named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.approvals.audit import AT, Trail, memory, trail
from support.places import Place, files_place
from support.process_children import exit_code, forked

from langgraph_keel import ApprovalRequest, CorruptStore, Decision, InvalidInput, MemorySaver
from langgraph_keel.approvals.requests import OVER, Approvals, request_id
from langgraph_keel.backends.memory.store import MemoryStore
from langgraph_keel.engine.audit import BEGIN, CONTENTS, HEAD, HEADS, LINKS, append, key_of, verify
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.plan import Plan, StorePlan
from langgraph_keel.testing.faults import Counter, with_tap

__all__ = ["memory", "trail"]  # fixtures
PAGE = 200


# -- one chain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["sync", "async"])
def test_appended_events_form_a_verified_chain(trail: Trail, face: str) -> None:
    trail = Trail(trail.saver, face)
    assert trail.verify().head == f"0:{BEGIN}"
    assert trail.events() == []
    numbers = [trail.append(kind, thread, args={"ü": [n, None, 0.5]}) for n, (kind, thread) in enumerate(STORY)]
    assert numbers == [1, 2, 3]
    found = trail.events()
    assert [(event.number, event.at, event.kind) for event in found] == [
        (1, AT, "asked"),
        (2, AT, "asked"),
        (3, AT, "x"),
    ]
    assert [event.content for event in found] == [
        {"thread_id": thread, "args": {"ü": [n, None, 0.5]}} for n, (_, thread) in enumerate(STORY)
    ]
    verdict = trail.verify()
    assert (verdict.events, verdict.removed, verdict.problems, verdict.ok) == (3, 0, (), True)
    assert verdict.head == f"3:{found[-1].hash}"


STORY = [("asked", "t"), ("asked", "u"), ("x", "t")]


def test_events_are_listed_and_verified_in_pages(memory: Trail) -> None:
    memory.append_all("me", 2 * PAGE)
    assert memory.verify().events == 2 * PAGE
    memory.append()
    assert [event.number for event in memory.events(after=3, limit=2)] == [4, 5]
    assert [event.number for event in memory.events(after=2 * PAGE)] == [2 * PAGE + 1]
    told: list[tuple[int, int]] = []
    assert memory.run(verify(memory.session, progress=lambda *seen: told.append(seen))).ok
    assert told == [(PAGE, 2 * PAGE + 1), (2 * PAGE, 2 * PAGE + 1), (2 * PAGE + 1, 2 * PAGE + 1)]
    memory.put(LINKS, key_of(PAGE + 50), None)
    assert memory.problem() == f"event {PAGE + 50} is missing"


def test_the_hashes_can_be_computed_without_keel(memory: Trail) -> None:
    memory.append("approved", by="ann")
    memory.append("consumed", "ü\ud800", z=1, a={"z": 1, "b": 2})
    (first, second), contents = (memory.link(1), memory.link(2)), memory.cells(CONTENTS)
    for link, previous in ((first, "0" * 64), (second, first.hash)):
        salt, text = memory.fields(contents[link.digest])
        assert link.digest == sha256((salt + text).encode()).hexdigest()
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        said = json.dumps([link.number, previous, link.at, link.kind, link.digest], separators=(",", ":"))
        assert link.hash == sha256(said.encode()).hexdigest()


def test_round_trips_of_audit_operations(trail: Trail) -> None:
    counter = Counter()
    counted = Trail(with_tap(trail.saver, counter))
    taken = []
    for call in (counted.append, counted.append, counted.append, counted.verify, counted.events):
        call()
        taken.append(counter.taken())
    assert taken == [5, 4, 4, 3, 2]


@pytest.mark.parametrize(
    "content", [{"x": object()}, {"x": float("nan")}, {"x": {1, 2}}, {"x": b""}, {"x": {(1, 2): 3}}]
)
def test_content_that_is_not_json_is_refused(memory: Trail, content: Any) -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        memory.append(**content)
    assert (memory.events(), memory.cells(CONTENTS)) == ([], {})


class Kind(StrEnum):
    APPROVED = "approved"


def test_an_enum_kind_is_stored_as_text(memory: Trail) -> None:
    memory.append(Kind.APPROVED)
    memory.append()
    assert type(memory.events()[0].kind) is str
    assert memory.verify().ok


@pytest.mark.parametrize(("after", "limit"), [(-1, 1), (0, 0)])
def test_invalid_pages_are_refused(memory: Trail, after: int, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        memory.events(after, limit)


def test_append_copies_its_content_immediately(memory: Trail) -> None:
    content = {"args": [1]}
    plan = append(memory.session, "t", AT, "asked", content)
    reply = memory.begin(plan)
    content["args"].append(2)
    assert memory.go_on(plan, reply) == 1
    assert memory.events()[0].content == {"args": [1], "thread_id": "t"}


# -- many writers, and crashes -----------------------------------------------------------------------------------------


def check_race(trail: Trail, writers: int, count: int) -> None:
    found = trail.events(limit=1000)
    said = [(event.content["who"], event.content["n"]) for event in found if event.content]
    assert sorted(said) == sorted((str(who), n) for who in range(writers) for n in range(count))
    assert [event.number for event in found] == list(range(1, writers * count + 1))
    assert trail.verify().problems == ()


def test_threads_racing_make_one_chain(trail: Trail) -> None:
    with ThreadPoolExecutor(5) as pool:
        writing = [pool.submit(trail.append_all, str(who), 15) for who in range(4)]
        while not all(each.done() for each in writing):  # a concurrent check reports no problems
            assert trail.verify().problems == ()
        for each in writing:
            each.result()
    check_race(trail, 4, 15)


def append_as(place: Place, who: str, count: int) -> None:
    with place.open() as saver:
        Trail(saver).append_all(who, count)


def test_processes_racing_make_one_chain(place: Place) -> None:
    with place.open() as saver:
        saver.setup()
    children = [forked(append_as, place, str(who), 15) for who in range(3)]
    assert [exit_code(child) for child in children] == [0, 0, 0]
    with place.open() as saver:
        check_race(Trail(saver), 3, 15)
    place.check()


def test_a_trail_is_verified_while_another_process_appends(tmp_path: Path) -> None:
    with files_place(tmp_path).open() as one, files_place(tmp_path).open() as other:
        one.setup()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(Trail(one).append_all, "me", 150)
            while not writing.done():
                assert Trail(other).verify().problems == ()
            writing.result()
        assert Trail(other).verify().events == 150


def test_a_chain_continues_after_a_crash_at_any_request(trail: Trail) -> None:
    trail.append()
    requests, is_over = 0, False
    while not is_over:
        is_over = trail.crash(requests)
        assert trail.problem() == ""
        number = trail.append("after")
        verdict = trail.verify()
        assert (verdict.problems, verdict.events, verdict.removed) == ((), number, 0)
        requests += 1
    crashed = [event.content["crashed"] for event in trail.events() if event.content and "crashed" in event.content]
    # The link counts: a writer that dies before it has appended nothing; one that dies after it has appended.
    assert crashed == list(range(3, requests))


@pytest.mark.parametrize("requests", range(5))
def test_a_chain_begins_after_a_crash_at_any_request_of_the_first_append(trail: Trail, requests: int) -> None:
    assert not trail.crash(requests)
    assert trail.problem() == ""
    is_there = requests == 4
    assert len(trail.events()) == is_there
    assert trail.append() == 1 + is_there
    assert (trail.verify().problems, trail.verify().removed) == ((), 0)


def test_an_append_finds_links_beyond_a_stale_head(trail: Trail) -> None:
    trail.append()
    assert not trail.crash(3)
    assert trail.fields(trail.cells(HEADS)[HEAD])[0] == 1
    assert trail.append("after") == 3
    assert trail.fields(trail.cells(HEADS)[HEAD]) == [3, trail.link(3).hash]


def test_the_slower_of_two_appends_advances_the_head(trail: Trail) -> None:
    trail.append()
    slow = trail.appending()
    head = trail.begin(slow)
    assert trail.append() == 2
    assert trail.go_on(slow, head) == 3
    assert trail.fields(trail.cells(HEADS)[HEAD]) == [3, trail.link(3).hash]


def test_an_append_catches_up_with_a_head_several_pages_behind(memory: Trail) -> None:
    memory.append()
    (head,) = memory.cells(HEADS).values()
    memory.append_all("me", 2 * PAGE + 5)
    memory.put(HEADS, HEAD, head)
    assert memory.append() == 2 * PAGE + 7
    assert memory.problem() == ""


def test_verify_succeeds_while_the_first_event_is_appended(trail: Trail) -> None:
    plan = verify(trail.session)
    no_head = trail.begin(plan)
    trail.append()
    assert trail.go_on(plan, no_head) == trail.verify()


class Blinking(MemoryStore):
    """Lists links as a directory may during a write: the newest one is missing.

    The next one may be listed.
    """

    def __init__(self, *unseen: Sequence[int]) -> None:
        super().__init__()
        self.unseen = iter(unseen)

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Any, Any, Sequence[tuple[str, Cell]]]:
        page = yield from super().list_cells(shelf, prefix, after, limit)
        unseen = {key_of(number) for number in next(self.unseen, ())}
        return [pair for pair in page if pair[0] not in unseen]


def test_links_newer_than_a_listing_are_not_reported_missing(memory: Trail) -> None:
    memory.append_all("me", 3)
    (head,) = memory.cells(HEADS).values()
    memory.append_all("me", 2)
    memory.put(HEADS, HEAD, head)
    verdict = memory.run(verify(replace(memory.session, store=Blinking([2, 4, 5], [4]))))
    assert (verdict.events, verdict.problems) == (3, ())


def waiting(thread: str) -> ApprovalRequest:
    return ApprovalRequest(request_id(thread, "pay"), thread, action="pay", args={"amount": 7}, asked_at=AT)


def deciding(trail: Trail, name: str) -> Plan[None]:
    """Approve a request: its second event."""
    approvals = Approvals(trail.session)
    held = (yield from approvals.read([name]))[name]
    yield from approvals.decide(held, Decision("approve", "ann", AT))


def ending(trail: Trail, name: str, way: str) -> Plan[None]:
    """Mark the decision as used, or close the request; retry after a conflict."""
    approvals = Approvals(trail.session)
    while True:
        held = (yield from approvals.read([name]))[name]
        if held.request.status == "consumed" and (way == "consume" or held.shelf == OVER):
            return
        if way == "consume":
            yield from approvals.consume(held, AT)
        else:
            yield from approvals.end(held, "consumed", AT)


def check_stories(trail: Trail, threads: Sequence[str]) -> None:
    """The trail has each event of each request once, in order."""
    told: dict[str, list[Any]] = {thread: [] for thread in threads}
    for event in trail.events(limit=1000):
        assert event.content
        told[event.content["thread_id"]].append((event.kind, event.content["n"]))
    assert told == {thread: [("asked", 0), ("approved", 1), ("consumed", 2)] for thread in threads}
    assert trail.problem() == ""
    assert len(trail.cells(CONTENTS)) == 3 * len(threads)


@pytest.mark.parametrize("way", ["consume", "end"])
@pytest.mark.parametrize("dies", [True, False])
def test_a_decision_is_recorded_once_when_another_process_continues(trail: Trail, way: str, *, dies: bool) -> None:
    """The decider may be at any request of its append when another process continues.

    Then it dies, or completes.
    """
    threads: list[str] = []
    for requests in count(2):  # it has read the request, and written the decision
        name, thread = request_id(f"t{requests}", "pay"), f"t{requests}"
        trail.run(Approvals(trail.session).ask(waiting(thread)))
        plan, reply = deciding(trail, name), None
        try:
            for _ in range(requests):
                reply = trail.saver.engine.driver.send(plan.send(reply))
        except StopIteration:
            break
        threads.append(thread)
        trail.run(ending(trail, name, way))
        if dies:
            plan.close()
        else:
            trail.go_on(plan, reply)
    trail.run(ending(trail, name, way))
    assert len(threads) == 6  # after the decision, each of the four requests of the append, and the last one
    check_stories(trail, [*threads, thread])


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.integers(0, 2)))
def test_three_concurrent_writers_record_a_request_once(turns: list[int]) -> None:
    """Their requests to the store may come in any order."""
    with MemorySaver() as saver:
        trail = Trail(saver)
        trail.run(Approvals(trail.session).ask(waiting("t")))
        decided = deciding(trail, waiting("t").id)
        reply = None
        for _ in range(2):
            reply = saver.engine.driver.send(decided.send(reply))
        plans = {0: decided, **{who: ending(trail, waiting("t").id, "end") for who in (1, 2)}}
        replies = {0: reply, 1: None, 2: None}
        for who in [*turns, *[0] * 50, *[1] * 50, *[2] * 50]:
            if who in plans:
                try:
                    replies[who] = saver.engine.driver.send(plans[who].send(replies[who]))
                except StopIteration:
                    del plans[who]
        assert plans == {}
        check_stories(trail, ["t"])


def test_a_writer_that_cannot_read_the_chain_does_not_extend_it(tmp_path: Path) -> None:
    with files_place(tmp_path).open(serde=JsonPlusSerializer()) as theirs, files_place(tmp_path).open() as ours:
        Trail(theirs).append()
        with pytest.raises(CorruptStore, match=r"event 1 .*another serializer"):
            Trail(ours).append()
        assert Trail(theirs).append() == 2
        assert Trail(theirs).verify().ok


# -- threads come and go -----------------------------------------------------------------------------------------------


def test_deleting_a_thread_removes_the_contents_of_its_events(trail: Trail) -> None:
    for thread in ("t", "u", "t", "u"):
        trail.append("asked", thread, secret=f"of {thread}")
    salts = [trail.fields(cell)[0] for cell in trail.cells(CONTENTS).values() if cell.origin == "t"]
    before = trail.verify()
    trail.saver.delete_thread("t")
    after = trail.verify()
    assert (after.removed, after.events, after.problems, after.head) == (2, 4, (), before.head)
    assert [event.content and event.content["secret"] for event in trail.events()] == [None, "of u", None, "of u"]
    # Without the salts, the removed contents cannot be guessed.
    left = [cell for shelf in (LINKS, CONTENTS, HEADS) for cell in trail.cells(shelf).values()]
    said = str([(cell.token, trail.fields(cell)) for cell in left])
    assert len(salts) == 2
    assert not any(salt in said for salt in salts)
    assert trail.append("asked", "t") == 5
    assert (trail.verify().removed, trail.verify().problems) == (2, ())


def test_deleting_a_thread_removes_contents_orphaned_by_a_crash(trail: Trail) -> None:
    assert not trail.crash(3)
    assert (len(trail.cells(CONTENTS)), trail.events()) == (1, [])
    trail.saver.delete_thread("t")
    assert trail.cells(CONTENTS) == {}


@pytest.mark.parametrize("strategy", ["keep_latest", "delete"])
def test_a_prune_leaves_the_chain(trail: Trail, strategy: str) -> None:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for _ in range(3):
        config = trail.saver.put(config, empty_checkpoint(), {"source": "loop", "step": 0, "parents": {}}, {})
        trail.append()
    before = trail.verify()
    trail.saver.prune(["t"], strategy=strategy)
    after = trail.verify()
    assert (after.events, after.head, after.problems) == (3, before.head, ())
    assert after.removed == (3 if strategy == "delete" else 0)
    assert len(list(trail.saver.list(None))) == (0 if strategy == "delete" else 1)
