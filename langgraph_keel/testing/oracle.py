"""The oracle: what LangGraph means by a checkpoint saver, in whole values and plain dictionaries.

Written to be obviously right and nothing else, with nothing of `core` in it.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

SPECIAL = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}
Place = tuple[str, str]
"""A thread and a namespace."""


@dataclass
class Kept:
    """A checkpoint as it was put."""

    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    number: int = 0
    """In the order of all puts."""


@dataclass
class Call:
    """One call of `put_writes`."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Any]]


@dataclass
class Oracle:
    """Whole values of every checkpoint, in the order they were put."""

    kept: dict[Place, dict[str, Kept]] = field(default_factory=dict)
    calls: dict[tuple[str, str, str], list[Call]] = field(default_factory=dict)
    count: int = 0

    def ids(self, place: Place) -> list[str]:
        """Return the ids in a namespace, the latest first."""
        return list(reversed(self.kept.get(place, {})))

    def put(self, place: Place, kept: Kept) -> None:
        """Store a checkpoint as the latest."""
        checkpoints = self.kept.setdefault(place, {})
        checkpoints.pop(kept.checkpoint["id"], None)
        self.count += 1
        checkpoints[kept.checkpoint["id"]] = replace(deepcopy(kept), number=self.count)

    def put_writes(self, place: Place, checkpoint_id: str, call: Call) -> None:
        """Store writes."""
        self.calls.setdefault((*place, checkpoint_id), []).append(deepcopy(call))

    def read(self, place: Place, checkpoint_id: str | None = None) -> dict[str, Any] | None:
        """Return all there is to see of a checkpoint, or of the latest."""
        checkpoints = self.kept.get(place, {})
        checkpoint_id = checkpoint_id or next(iter(self.ids(place)), None)
        if checkpoint_id is None or checkpoint_id not in checkpoints:
            return None
        kept = checkpoints[checkpoint_id]
        return {
            "checkpoint": deepcopy(kept.checkpoint),
            "metadata": deepcopy(kept.metadata),
            "parent": kept.parent if kept.parent in checkpoints else None,
            "writes": self._writes(place, checkpoint_id),
        }

    def _writes(self, place: Place, checkpoint_id: str) -> list[tuple[str, str, Any]]:
        found: dict[tuple[str, int], tuple[str, str, int, str, Any]] = {}
        for call in self.calls.get((*place, checkpoint_id), []):
            for n, (channel, value) in enumerate(call.writes):
                index = SPECIAL.get(channel, n)
                if index < 0 or (call.task_id, index) not in found:
                    found[call.task_id, index] = (call.task_path, call.task_id, index, channel, deepcopy(value))
        ordered = sorted(found.values(), key=lambda write: write[:3])
        return [(task_id, channel, value) for _, task_id, _, channel, value in ordered]

    def delete_thread(self, thread: str) -> None:
        """Forget a thread."""
        self.kept = {place: value for place, value in self.kept.items() if place[0] != thread}
        self.calls = {key: value for key, value in self.calls.items() if key[0] != thread}

    def exists(self, thread: str) -> bool:
        """Return whether there is anything of a thread."""
        return any(key[0] == thread for key in (*self.kept, *self.calls))

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread."""
        self.kept |= {(target, ns): deepcopy(kept) for (name, ns), kept in self.kept.items() if name == source}
        self.calls |= {
            (target, ns, id): deepcopy(value) for (name, ns, id), value in self.calls.items() if name == source
        }

    def rewind(self, place: Place, checkpoint_id: str, twin_id: str, ts: str) -> None:
        """Put a twin of a checkpoint as the latest."""
        kept = self.kept[place][checkpoint_id]
        metadata = dict(kept.metadata)
        metadata |= {"source": "fork", "keel_rewound_to": checkpoint_id}
        self.put(place, Kept(kept.parent, {**kept.checkpoint, "id": twin_id, "ts": ts}, metadata))

    def fork(self, source: str, target: str, checkpoint_id: str) -> None:
        """Copy a thread as it was when a checkpoint of its root was put."""
        last = self.kept[source, ""][checkpoint_id].number
        places = [place for place in self.kept if place[0] == source]
        for _, ns in places:
            checkpoints = self.kept[source, ns].items()
            self.kept[target, ns] = {id: deepcopy(kept) for id, kept in checkpoints if kept.number <= last}
            for id in set(self.kept[target, ns]) - ({checkpoint_id} if ns == "" else set()):
                self.calls[target, ns, id] = deepcopy(self.calls.get((source, ns, id), []))
        origin = {"thread_id": source, "checkpoint_id": checkpoint_id}
        self.kept[target, ""][checkpoint_id].metadata["keel_forked_from"] = origin

    def prune(self, thread: str) -> None:
        """Keep the latest checkpoint of each namespace."""
        for place in [place for place in self.kept if place[0] == thread]:
            for checkpoint_id in self.ids(place)[1:]:
                self._forget(place, checkpoint_id)

    def delete_for_runs(self, run_id: str) -> None:
        """Forget the checkpoints of a run."""
        for place, checkpoints in self.kept.items():
            for checkpoint_id in [key for key, kept in checkpoints.items() if kept.metadata.get("run_id") == run_id]:
                self._forget(place, checkpoint_id)

    def _forget(self, place: Place, checkpoint_id: str) -> None:
        del self.kept[place][checkpoint_id]
        self.calls.pop((*place, checkpoint_id), None)
