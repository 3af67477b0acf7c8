"""Archives: what summaries and windows have taken out of a thread's messages, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

    from langgraph_keel.summaries.archive.archive import Archive


class ArchiveMethods(EngineSaver):
    """The methods that show what was taken out, and put it back."""

    def archive(self, thread_id: str) -> Archive:
        """Return what was taken out of a thread's messages: to be listed, read, searched, and put back.

        Nothing is read yet: a thread that is not there has an empty archive. Of what others than Keel's own summaries
        take out it has only what the saver was told to archive (`archive_removed`). It is deleted with the thread, and
        kept by any prune.

        Raises:
            InvalidConfig: `thread_id` is no usable id.
        """
        from langgraph_keel.summaries.archive.archive import Archive

        return Archive(self.engine, thread_id_of(thread_id))

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
