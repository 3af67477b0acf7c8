"""Nodes that shorten a conversation: by summaries, or by a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.constants import TAG_NOSTREAM

from langgraph_keel._langgraph import CONFIG_KEY_CHECKPOINTER
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.engine.errands import AsyncErrandDriver, Call, ErrandDriver
from langgraph_keel.engine.plan import arun, run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput
from langgraph_keel.summaries.policy import Size, Trigger, check_shrinks, clauses_of, kept_size, says, window_of
from langgraph_keel.summaries.summarizer import LEAST, PROMPT, ModelAndArchive, Summarizer, Update, fill_prompt, name_of

TOKENS = 8000
"""Maximum tokens per request to a model whose window is unknown."""

_USED = 0.8
"""Usable fraction of a window: token counts are approximate, and the answer may need room."""
_NO_STORE: Any = None  # all requests of a summarizer are errands


@publish
class SummarizationNode(Runnable[Any, Any]):
    """A node that archives old messages and replaces them with a summary.

        builder.add_node("summarize", SummarizationNode(model, saver, trigger=("messages", 50), keep=("messages", 20)))

    For any graph whose messages have a reducer such as `add_messages`, with a state of any type. It returns
    `{messages_key: [RemoveMessage, ..., summary]}`, which one step commits atomically, or `{}` if nothing is due.
    Messages that other nodes add in the same step stay; these nodes must not remove the same messages. In the
    functional API, it takes a list of messages and returns one for `add_messages`. Outside of graphs, use
    `archive=False`.

    The summary takes the place and the id of the first removed message, because `add_messages` would append a message
    with a new id at the end. The removed message is in the archive under that id.

    Messages are durably archived (`saver.archive(thread_id)`) before they are removed. If the model fails or returns an
    empty answer, nothing is removed: a `SummaryWarning` gives the reason, and the run continues. The model reads all
    removed messages, in as many parts as necessary. The next summary replaces and includes the last.

    A tool call stays together with its results, and stays as long as a result is missing. System messages at the
    beginning stay, and so do messages pinned by `pinned` or by a true `additional_kwargs["keel_pinned"]`.

    Put it into the graph that keeps the messages. A stateless subgraph (compiled without `checkpointer=True`) receives
    all of the parent's messages at each call. It would summarize all of them each time, and in the parent only the
    first would be replaced by its summary.

    The summary is a `HumanMessage` with the facts in `additional_kwargs["keel_summary"]`: the summarized messages,
    their part of the archive, the model, and the time (`Provenance`).

    Args:
        model: Any chat model, or a runnable from text to a message or text; a model's name for LangChain's
            `init_chat_model`; `None` removes messages without a summary.
        saver: The saver of the archive; default: the graph's saver. It must use the graph's store.
        trigger: When to summarize: `("messages", n)`, `("tokens", n)`, `("fraction", f)` of the model's window, or
            `("steps", n)` since the last summary. A list: any item; a dict: all items; `None`: whenever there is more
            than `keep`.
        keep: How much of the end to keep: at least `("messages", n)`, at most `("tokens", n)`, or `("fraction", f)`. It
            must be below the trigger.
        messages_key: The channel of the messages.
        summary_key: A channel for the summary, which is then a dict (`Summary`), not a message. The state must declare
            it.
        prompt: The instructions to the model, with `{messages}` for the removed messages and `{previous}` for the
            previous summary.
        token_counter: Counts the tokens of a list of messages.
        pinned: Returns whether a message must stay.
        max_input_tokens: Maximum tokens per request to the model; default: 80 % of the window in its profile, or 8000.
        archive: Whether to archive removed messages. `False` needs no saver.
        on_error: Whether a failure of the model gives a `SummaryWarning` ("warn"), or ends the run ("raise").
        name: The default name of the node, and the name of its run in traces.

    Raises:
        InvalidInput: If an option is invalid, or `model` is a name and the package `langchain` is missing.
    """

    def __init__(
        self,
        model: Runnable[Any, Any] | str | None,
        saver: Any = None,
        *,
        trigger: Trigger = ("messages", 50),
        keep: Size = ("messages", 20),
        messages_key: str = "messages",
        summary_key: str | None = None,
        prompt: str | None = None,
        token_counter: Callable[[Sequence[BaseMessage]], int] = count_tokens_approximately,
        pinned: Callable[[BaseMessage], bool] | None = None,
        max_input_tokens: int | None = None,
        archive: bool = True,
        on_error: Literal["warn", "raise"] = "warn",
        name: str = "summarize",
    ) -> None:
        _check_options(name, messages_key, summary_key, token_counter, pinned, max_input_tokens, archive, on_error)
        if saver is not None and engine_of(saver) is None:
            is_size = isinstance(saver, tuple | list | int)
            hint = "; did you mean keep=?" if is_size else ": the archive needs one of Keel's"
            raise InvalidInput(f"saver: {saver!r:.60} is no saver with an archive{hint}")
        self.name = name
        self._model = _model_of(model)
        self._saver = saver
        self._options = f"trigger={trigger!r}, keep={keep!r}"
        window = window_of(self._model)
        clauses, kept = clauses_of(trigger, window), kept_size(keep, window)
        check_shrinks(clauses, kept)
        if self._model is None and (summary_key or prompt or says(clauses, "steps")):
            raise InvalidInput("without a model there is no summary: no summary_key=, prompt= or trigger=('steps', n)")
        text = None if self._model is None else PROMPT if prompt is None else prompt
        if text is not None and not (isinstance(text, str) and "{messages}" in text):
            raise InvalidInput("prompt must be a text that contains {messages}, which the messages replace")
        room = _room_of(text, token_counter, max_input_tokens, window)
        self._summarizer = Summarizer(
            clauses,
            kept,
            messages_key,
            summary_key,
            text,
            room,
            token_counter,
            pinned,
            archive,
            on_error == "raise",
            partial(datetime.now, UTC),
        )

    def __repr__(self) -> str:
        model = None if self._model is None else name_of(self._model)
        return f"{type(self).__name__}(model={model!r}, {self._options})"

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Shorten the messages of a state, or a list of them.

        Returns:
            The update; `{}` if nothing is due. For a list, a list.

        Raises:
            InvalidInput: If the state has no such messages or no key for the summary, if its reducer cannot remove
                messages, if the graph has no saver of Keel, or if the archive is in another store.
            InvalidConfig: If there is no thread.
            SummaryFailed: If the model returned an empty answer, and `on_error="raise"`.
            StoreError: If the archive could not be written. Nothing was removed.
        """
        return self._call_with_config(self._shorten, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """As `invoke`, asynchronously."""
        return await self._acall_with_config(self._ashorten, input, config)

    def _shorten(self, state: Any, run_manager: object, config: RunnableConfig) -> Any:
        return self._result(state, self.update(state, config))

    async def _ashorten(self, state: Any, run_manager: object, config: RunnableConfig) -> Any:
        return self._result(state, await self.aupdate(state, config))

    def _result(self, state: Any, update: Update | None) -> Any:
        if isinstance(state, list):
            return [] if update is None else update[self._summarizer.messages_key]
        return update or {}

    def update(self, state: Any, config: RunnableConfig) -> Update | None:
        """Return the update of a state, inside a run; `None` if nothing is due."""
        return run(self._summarizer.shorten(state, config, self._outside(config)), ErrandDriver(_NO_STORE, Call))

    async def aupdate(self, state: Any, config: RunnableConfig) -> Update | None:
        """As `update`, asynchronously."""
        plan = self._summarizer.shorten(state, config, self._outside(config))
        return await arun(plan, AsyncErrandDriver(_NO_STORE, Call))

    def _outside(self, config: RunnableConfig) -> ModelAndArchive:
        runs_on = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
        saver = runs_on if self._saver is None else self._saver
        engine = engine_of(saver)
        # Refuse a saver without an archive at the first step, not hours later when the trigger is reached.
        if engine is None and self._summarizer.archives:
            found = "no saver" if saver is None else f"a {type(saver).__name__}"
            raise InvalidInput(
                f"messages cannot be archived: this needs a saver of Keel, and there is {found}. Compile the graph "
                "with checkpointer=saver, pass saver=, or pass archive=False to lose removed messages"
            )
        # Tokens of this call must not be streamed to the user as an answer.
        own = merge_configs(config, {"tags": [TAG_NOSTREAM], "metadata": {"lc_source": "summarization"}})
        return ModelAndArchive(self._model, engine, own, engine_of(runs_on))


@publish
class SlidingWindow(SummarizationNode):
    """A node that keeps the end of a conversation, and archives the rest.

        builder.add_node("window", SlidingWindow(saver, keep=("messages", 40)))

    As `SummarizationNode`, without a model or a summary. If your provider requires a human message first, pin it.

    Args:
        saver: The saver of the archive; default: the graph's saver.
        keep: How much of the end to keep.
        trigger: When the window moves. `None`: whenever there is more than `keep`.
        name: The node's name.
        **options: `messages_key`, `token_counter`, `pinned` and `archive`.
    """

    def __init__(
        self,
        saver: Any = None,
        *,
        keep: Size = ("messages", 20),
        trigger: Trigger = None,
        name: str = "window",
        **options: Any,
    ) -> None:
        super().__init__(None, saver, keep=keep, trigger=trigger, name=name, **options)


def _model_of(model: Any) -> Runnable[Any, Any] | None:
    if isinstance(model, str):
        try:
            from langchain.chat_models import init_chat_model
        except ModuleNotFoundError as error:
            raise InvalidInput(f"model={model!r}: a name needs langchain: pip install langchain ({error})") from error
        found: BaseChatModel = init_chat_model(model)
        return found
    if model is not None and not isinstance(model, Runnable):
        raise InvalidInput(f"model must be a chat model, a runnable, a model's name or None, not {model!r}")
    return model


def _check_options(
    name: Any, key: Any, summary_key: Any, counter: Any, pinned: Any, most: Any, archive: Any, on_error: Any
) -> None:
    wanted = {
        "name must be a text": (name, isinstance(name, str) and name),
        "messages_key must name a channel": (key, isinstance(key, str) and key),
        "summary_key must name a channel, or be None": (
            summary_key,
            summary_key is None or (isinstance(summary_key, str) and summary_key),
        ),
        "summary_key must name another channel than messages_key": (summary_key, summary_key != key),
        "token_counter must be callable": (counter, callable(counter)),
        "pinned must be callable, or None": (pinned, pinned is None or callable(pinned)),
        "max_input_tokens must be an int above 0, or None": (most, most is None or (type(most) is int and most > 0)),
        "archive must be True or False": (archive, isinstance(archive, bool)),
        "on_error must be 'warn' or 'raise'": (on_error, on_error in ("warn", "raise")),
    }
    for rule, (given, is_right) in wanted.items():
        if not is_right:
            raise InvalidInput(f"{rule}, not {given!r}")


def _room_of(
    prompt: str | None, count: Callable[[Sequence[BaseMessage]], int], most: int | None, window: int | None
) -> int:
    if most is None:
        most = TOKENS if window is None else int(window * _USED)
    room = most - (count([HumanMessage(fill_prompt(prompt, [], ""))]) if prompt else 0)
    if room < LEAST and prompt is not None:
        raise InvalidInput(f"max_input_tokens={most} leaves less than {LEAST} tokens for messages: increase it")
    return room
