"""Filters of `saver.threads`: the store narrows the list, and never too far."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.types import Interrupt
from redis import Redis
from support.places import Place
from support.tiers import sized

from langgraph_keel import (
    CheckpointConflict,
    FileSaver,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    RefusedType,
    Retention,
    ThreadExists,
    ThreadInfo,
)
from langgraph_keel._langgraph import BRANCH_TO, ERROR, INTERRUPT
from langgraph_keel.backends.files import index
from langgraph_keel.engine.entries import Status
from langgraph_keel.retention.check import Finding

OPERATIONS = sized(30, 30, 1500)
ORDERS: tuple[Literal["newest", "oldest"], ...] = ("newest", "oldest")
"""In a small sample, the questions alternate between the two."""
THREADS = ["a", "b", "c", "a/b", "d%", "é"]
OWNERS, NODES, ERRORS = ("ada", "bob", "a" * 300), ("ask", "act"), (ValueError("no"), KeyError("k"), OSError())


class World:
    """Random operations on a few threads, through the public API."""

    def __init__(self, saver: KeelSaver, seed: int) -> None:
        self.saver, self.random = saver, random.Random(seed)
        self.step = 0
        self.prepared: dict[str, tuple[str | None, list[Checkpoint]]] = {}

    def _config(self, thread: str, ns: str = "", **more: Any) -> RunnableConfig:
        return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **more}}

    def _some(self, thread: str, ns: str = "") -> RunnableConfig | None:
        found = list(self.saver.list(self._config(thread, ns)))
        return self.random.choice(found[:3]).config if found else None

    def put(self, thread: str, ns: str = "") -> None:
        """Store a checkpoint after the latest, with or without next nodes."""
        self.step += 1
        head = self.saver.get_tuple(self._config(thread, ns))
        node = self.random.choice([None, *NODES])
        checkpoint, *later = self._prepare(thread, head)
        if node:
            channel = f"{BRANCH_TO}{node}"
            checkpoint["channel_values"], checkpoint["channel_versions"] = {channel: None}, {channel: self.step}
        owner = self.random.choice([None, *OWNERS])
        config = head.config if head else self._config(thread, ns)
        config = {"configurable": {**config["configurable"], **({"user_id": owner} if owner else {})}}
        if self.random.random() < 0.3:
            to = self.random.choice([checkpoint, *later])["id"]
            self.write(thread, {"configurable": {**config["configurable"], "checkpoint_id": to}})
        source = self.random.choice(["loop", "loop", "update", "input"])
        about: Any = {"source": source, "step": self.step, "parents": {}, "run_id": f"run {self.step % 5}"}
        self.saver.put(config, checkpoint, about, checkpoint["channel_versions"])
        if not ns:
            self.prepared[thread] = checkpoint["id"], later

    def _prepare(self, thread: str, head: CheckpointTuple | None) -> list[Checkpoint]:
        """Return the next checkpoints of a run; tasks may write to later ones."""
        at, prepared = self.prepared.get(thread, (None, []))
        is_run = prepared and at == (head.checkpoint["id"] if head else None)
        return prepared if is_run else [empty_checkpoint() for _ in range(self.random.randint(1, 3))]

    def put_nested(self, thread: str) -> None:
        """Store a checkpoint of a subgraph."""
        self.put(thread, "sub:1")

    def write(self, thread: str, config: RunnableConfig | None = None) -> None:
        """Write a question, an error or a result of a task to one of the last checkpoints."""
        config = config or self._some(thread)
        if config:
            value = self.random.choice(
                [
                    (INTERRUPT, (Interrupt("ok?", id=f"i{self.step}"),)),
                    (ERROR, self.random.choice(ERRORS)),
                    ("out", 1),
                ]
            )
            self.saver.put_writes(config, [value], self.random.choice("tuv"))

    def prune(self, thread: str) -> None:
        """Keep some of the last checkpoints."""
        self.saver.prune([thread], strategy=Retention(last=self.random.choice([1, 2])))

    def delete_run(self, thread: str) -> None:
        """Delete the checkpoints of a run, perhaps the latest one."""
        self.saver.delete_for_runs([f"run {self.random.randrange(5)}"])

    def delete(self, thread: str) -> None:
        """Delete a thread."""
        self.saver.delete_thread(thread)

    def copy(self, thread: str) -> None:
        """Copy a thread, unless the target exists."""
        with suppress(ThreadExists):
            self.saver.copy_thread(thread, self.random.choice([each for each in THREADS if each != thread]))

    def fork(self, thread: str) -> None:
        """Fork a thread, at one of its last checkpoints."""
        if config := self._some(thread):
            with suppress(ThreadExists):
                self.saver.fork(config, self.random.choice([each for each in THREADS if each != thread]))

    def rewind(self, thread: str) -> None:
        """Rewind to one of the last checkpoints."""
        if config := self._some(thread):
            self.saver.rewind(config)

    def act(self) -> str:
        """Perform a random operation."""
        kinds: list[Callable[[str], None]] = [self.put] * 8 + [self.write] * 5 + [self.put_nested] * 2
        kinds += [self.prune, self.delete_run, self.delete, self.copy, self.fork, self.rewind]
        kind, thread = self.random.choice(kinds), self.random.choice(THREADS)
        with suppress(CheckpointConflict):
            kind(thread)
        return f"{kind.__name__} {thread}"


class Question(NamedTuple):
    """Filters, and a predicate for the threads that they should match."""

    wanted: dict[str, Any]
    is_meant: Callable[[ThreadInfo], bool]


def questions(now: datetime) -> Iterator[Question]:
    """Return all questions."""
    for owner in OWNERS:
        yield Question({"owner": owner}, partial(_has, "owner", owner))
    for status in get_args(Status):
        yield Question({"status": status}, partial(_has, "status", status))
        yield Question({"status": status, "owner": "ada"}, partial(_is_adas, status))
    for node in NODES:
        yield Question({"node": node}, partial(_is_next, node))
    for error in ERRORS:
        name = type(error).__name__
        yield Question({"error": name}, partial(_has, "error", name))
        yield Question({"error": type(error), "status": "failed"}, partial(_has, "error", name))
    yield Question({"match": "a*"}, lambda info: info.thread_id.startswith("a"))
    yield Question({"since": now - timedelta(hours=1)}, lambda info: True)
    yield Question({"until": now - timedelta(hours=1)}, lambda info: False)
    yield Question({"until": now + timedelta(hours=1), "node": "ask"}, partial(_is_next, "ask"))


def _has(name: str, value: str, info: ThreadInfo) -> bool:
    return bool(getattr(info, name) == value)


def _is_adas(status: str, info: ThreadInfo) -> bool:
    return (info.status, info.owner) == (status, "ada")


def _is_next(node: str, info: ThreadInfo) -> bool:
    return node in info.next


@pytest.mark.slow
def test_filtered_lists_equal_a_filter_of_all_threads(place: Place) -> None:
    with place.open() as saver:
        compare(saver)


def test_a_question_stored_before_its_checkpoint_is_listed_as_waiting(saver: KeelSaver) -> None:
    for thread, first in (("new", 0), ("old", 1)):
        made = [empty_checkpoint() for _ in range(3)]
        for at, checkpoint in enumerate(made):
            if at == first:
                asks: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
                asks["configurable"]["checkpoint_id"] = made[-1]["id"]
                saver.put_writes(asks, [(INTERRUPT, (Interrupt("ok?"),))], "task")
            config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            config["configurable"]["checkpoint_id"] = made[at - 1]["id"] if at else None
            saver.put(config, checkpoint, {"source": "loop", "step": at}, {})
    assert {info.thread_id for info in saver.threads(status="waiting")} == {"new", "old"}


def test_filtered_lists_in_memory() -> None:
    with MemorySaver() as saver:
        compare(saver)


@pytest.mark.slow
def test_filtered_lists_of_an_encrypted_store(place: Place) -> None:
    with place.open(encryption=Keyring(LocalKey("k", bytes(range(32))))) as saver:
        compare(saver, OPERATIONS // 3)


@pytest.mark.slow
def test_filtered_lists_of_a_tenant(place: Place) -> None:
    with place.open() as shared:
        compare(shared.for_tenant("acme"), OPERATIONS // 3)
        assert list(shared.threads(status="done")) == []


def test_filtered_lists_with_the_index_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEAST": 0, "SETTLED": 0.0, "MOST_NEW": 3}.items():
        monkeypatch.setattr(index, name, value)
    with FileSaver(tmp_path / "store") as saver:
        compare(saver)
    assert (tmp_path / "store" / "threads" / index.INDEX).exists()


def compare(saver: KeelSaver, operations: int = OPERATIONS) -> None:
    world = World(saver, seed=7)
    log: list[str] = []
    for number in range(operations):
        log.append(world.act())
        known = list(saver.threads())
        for nth, (wanted, is_meant) in enumerate(questions(datetime.now(UTC))):
            meant = [info.thread_id for info in known if is_meant(info)]
            for order in ORDERS if sized(False, False, True) else [ORDERS[(nth + number) % 2]]:
                found = [info.thread_id for info in saver.threads(order=order, **wanted)]
                assert found == (meant if order == "newest" else meant[::-1]), (order, wanted, log[-6:])
        if number % 5 == 0:
            check_infos(saver, known)
        if number % 15 == 14:
            assert [finding for finding in saver.check() if "list" in finding.message] == []
    assert {info.status for info in saver.threads()} - {""}
    assert [finding for finding in saver.check() if "list" in finding.message] == []


FILLED = {"adas": ("ada", ()), "bobs": ("bob", ((INTERRUPT, (Interrupt("why"),)),))}


class Order(NamedTuple):
    """A class of the application, which its other processes may lack."""

    text: str


def fill(place: Place) -> None:
    with place.open(types=[Order]) as saver:
        for thread, (owner, writes) in FILLED.items():
            config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            metadata: Any = {"source": "loop", "step": 0, "user_id": owner}
            values = {"small": Order("o"), "large": Order("o" * 5000)}
            checkpoint: Any = {
                **empty_checkpoint(),
                "channel_values": values,
                "channel_versions": dict.fromkeys(values, 1),
            }
            config = saver.put(config, checkpoint, metadata, dict.fromkeys(values, 1))
            saver.put_writes(config, writes, "task")


def exchange_marks(place: Place, client: Any = None) -> None:
    """Exchange the index's marks of the two threads."""
    if place.kind == "sqlite":
        with sqlite3.connect(place.url.removeprefix("sqlite:///")) as connection:
            held = connection.execute("SELECT marks, late, late_of, name FROM thread_index ORDER BY name").fetchall()
            for (*_, name), (*marks, _) in zip(held, held[::-1], strict=True):
                change = "UPDATE thread_index SET marks = ?, late = ?, late_of = ? WHERE name = ?"
                connection.execute(change, (*marks, name))
    elif place.kind == "postgres":
        with psycopg.connect(place.url) as pg:
            pg.execute(
                "UPDATE keel_threads t SET (marks, late, late_of) = "
                "(SELECT marks, late, late_of FROM keel_threads o WHERE o.thread_id <> t.thread_id)"
            )
    else:
        pattern = f"{place.options['prefix']}:*:marks"
        held = [(key, *client.hgetall(key).popitem()) for key in client.scan_iter(match=pattern)]
        (_, _, first), (_, _, second) = held
        for (key, epoch, value), other in zip(held, (second, first), strict=True):
            client.hset(key, epoch, other.rpartition(b"|")[0] + b"|" + value.rpartition(b"|")[2])


def follow(place: Place, advice: str, client: Any) -> None:
    """Apply a finding's advice."""
    if place.kind == "sqlite":
        with sqlite3.connect(place.url.removeprefix("sqlite:///")) as connection:
            assert connection.execute(advice).rowcount == 1
    elif place.kind == "postgres":
        with psycopg.connect(place.url) as pg:
            assert pg.execute(advice.encode()).rowcount == 1
    else:
        command, key = advice.removeprefix("with redis-cli: ").split(" ")
        assert client.execute_command(command, key.strip('"')) == 1


# In files, marks have checksums of their lines, and an index with a wrong checksum is not used.
@pytest.mark.parametrize("place", ["sqlite", "postgres", "redis"], indirect=True)
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_check_reports_threads_missing_from_filtered_lists(place: Place, face: str) -> None:
    async def findings() -> list[Finding]:
        with place.open(read_only=True, types=[]) as saver:
            return list(saver.check()) if face == "sync" else [finding async for finding in saver.acheck()]

    fill(place)
    with place.open(read_only=True, types=[]) as saver, pytest.raises(RefusedType):
        saver.get_tuple({"configurable": {"thread_id": "bobs"}})
    assert await findings() == []
    with Redis.from_url(place.url) if place.kind == "redis" else nullcontext() as client:
        exchange_marks(place, client)
        with place.open(read_only=True) as saver:
            assert [info.thread_id for info in saver.threads(owner="ada")] == []
        found = {finding.thread_id: finding for finding in await findings()}
        assert found.keys() == FILLED.keys()
        assert "owner='ada'" in found["adas"].message
        assert "owner='bob', status='waiting'" in found["bobs"].message
        assert {finding.path for finding in found.values()} == {"the index of threads"}
        for finding in found.values():
            follow(place, finding.advice, client)
    assert await findings() == []
    with place.open(read_only=True) as saver:
        assert [info.thread_id for info in saver.threads(owner="ada")] == ["adas"]
        assert [info.thread_id for info in saver.threads(status="waiting")] == ["bobs"]


def check_infos(saver: KeelSaver, infos: list[ThreadInfo]) -> None:
    """Check that each item of a list agrees with the latest checkpoint of its thread."""
    for info in infos:
        found = saver.get_tuple({"configurable": {"thread_id": info.thread_id}})
        if found is None:
            assert (info.status, info.latest) == ("", None)
            continue
        values = found.checkpoint["channel_values"]
        assert info.next == tuple(sorted(name.removeprefix(BRANCH_TO) for name in values))
        writes = found.pending_writes or []
        answered = {task for task, channel, _ in writes if channel not in (INTERRUPT, ERROR)}
        asks = any(channel == INTERRUPT and task not in answered for task, channel, _ in writes)
        failed = any(channel == ERROR for _, channel, _ in writes)
        ended = "done" if found.metadata["source"] == "loop" else "idle"
        told = "waiting" if asks else "failed" if failed else "incomplete" if values else ended
        assert info.status == told
        assert (info.step, info.owner) == (found.metadata["step"], found.metadata.get("user_id", ""))
