"""Marks, heartbeats and notes (`recoverable=True`): their cost and content.

`test_situations` has the rest.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import checkpoint_of, config_for
from support.log_graphs import CONFIG, graph, say
from support.tool_graphs import Killed

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, SqliteSaver, StoreUnavailable
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import MARK, Header, UnreadHeader, pack_header, unpack_header
from langgraph_keel.engine.leases import this_holder
from langgraph_keel.engine.records import Node
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer
from langgraph_keel.engine.tables import Cells
from langgraph_keel.runs import marks
from langgraph_keel.runs.hook import RunClaims
from langgraph_keel.runs.marks import NOBODY, Marks, key_of, write_stop
from langgraph_keel.runs.records import LAST, PROCESSES, STOPS, ProcessRecord, Stop
from langgraph_keel.testing.faults import Counter, Tap, with_tap

GIVEN: Any = {"log": []}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keel.db"


@pytest.fixture
def saver(path: Path) -> Iterator[KeelSaver]:
    with SqliteSaver(path, recoverable=True) as saver:
        yield saver


@pytest.fixture
def reader(path: Path) -> Iterator[KeelSaver]:
    """A saver of another program, which does not use the feature."""
    with SqliteSaver(path) as saver:
        yield saver


def marks_of(saver: KeelSaver) -> Marks:
    found = saver.engine.session.hooks.find(Marks)
    assert found is not None
    return found


def claims_of(saver: KeelSaver) -> RunClaims:
    found = saver.engine.session.hooks.find(RunClaims)
    assert found is not None
    return found


def heartbeats(saver: KeelSaver) -> dict[str, ProcessRecord]:
    kept = saver.engine.run(Cells(saver.engine.session, PROCESSES, None).every())
    return {key: each.record for key, each in kept}


def stop_in(saver: KeelSaver, thread_id: str = "t") -> Stop | None:
    found = saver.engine.run(Cells(saver.engine.session, STOPS, thread_id).find(LAST))
    return found.record if found else None


def header_of_head(saver: KeelSaver, thread_id: str = "t") -> bytes:
    found = saver.engine.run(saver.engine.session.store.read_entry(Address(thread_id)))
    assert found is not None
    return found.entry.header


def mark_of_head(saver: KeelSaver) -> Any:
    return unpack_header(header_of_head(saver), saver.engine.session.codec, Address("t")).about.get(MARK)


def two_steps(saver: KeelSaver, **options: Any) -> Any:
    made = graph(saver, say("a"), say("b"))
    return made.copy(options) if options else made


# -- what status says of a run that is alive, and of a gate ------------------------------------------------------------


def test_another_saver_sees_a_live_run_as_running(saver: KeelSaver, reader: KeelSaver) -> None:
    seen: list[Any] = []
    graph(saver, say("a"), ("b", lambda state: seen.append(reader.status("t")))).invoke(
        GIVEN, CONFIG, durability="sync"
    )
    (status,) = seen
    assert (status.state, status.can_go_on, status.next) == ("runs", False, ("b",))
    assert status.since == status.updated_at
    host = status.holder.partition("/")[0]
    assert f"is running in a process on {host}; its latest checkpoint is of {status.since}." in str(status)


def test_a_breakpoint_is_distinguished_from_a_crash(saver: KeelSaver, reader: KeelSaver) -> None:
    two_steps(saver, interrupt_before_nodes=["b"]).invoke(GIVEN, CONFIG)
    status = reader.status("t")
    assert (status.state, status.stopped, status.can_go_on) == ("stopped", "breakpoint", False)
    two_steps(saver).invoke(None, CONFIG)
    assert reader.status("t").state == "idle"


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_recoverable_off_adds_no_bytes_and_no_hook() -> None:
    with MemorySaver() as saver:
        two_steps(saver).invoke(GIVEN, CONFIG)
        assert saver.engine.session.hooks.find(Marks) is None
        assert mark_of_head(saver) is None
        assert heartbeats(saver) == {}


def test_recoverable_adds_15_bytes_and_one_trip_to_the_first_put() -> None:
    def cost(**options: Any) -> tuple[int, list[int]]:
        with MemorySaver(provenance=False, **options) as saver:
            counter, trips = Counter(), []
            tapped = with_tap(saver, counter)
            for number in range(3):
                config: Any = {"configurable": {"thread_id": str(number)}}
                two_steps(tapped).invoke(GIVEN, config, durability="sync")
                trips.append(counter.taken())
            return len(header_of_head(saver, "0")), trips

    (off_bytes, off_trips), (on_bytes, on_trips) = cost(), cost(recoverable=True)
    assert on_bytes - off_bytes == 15
    assert [on - off for on, off in zip(on_trips, off_trips, strict=True)] == [1, 0, 0]


@pytest.mark.parametrize("about", [{}, {MARK: 1 << 63 | 7}, {MARK: 1 << 63 | 7, "x": 1}, {"x": {MARK: 1 << 63 | 7}}])
def test_a_header_with_only_a_mark_is_not_decoded(about: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(KeelSerializer())
    body = pack_header(Header({"id": "1"}, {"source": "loop"}, {}, about), codec, Address("t"))
    header = UnreadHeader(Node(Address("t", "", "1"), None, 1, body, {}, None, False, False), codec)
    decoded: list[bytes] = []
    decode = codec.decode

    def counted(self: Codec, body: bytes) -> Any:
        decoded.append(body)
        return decode(body)

    monkeypatch.setattr(Codec, "decode", counted)
    assert header.about == about
    assert len(decoded) == (0 if about.keys() <= {MARK} else 1)


def test_recoverable_with_on_conflict_fork_is_refused() -> None:
    with pytest.raises(InvalidInput, match="on_conflict='raise'"):
        MemorySaver(recoverable=True, on_conflict="fork")


# -- the heartbeat -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_is_renewed_and_removed_at_close(path: Path, reader: KeelSaver) -> None:
    with SqliteSaver(path, recoverable=True) as saver:
        assert heartbeats(reader) == {}
        two_steps(saver).invoke(GIVEN, CONFIG)
        (before,) = heartbeats(reader).values()
        assert marks_of(saver).renew()
        (after,) = heartbeats(reader).values()
        assert after.beat == before.beat + 1
    assert heartbeats(reader) == {}


def test_a_heartbeat_removed_by_another_process_is_written_again(saver: KeelSaver, reader: KeelSaver) -> None:
    two_steps(saver).invoke(GIVEN, CONFIG)
    reader.engine.run(Cells(reader.engine.session, PROCESSES, None).clear())
    assert marks_of(saver).renew()
    assert len(heartbeats(reader)) == 1


def test_an_idle_saver_removes_its_heartbeat_until_its_next_run(
    saver: KeelSaver, reader: KeelSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "IDLE", 2)
    seen: list[int] = []

    def look(state: Any) -> None:
        for _ in range(4):
            assert marks_of(saver).renew()
        saver.close()
        seen.append(len(heartbeats(reader)))

    two_steps(saver).invoke(GIVEN, CONFIG)
    for left in (1, 0):
        assert marks_of(saver).renew()
        assert len(heartbeats(reader)) == left
    made = graph(saver, say("a"), ("look", look))
    with pytest.raises(Exception, match="closed"):
        made.invoke(GIVEN, CONFIG, durability="sync")
    assert seen == [1]  # a run is active: neither the idle heartbeats nor the close have removed it


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("waits_for", ["recover", "run_when_decided"])
def test_a_waiting_worker_has_a_heartbeat(saver: KeelSaver, reader: KeelSaver, face: str, waits_for: str) -> None:
    """Also before its first run, so that people see that decisions will be used."""
    workers: Any = {"recover": saver.recover, "run_when_decided": saver.approvals.run_when_decided}
    aworkers: Any = {"recover": saver.arecover, "run_when_decided": saver.approvals.arun_when_decided}

    async def wait() -> list[Any]:
        return [each async for each in aworkers[waits_for](two_steps(saver), timeout=0)]

    for _ in range(2):  # the saver has removed its heartbeat in between
        assert heartbeats(reader) == {}
        assert (asyncio.run(wait()) if face == "async" else [*workers[waits_for](two_steps(saver), timeout=0)]) == []
        assert [each.holder for each in heartbeats(reader).values()] == [this_holder()]
        for _ in range(marks.IDLE):
            marks_of(saver).renew()


def test_a_forked_process_has_its_own_mark(saver: KeelSaver, reader: KeelSaver) -> None:
    two_steps(saver).invoke(GIVEN, CONFIG)
    ours = marks_of(saver).mark
    source, sink = os.pipe()
    if (child := os.fork()) == 0:
        os.write(sink, marks_of(saver).mark.to_bytes(8))
        marks_of(saver).close()
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as said:
        theirs = int.from_bytes(said.read())
    assert os.waitpid(child, 0)[1] == 0
    assert theirs != ours == marks_of(saver).mark
    assert list(heartbeats(reader)) == [key_of(ours)]


def test_a_sweep_removes_heartbeats_of_dead_processes(saver: KeelSaver, reader: KeelSaver) -> None:
    two_steps(saver).invoke(GIVEN, CONFIG)
    (mine,) = heartbeats(reader).values()
    dead = replace(mine, holder="/".join([*mine.holder.split("/")[:-1], "1"]))
    cells = Cells(saver.engine.session, PROCESSES, None)
    saver.engine.run(cells.swap("dead", None, dead))
    saver.retention.sweep()
    assert list(heartbeats(reader).values()) == [mine]


# -- another machine ---------------------------------------------------------------------------------------------------


def test_a_process_of_another_machine_is_judged_by_the_local_clock(saver: KeelSaver, reader: KeelSaver) -> None:
    """Its clock is ignored: the heartbeat is from tomorrow."""
    two_steps(saver, interrupt_before_nodes=["b"]).invoke(GIVEN, CONFIG)
    saver.engine.run(Cells(saver.engine.session, STOPS, "t").clear())  # as if it were still running
    cells, now, beat = Cells(reader.engine.session, PROCESSES, None), [0.0], 0
    claims_of(reader).timer = lambda: now[0]

    def look(seconds: float, *, renewed: bool) -> tuple[str, bool]:
        nonlocal beat
        now[0], beat = seconds, beat + renewed
        key = key_of(marks_of(saver).mark)
        cell = cells.cell(ProcessRecord("far/machine/7/7", beat, "2999-01-01T00:00:00+00:00"))
        reader.engine.run(cells.overwrite_raw(key, cell))
        status = reader.status("t")
        assert ("ask again in 30 seconds" in str(status)) == (status.state == "unfinished")
        return status.state, status.can_go_on

    assert look(0, renewed=True) == ("unfinished", False)
    assert look(10, renewed=True) == ("runs", False)
    assert look(20, renewed=False) == ("runs", False)
    assert look(39, renewed=False) == ("unfinished", False)
    assert look(41, renewed=False) == ("cut off", True)


# -- notes -------------------------------------------------------------------------------------------------------------


class Away(Tap):
    """The store fails from the `put` of one step on.

    If `late`, that checkpoint is stored and its reply is lost.
    """

    def __init__(self, late: bool) -> None:
        self.late, self.is_away, self.is_next = late, False, False

    def sending(self, request: Any) -> None:
        if self.is_away or (self.is_next and not self.late):
            self.is_away = True
            raise StoreUnavailable("away")

    def replied(self, request: Any, reply: Any) -> None:
        if self.is_next:
            self.is_away = True
            raise StoreUnavailable("away")


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_lost_its_store_is_reported_as_cut_off(
    saver: KeelSaver, reader: KeelSaver, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tap = Away(late)
    tapped = with_tap(saver, tap)
    draft = marks_of(saver).before_put

    def before(session: Any, put: Any) -> Any:
        tap.is_next = put.metadata.get("step") == 1
        return draft(session, put)

    hooks = tapped.engine.session.hooks
    hooks.before_put = tuple(before if each == draft else each for each in hooks.before_put)
    with pytest.raises(StoreUnavailable):
        graph(tapped, say("a"), say("b"), say("c")).invoke(GIVEN, CONFIG, durability="sync")
    assert "the reason why its run stopped is not recorded yet" in caplog.text
    assert reader.status("t").state == "runs"  # as far as other processes know
    tap.is_away = tap.is_next = False
    assert saver.status("t").state == "cut off"
    assert marks_of(saver).renew()
    claims_of(saver).keeper.flush(60)
    status = reader.status("t")
    assert (status.state, status.can_go_on, status.stopped) == ("cut off", True, "unreachable")
    assert status.next == (("b",) if late else ("a",))
    assert "as its run could not reach the store" in str(status)


def test_runs_that_ask_fail_or_end_write_no_stop_note(saver: KeelSaver) -> None:
    from langgraph.types import interrupt

    def fail(state: Any) -> None:
        raise ValueError("no")

    two_steps(saver).invoke(GIVEN, config_for("ends"))
    graph(saver, ("ask", lambda state: interrupt("?"))).invoke(GIVEN, config_for("asks"))
    with pytest.raises(ValueError, match="no"):
        graph(saver, ("fail", fail)).invoke(GIVEN, config_for("fails"))
    assert [stop_in(saver, name) for name in ("ends", "asks", "fails")] == [None] * 3
    assert [saver.status(name).state for name in ("ends", "asks", "fails")] == ["idle", "waits", "failed"]


def test_a_cancelled_resume_is_noted_at_its_first_checkpoint(saver: KeelSaver) -> None:
    def leave(state: Any) -> None:
        raise KeyboardInterrupt

    two_steps(saver, interrupt_before_nodes=["b"]).invoke(GIVEN, CONFIG)
    before = stop_in(saver)
    with pytest.raises(KeyboardInterrupt):
        graph(saver, say("a"), ("b", leave)).invoke(None, CONFIG)
    after = stop_in(saver)
    assert before is not None
    assert after is not None
    assert (before.why, after.why, before.checkpoints) == ("breakpoint", "cancelled", after.checkpoints)
    assert saver.status("t").stopped == "cancelled"


def test_an_error_that_is_not_stored_is_noted(saver: KeelSaver) -> None:
    def die(state: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        graph(saver, say("a"), ("b", die)).invoke(GIVEN, CONFIG)
    assert saver.status("t").stopped == "failed"


def test_a_stop_note_is_refused_while_another_run_has_the_thread(saver: KeelSaver, reader: KeelSaver) -> None:
    seen: list[bool] = []

    def late(state: Any) -> None:
        at = saver.get_tuple(CONFIG).config["configurable"]["checkpoint_id"]  # type: ignore[union-attr]
        stop = Stop((at,), "breakpoint")
        seen.append(saver.engine.run(write_stop(saver.engine.session, "t", stop)))

    two_steps(saver, interrupt_before_nodes=["b"]).invoke(GIVEN, CONFIG)
    graph(saver, say("a"), ("b", late)).invoke(None, CONFIG)
    assert seen == [False]


def test_a_put_outside_a_run_has_no_process(saver: KeelSaver) -> None:
    saver.put(config_for("t"), checkpoint_of("1", {"branch:to:b": None}), {"source": "loop", "step": 1}, {})
    assert mark_of_head(saver) == NOBODY


def test_status_is_computed_again_if_the_thread_changes(saver: KeelSaver, reader: KeelSaver) -> None:
    """After the first read, its process stores a checkpoint, stops at a gate, ends."""
    made = two_steps(saver, interrupt_before_nodes=["a"])
    made.invoke(GIVEN, CONFIG)

    class Moves(Tap):
        left = 2

        def sending(self, request: Any) -> None:
            self.left -= 1
            if self.left == 0:
                two_steps(saver, interrupt_before_nodes=["b"]).invoke(None, CONFIG)
                saver.close()

    status = with_tap(reader, Moves()).status("t")
    assert (status.state, status.stopped, status.next) == ("stopped", "breakpoint", ("b",))


# -- lists -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recoverable", "most"), [(False, 3), (True, 4)])
def test_unfinished_reads_latest_checkpoints_in_pages(path: Path, recoverable: bool, most: int) -> None:
    """Latest checkpoints are read in pages; the other records, thread by thread.

    These are the claim, the ledger and the origin of the thread.
    """

    def trips(count: int) -> int:
        counter = Counter()
        with SqliteSaver(path, recoverable=recoverable) as saver:
            for number in range(count):
                two_steps(saver, interrupt_before_nodes=["b"]).invoke(GIVEN, config_for(str(number)))
            found = [each.thread_id for each in with_tap(saver, counter).unfinished()]
            assert sorted(found, key=int) == [str(number) for number in range(count)]
        return counter.taken()

    few = trips(5)
    assert trips(25) - few == most * 20


def test_unfinished_lists_the_most_recent_thread_first(saver: KeelSaver) -> None:
    from langgraph.types import interrupt

    names = ["1", "2", "3", "4"]
    for name in names:
        made = graph(saver, say("a"), ("b", lambda state: interrupt("?")))
        made = made if name in "13" else made.copy({"interrupt_before_nodes": ["b"]})
        made.invoke(GIVEN, config_for(name))
    assert [each.thread_id for each in saver.unfinished()] == names[::-1]
