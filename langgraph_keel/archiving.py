"""Archives: what summaries and windows have taken out of a thread's messages, and the way back."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from langgraph_keel.core import archive_copies, archives
from langgraph_keel.core.address import thread_id_of
from langgraph_keel.core.archived import Archived, Removal
from langgraph_keel.core.plan import Plan
from langgraph_keel.erasing import Erasing
from langgraph_keel.errors import CheckpointConflict, InvalidInput, StoreError
from langgraph_keel.summaries.archive import Archive

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware


class Archiving(Erasing):
    """The methods that show what was taken out, and put it back."""

    def archive(self, thread_id: str) -> Archive:
        """Return what was taken out of a thread's messages: to be listed, read, searched, and put back.

        Nothing is read yet: a thread that is not there has an empty archive. Of what others than Keel's own summaries
        take out it has only what the saver was told to archive (`archive_removed`). It is deleted with the thread, and
        kept by any prune.

        Raises:
            InvalidConfig: `thread_id` is no usable id.
        """
        return Archive(self, thread_id_of(thread_id))

    def _archive(self, removal: Removal) -> Archived:
        """Put what is about to be removed into the archive; durable when it returns. Again, it does no harm."""
        return self._run(self._archived(removal))

    async def _aarchive(self, removal: Removal) -> Archived:
        """As `_archive`, asynchronously."""
        return await self._arun(self._archived(removal))

    def _unarchive(self, entry: Archived) -> Plan[Any, Any, None]:
        """Take back what should not have been put there; see `archive_copies.take_back`."""
        yield from archive_copies.take_back(self._core.store, self._codec, entry)

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new: Collection[str]
    ) -> Plan[Any, Any, RunnableConfig]:
        try:
            return (yield from super()._put(config, checkpoint, metadata, new))
        except CheckpointConflict as error:
            if error.found is None:  # the thread was deleted; its run may have archived something since
                with suppress(StoreError):
                    yield from archive_copies.drop_orphans(self._core.store, error.thread_id)
            raise

    def _archived(self, removal: Removal) -> Plan[object, object, Archived]:
        now = datetime.now(UTC)
        return archives.archive_messages(self._core.store, self._codec, removal, now, lambda: token_hex(16))

    def summarization_middleware(self, model: Any, **options: Any) -> AgentMiddleware[Any, Any]:
        """Return what shortens the conversation of an agent, for `create_agent(middleware=[...])`.

            saver.summarization_middleware("openai:gpt-5-mini", trigger=("fraction", 0.8), keep=("messages", 20))

        Before each call of the agent's model it does what a `SummarizationNode` does; old messages go to the archive.

        Args:
            model: The model that writes summaries; `None` lets a window slide without one.
            **options: As for `SummarizationNode`; without a model, `trigger` is `None` if it is left out.

        Raises:
            InvalidInput: The package `langchain` is not installed, or an option cannot be meant so.
        """
        from langgraph_keel.summaries.node import SummarizationNode

        try:
            from langgraph_keel.summaries.middleware import KeelSummarization
        except ModuleNotFoundError as error:
            needs = f"summarization_middleware() is for create_agent: pip install langchain ({error})"
            raise InvalidInput(needs) from error
        always = {"trigger": None} if model is None else {}  # a window moves at once, as `SlidingWindow`
        return KeelSummarization(SummarizationNode(model, self, **{**always, **options}))
