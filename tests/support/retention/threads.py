"""Threads for the tests of retention, stored stepwise with given ids and times."""

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
    """Return a text that is stored as a raw item.

    It is too long to share a row and too short to be compressed.
    """
    return f"<{number}-{UUID(int=(number + 1) * 0x1234567890ABCDEF1234567)}" + "-x5Jq8#Vz" * 4 + ">"


def secrets_in(raw: bytes, most: int) -> set[int]:
    """Return the secrets that occur in stored bytes."""
    return {number for number in range(most) if secret(number).encode() in raw}


def name_of(number: int) -> str:
    """Return the id of a checkpoint: ids are in the order of creation, as LangGraph's."""
    return f"{number:08}"


def call_of(number: int) -> str:
    """Return the namespace of a call of a subgraph without a memory."""
    return f"node:{UUID(int=number + 7 * 2**100)}"


@dataclass
class Written:
    """A thread that is stored step by step, with a new secret in each record.

    Attributes:
        saver: The saver that stores it.
        thread: Its id.
        hours: Hours between two checkpoints.
        heads: The latest checkpoint of each namespace.
        shown: The list channel's value, per checkpoint.
        parents: The parent of each checkpoint.
        anchors: Further checkpoints that are ghosts.
        beside: The secrets in the header and the writes of each checkpoint: a ghost keeps those.
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
        """Store a checkpoint after another one, or after the latest; return its id."""
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
        """Return a config that names a checkpoint.

        No run continues it through `get_tuple`, so no write conflicts.
        """
        return at(self.thread, ns, name)

    def write(self, name: str, writes: list[tuple[str, Any]], task: str, ns: str = "") -> None:
        """Store writes of a task, which contain the latest secret."""
        self.beside[name].add(self.said - 1)
        self.saver.put_writes(self.config(name, ns), writes, task)

    def ask(self, name: str) -> None:
        """Have a task ask a person, without a secret.

        The request for approval and the audit trail keep the question.
        """
        self.write(name, [("__interrupt__", (Interrupt("may I?", id=f"i{name}"),))], f"asks {name}")

    def answer(self, name: str) -> None:
        """Have that task end.

        A second time would prove nothing: the first writes of a task count.
        """
        if name in self.answered:
            return
        self.answered.add(name)
        self.write(name, [("whole", self._secret())], f"asks {name}")

    def remember(self, caller: str | None = None) -> str:
        """Call a subgraph with a memory from a root checkpoint."""
        return self.put(ns=MEMORY, parents={"": caller or self.heads[""]})

    def call(self, number: int, caller: str | None = None) -> str:
        """Call a subgraph without a memory."""
        return self.put(ns=call_of(number), parents={"": caller or self.heads[""]})

    def follow(self, count: int, **metadata: Any) -> list[str]:
        """Store `count` checkpoints of the root graph."""
        return [self.put(**metadata) for _ in range(count)]

    def ghosts(self, kept: Collection[str]) -> set[str]:
        """Return the removed checkpoints that delta channels of kept ones need."""
        found: set[str] = set()
        for name in kept:
            while self.counts[name] and (parent := self.parents[name]) is not None:
                found.add(parent)
                name = parent
        return found - set(kept)

    def expected_ghosts(self, told: Mapping[Address, Any]) -> set[str]:
        """Return the possible ghosts, if `told` is everything that can be read."""
        return self.ghosts({str(address.checkpoint_id) for address in told}) | self.anchors

    def expected(self, told: Mapping[Address, Any]) -> set[int]:
        """Return the secrets that may be stored, if `told` is everything that can be read."""
        ghosts = self.expected_ghosts(told)
        shown = secrets_in(repr(list(told.values())).encode(), self.said)
        # Up to 32 elements of a list share a row: if one of them can be read, the others are stored too.
        return shown.union(self.listed, *(self.beside[name] for name in ghosts))

    def ids(self, ns: str | None = "") -> list[str]:
        """Return the ids of the listed checkpoints, oldest first."""
        return [str(found.checkpoint["id"]) for found in self.saver.list(at(self.thread, ns))][::-1]

    def all(self) -> dict[Address, Any]:
        """Return everything that can be read of each checkpoint, except the parent."""
        found = {}
        for each in self.saver.list(at(self.thread, None)):
            place = each.config["configurable"]
            address = Address(self.thread, place["checkpoint_ns"], place["checkpoint_id"])
            found[address] = self.read(address)
        return found

    def read(self, address: Address) -> Any:
        """Return everything that can be read of a checkpoint except its parent, or `None`."""
        config = config_of(address, "named")
        found = self.saver.get_tuple(config)
        if found is None:
            return None
        # The history of a channel is requested only if the checkpoint does not contain its value.
        missing = [channel for channel in DELTA if channel not in found.checkpoint["channel_values"]]
        history = self.saver.get_delta_channel_history(config=config, channels=missing)
        return exact((found.checkpoint, dict(found.metadata), found.pending_writes, dict(history)))


def prune(saver: KeelSaver, face: str, threads: Any, strategy: Any, **options: Any) -> PruneReport:
    """Prune by one of the faces."""
    if face == "sync":
        return saver.prune(threads, strategy=strategy, **options)
    return asyncio.run(saver.aprune(threads, strategy=strategy, **options))
