"""The node that summarizes a conversation, and the one that lets a window slide over it."""

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
"""Maximum tokens of one question to a model whose window is unknown."""

_USED = 0.8
"""Share of a window that is used: tokens are counted approximately, and the answer may need room in it."""
_NO_STORE: Any = None  # all requests of a summarizer are errands


@publish
class SummarizationNode(Runnable[Any, Any]):
    """A node that shortens a conversation: a summary takes the place of old messages, which go to the archive.

        builder.add_node("summarize", SummarizationNode(model, saver, trigger=("messages", 50), keep=("messages", 20)))

    For any graph whose messages have a reducer such as `add_messages`, with a state of any kind. It returns
    `{messages_key: [RemoveMessage, ..., summary]}`, which one step commits as a whole, and nothing if there is nothing
    to do. What other nodes write in the same step stays; they must not remove the same messages. Given a plain list of
    messages, in the functional API, it returns one, to be merged by `add_messages`. It can be called from anywhere
    else with `archive=False`.

    The summary takes the place of the first message that goes, and its id: `add_messages` would put one with a new id
    at the end. The message itself is in the archive under that id.

    Messages are in the archive (`saver.archive(thread_id)`), durable, before they are removed. If the model fails or
    answers with nothing, nothing is removed: a `SummaryWarning` says why, and the run goes on. The model is shown all
    that goes, in as many parts as it needs. The next summary takes the place of the last, and builds on it.

    A call of a tool is never parted from its results, nor from those it still waits for. System messages at the head
    stay, and messages that are pinned: by `pinned`, or by a true `additional_kwargs["keel_pinned"]`.

    Put it into the graph that keeps the messages. A subgraph without a memory of its own (compiled without
    `checkpointer=True`) gets all of the parent's messages again at each call, since nothing that it removes is removed
    there: each time it would summarize all of them, and leave the parent its summary in place of the first.

    The summary is a `HumanMessage` whose `additional_kwargs["keel_summary"]` says which messages it stands for, where
    they are archived, and which model wrote it, when (`Provenance`).

    Args:
        model: Any chat model, or runnable that takes text and gives a message or text; the name of a model for
            LangChain's `init_chat_model`; `None` removes without a summary.
        saver: Whose archive it is. Without it, the saver that the graph runs on; that of another store is refused.
        trigger: When: `("messages", n)`, `("tokens", n)`, `("fraction", f)` of the model's window, or `("steps", n)`
            since the last summary; a list means any of them, a dict all of its items. `None`: whenever there is more
            than `keep`.
        keep: How much of the end stays whole: `("messages", n)` or more, `("tokens", n)` or less, `("fraction", f)`;
            less than the trigger is reached at.
        messages_key: The channel of the messages.
        summary_key: A channel for the summary, which is then a dict (`Summary`) and no message. The state declares it.
        prompt: What the model is told; `{messages}` stands for what goes, `{previous}` for the summary before.
        token_counter: Counts the tokens of a list of messages.
        pinned: Says of a message whether it must stay.
        max_input_tokens: Most tokens that the model is given at once. Without it, 80 % of the window that its profile
            names, or 8000.
        archive: Whether what goes is archived. `False` needs no saver.
        on_error: What happens when the model fails: a `SummaryWarning`, or the error ends the run ("raise").
        name: The node's name, where none is given, and that of the run in traces.

    Raises:
        InvalidInput: One of these cannot be meant so, or `model` is a name and the package `langchain` is missing.
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
            raise InvalidInput("prompt must be a text that contains {messages}: without it the model sees no messages")
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
            The update: `{}` if there is nothing to do; for a list, a list.

        Raises:
            InvalidInput: The state has no such messages, or no key for the summary, or its reducer cannot remove any;
                or there is no archive: the graph has no saver of Keel; or the archive is in another store.
            InvalidConfig: There is no thread.
            SummaryFailed: The model answered with nothing, and `on_error="raise"`.
            StoreError: The archive could not be written; nothing was removed.
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
        """Return the update of a state, in a run that goes on; `None` if there is nothing to do."""
        return run(self._summarizer.shorten(state, config, self._outside(config)), ErrandDriver(_NO_STORE, Call))

    async def aupdate(self, state: Any, config: RunnableConfig) -> Update | None:
        """As `update`, asynchronously."""
        plan = self._summarizer.shorten(state, config, self._outside(config))
        return await arun(plan, AsyncErrandDriver(_NO_STORE, Call))

    def _outside(self, config: RunnableConfig) -> ModelAndArchive:
        runs_on = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
        saver = runs_on if self._saver is None else self._saver
        engine = engine_of(saver)
        # A saver without an archive is refused at the first step, not when the trigger is reached, hours later.
        if engine is None and self._summarizer.archives:
            found = "no saver" if saver is None else f"a {type(saver).__name__}"
            raise InvalidInput(
                f"nothing can be archived: there is {found} where one of Keel's must be. Compile the graph with "
                "checkpointer=saver, pass saver=, or say archive=False to lose what is removed"
            )
        # Tokens of this call are not streamed to the user as if they were an answer.
        own = merge_configs(config, {"tags": [TAG_NOSTREAM], "metadata": {"lc_source": "summarization"}})
        return ModelAndArchive(self._model, engine, own, engine_of(runs_on))


@publish
class SlidingWindow(SummarizationNode):
    """A node that keeps the end of a conversation, without a model; what goes is in the archive.

        builder.add_node("window", SlidingWindow(saver, keep=("messages", 40)))

    As `SummarizationNode`, without a summary. Where a provider wants a conversation to begin with a person's message,
    pin the first one.

    Args:
        saver: Whose archive it is. Without it, the saver that the graph runs on.
        keep: How much of the end stays whole.
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
            raise InvalidInput(f"model={model!r}: a model by its name: pip install langchain ({error})") from error
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
        raise InvalidInput(f"max_input_tokens={most} leaves no room for messages beside the prompt: {LEAST} at least")
    return room
