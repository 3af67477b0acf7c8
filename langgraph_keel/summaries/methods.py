"""Methods of savers for archives and summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

    from langgraph_keel.summaries.archive.archive import Archive


class ArchiveMethods(EngineSaver):
    """The methods that create archives and summarization middleware."""

    def archive(self, thread_id: str) -> Archive:
        """Return the archive of a thread's removed messages.

        This reads nothing yet: an unknown thread has an empty archive. The archive contains messages removed by Keel's
        own nodes, and with `archive_removed` also those removed by other code. It is deleted with the thread, and every
        prune keeps it.

        Raises:
            InvalidConfig: If `thread_id` is not a usable id.
        """
        from langgraph_keel.summaries.archive.archive import Archive

        return Archive(self.engine, thread_id_of(thread_id))

    def summarization_middleware(self, model: Any, **options: Any) -> AgentMiddleware[Any, Any]:
        """Return middleware of `create_agent` that shortens the conversation.

            saver.summarization_middleware("openai:gpt-5-mini", trigger=("fraction", 0.8), keep=("messages", 20))

        It runs a `SummarizationNode` before each call of the agent's model, and archives old messages.

        Args:
            model: The model that writes summaries; `None` for a sliding window without summaries.
            **options: As for `SummarizationNode`. Without a model, `trigger` defaults to `None`.

        Raises:
            InvalidInput: If the package `langchain` is not installed, or an option is invalid.
        """
        from langgraph_keel.summaries.node import SummarizationNode

        try:
            from langgraph_keel.summaries.middleware import KeelSummarization
        except ModuleNotFoundError as error:
            needs = f"summarization_middleware() is for create_agent: pip install langchain ({error})"
            raise InvalidInput(needs) from error
        always = {"trigger": None} if model is None else {}  # a window moves every time, as `SlidingWindow`
        return KeelSummarization(SummarizationNode(model, self, **{**always, **options}))
