"""What `git=True` adds to the verbs. Every wait for git is a request of its own, so no loop waits for it.

`CommittingStore` takes the place of `FileStore`, and `Committing` that of the core's plans.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, get_checkpoint_metadata

from langgraph_keel.core.address import address_of
from langgraph_keel.core.checkpoints import Checkpoints
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.plan import Plan, T
from langgraph_keel.core.records import Graph, Run
from langgraph_keel.files.git import Commits
from langgraph_keel.files.requests import Work
from langgraph_keel.files.store import FileStore


class CommittingStore(FileStore):
    """A store that commits every removal."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> Plan[Work, Any, int]:
        """See `Store.remove_rows`: the last step of every removal."""
        removed = yield from super().remove_rows(thread_id, live, graph)
        yield from self._commit(thread_id, "pruned")
        return removed

    def delete_thread(self, thread_id: str) -> Plan[Work, Any, None]:
        """See `Store.delete_thread`."""
        yield from super().delete_thread(thread_id)
        yield from self._commit(thread_id, "deleted")

    def _commit(self, thread_id: str, what: str) -> Plan[Work, Any, None]:
        yield Work(lambda _: self._commits.changed(thread_id, what))


class Committing(Checkpoints[Work, Any]):
    """The saver's plans, which tell `Commits` of every checkpoint and of every task's writes.

    What a run has left is committed before the next one stores anything.

    Args:
        plain: The plans of a saver that was just made.
        commits: Whom to tell.
    """

    def __init__(self, plain: Checkpoints[Work, Any], commits: Commits) -> None:
        super().__init__(
            plain.store, plain.memo, plain.on_conflict, plain.recorder, plain.questions, plain.rule, plain.owner
        )
        self._commits = commits

    def put(
        self,
        codec: Codec,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Collection[str] = (),
    ) -> Plan[Work, Any, RunnableConfig]:
        """See `Checkpoints.put`."""
        address, about = address_of(config), dict(get_checkpoint_metadata(config, metadata))
        if self._commits.must_commit_before_put(address, about):
            yield self._commit(address.thread_id)
        with self._commits.storing(address.thread_id):
            stored = yield from super().put(codec, config, checkpoint, metadata, new_versions)
            self._commits.put(address, checkpoint, about)
        return stored

    def put_writes(
        self,
        codec: Codec,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Plan[Work, Any, None]:
        """See `Checkpoints.put_writes`."""
        address, channels = address_of(config), [channel for channel, _ in writes]
        if self._commits.must_commit_before_writes(address, channels):
            yield self._commit(address.thread_id)
        self._commits.begin_writes(address, channels)
        with self._commits.storing(address.thread_id):
            yield from super().put_writes(codec, config, writes, task_id, task_path)
            self._commits.put_writes(address, channels)

    def copied(self, thread_id: str, what: str) -> Plan[Work, Any, None]:
        """See `Checkpoints.copied`: a commit of its own, with what is noted beside the thread."""
        yield Work(lambda _: self._commits.changed(thread_id, what))

    def travel(self, thread_id: str, what: str, plan: Plan[Work, Any, T]) -> Plan[Work, Any, T]:
        """See `Checkpoints.travel`: a commit of its own, after that of a run which has just ended."""
        yield self._commit(thread_id)
        with self._commits.storing(thread_id):
            result = yield from plan
        yield Work(lambda _: self._commits.changed(thread_id, what))
        return result

    def _commit(self, thread_id: str) -> Work:
        return Work(lambda _: self._commits.commit(thread_id))
