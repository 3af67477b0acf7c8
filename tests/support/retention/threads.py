"""Threads for the tests of retention: put directly, step by step, with ids and times that the test counts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import _DeltaSnapshot as Snapshot
from langgraph.types import Interrupt

from langgraph_keel import KeelSaver, PruneReport
from langgraph_keel.engine.config import Address, config_of
from langgraph_keel.testing.rig import at, checkpoint_of, exact
from support.savers import BACKENDS as BACKENDS

MEMORY = "memory"
"""The namespace of a subgraph with `checkpointer=True`."""
START = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
DELTA = ("items",)


def secret(number: int) -> str:
    """Return a text long enough for an item of its own and too short to be compressed: it stands in the raw bytes."""
    return f"<{number}-{UUID(int=(number + 1) * 0x1234567890ABCDEF1234567)}" + "-x5Jq8#Vz" * 4 + ">"


def secrets_in(raw: bytes, most: int) -> set[int]:
    """Return which secrets stand in stored bytes."""
    return {number for number in range(most) if secret(number).encode() in raw}


def name_of(number: int) -> str:
    """Return the id of a checkpoint: ids are ordered as they are made, as LangGraph's."""
    return f"{number:08}"


def call_of(number: int) -> str:
    """Return the namespace of a call of a subgraph without a memory."""
    return f"node:{UUID(int=number + 7 * 2**100)}"


@dataclass
class Written:
    """A thread that is put step by step; every checkpoint and write holds a secret of its own.

    Attributes:
        saver: Where.
        thread: Its id.
        hours: Between two checkpoints.
        heads: The latest checkpoint of each namespace.
        shown: What the list channel holds, per checkpoint.
        parents: What each continues.
        anchors: Further checkpoints that are ghosts.
        beside: The secrets in the header and the writes of each: a ghost keeps those.
    """

    saver: KeelSaver
    thread: str = "t"
    hours: float = 1
    made: int = 0
    said: int = 0
    heads: dict[str, str] = field(default_factory=dict)
    shown: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    beside: dict[str, set[int]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    listed: set[int] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def put(
        self, parent: str | None = None, ns: str = "", *, source: str = "loop", snapshot: bool = False, **metadata: Any
    ) -> str:
        """Put a checkpoint after another one, or after the latest; return its id."""
        parent = parent or self.heads.get(ns)
        name, self.made = name_of(self.made), self.made + 1
        self.listed.add(self.said)
        shown = [*self.shown.get(parent or "", ()), self._secret()]
        count = 0 if snapshot else self.counts.get(parent or "", -1) + 1
        values: dict[str, Any] = {"whole": self._secret(), "list": shown}
        if snapshot:
            values["items"] = Snapshot([self._secret()])
        said: dict[str, Any] = {"source": source, "step": self.steps.get(parent or "", -2) + 1, "parents": {}}
        noted = self.said
        said |= {"counters_since_delta_snapshot": {"items": [count, count]}, "note": self._secret(), **metadata}
        ts = (START + timedelta(hours=self.hours * (self.made - 1))).isoformat()
        checkpoint: Any = checkpoint_of(name, values, ts=ts)
        self.saver.put(self.config(parent, ns), checkpoint, said, checkpoint["channel_versions"])  # type: ignore[arg-type]
        self.shown[name], self.counts[name], self.steps[name] = shown, count, said["step"]
        self.heads[ns], self.parents[name], self.beside[name] = name, parent, {noted}
        self.write(name, [("items", [self._secret()])], "a task", ns)
        return name

    def _secret(self) -> str:
        self.said += 1
        return secret(self.said - 1)

    def config(self, name: str | None, ns: str = "") -> RunnableConfig:
        """Return what names a checkpoint; with it no run continues through `get_tuple`, so no put conflicts."""
        return at(self.thread, ns, name)

    def write(self, name: str, writes: list[tuple[str, Any]], task: str, ns: str = "") -> None:
        """Put writes of a task, which hold the secret that was made last."""
        self.beside[name].add(self.said - 1)
        self.saver.put_writes(self.config(name, ns), writes, task)

    def ask(self, name: str) -> None:
        """Have a task ask a person. No secret: the request for approval and the audit trail hold what was asked."""
        self.write(name, [("__interrupt__", (Interrupt("may I?", id=f"i{name}"),))], f"asks {name}")

    def answer(self, name: str) -> None:
        """Have that task end. A second time would tell nothing: what a task has written first counts."""
        if name in self.answered:
            return
        self.answered.add(name)
        self.write(name, [("whole", self._secret())], f"asks {name}")

    def remember(self, caller: str | None = None) -> str:
        """Have a subgraph with a memory be called from a root checkpoint."""
        return self.put(ns=MEMORY, parents={"": caller or self.heads[""]})

    def call(self, number: int, caller: str | None = None) -> str:
        """Have a subgraph without a memory be called."""
        return self.put(ns=call_of(number), parents={"": caller or self.heads[""]})

    def follow(self, count: int, **metadata: Any) -> list[str]:
        """Put so many checkpoints of the root graph."""
        return [self.put(**metadata) for _ in range(count)]

    def ghosts(self, kept: Collection[str]) -> set[str]:
        """Return which checkpoints that are not kept the delta channels of others need."""
        found: set[str] = set()
        for name in kept:
            while self.counts[name] and (parent := self.parents[name]) is not None:
                found.add(parent)
                name = parent
        return found - set(kept)

    def expected_ghosts(self, told: Mapping[Address, Any]) -> set[str]:
        """Return which checkpoints may be ghosts, if that is all there is to read."""
        return self.ghosts({str(address.checkpoint_id) for address in told}) | self.anchors

    def expected(self, told: Mapping[Address, Any]) -> set[int]:
        """Return the secrets that may stand in the store, if that is all there is to read."""
        ghosts = self.expected_ghosts(told)
        shown = secrets_in(repr(list(told.values())).encode(), self.said)
        # Up to 32 elements of a list share a row: where one of them is shown, the others stand there too.
        return shown.union(self.listed, *(self.beside[name] for name in ghosts))

    def ids(self, ns: str | None = "") -> list[str]:
        """Return the ids of what is listed, the oldest first."""
        return [str(found.checkpoint["id"]) for found in self.saver.list(at(self.thread, ns))][::-1]

    def all(self) -> dict[Address, Any]:
        """Return all there is to read of each checkpoint, the parent apart."""
        found = {}
        for each in self.saver.list(at(self.thread, None)):
            place = each.config["configurable"]
            address = Address(self.thread, place["checkpoint_ns"], place["checkpoint_id"])
            found[address] = self.read(address)
        return found

    def read(self, address: Address) -> Any:
        """Return all there is to read of a checkpoint, but its parent; `None` if it is not there."""
        config = config_of(address, "named")
        found = self.saver.get_tuple(config)
        if found is None:
            return None
        # Of a channel whose value stands there nobody asks what came before.
        missing = [channel for channel in DELTA if channel not in found.checkpoint["channel_values"]]
        history = self.saver.get_delta_channel_history(config=config, channels=missing)
        return exact((found.checkpoint, dict(found.metadata), found.pending_writes, dict(history)))


def prune(saver: KeelSaver, face: str, threads: Any, strategy: Any, **options: Any) -> PruneReport:
    """Prune by one of the faces."""
    if face == "sync":
        return saver.prune(threads, strategy=strategy, **options)
    return asyncio.run(saver.aprune(threads, strategy=strategy, **options))
