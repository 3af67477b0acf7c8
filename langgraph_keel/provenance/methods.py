"""`saver.provenance`: model calls, drift, threads as training data, and replays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langgraph_keel.engine.config import address_of, thread_id_of
from langgraph_keel.engine.engine import Engine, EngineSaver, with_engine
from langgraph_keel.engine.faces import Component, Pages, faces, iterator_faces
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import query_of
from langgraph_keel.engine.session import Hooks
from langgraph_keel.errors import InvalidInput
from langgraph_keel.provenance.hook import PACKAGE_VERSIONS, Recorder
from langgraph_keel.provenance.reading import DriftMark, read_calls, read_trace
from langgraph_keel.provenance.records import ModelCall

if TYPE_CHECKING:
    from langgraph_keel.provenance.export import Label, OnSkip
    from langgraph_keel.provenance.replay.verdict import Replay


class ProvenanceMethods(Component):
    """`saver.provenance`: lists model calls and drift; exports and replays threads."""

    def _read(self, config: Mapping[str, Any]) -> Plan[Sequence[ModelCall]]:
        """Return the model calls of a thread or checkpoint, in checkpoint order.

        Args:
            config: `configurable.thread_id`; with `checkpoint_ns` or `checkpoint_id`, only the calls that led there.

        Returns:
            One record per call. The calls of pruned checkpoints come first. Calls of this process that are not stored
            yet come last, without a `checkpoint_id`. Empty if the thread does not exist.

        Raises:
            InvalidConfig: If the config does not name a valid thread.
            CorruptStore: If stored data is damaged.
        """
        address_of(config)  # `None`, which means all threads in `list`, is refused here
        session, query = self.engine.session, query_of(config, None, None, None)
        found = yield from read_calls(session, query)
        recorder = session.hooks.find(Recorder)
        if recorder is None or query.checkpoint_ns is not None or query.checkpoint_id is not None:
            return found
        return [*found, *recorder.find_waiting(str(query.thread_id))]

    read, aread = faces(_read)

    def _drifts(self, thread_id: str) -> Plan[Sequence[DriftMark]]:
        """Return the drift marks of a thread, oldest first.

        The result is empty if the thread does not exist.

        Raises:
            InvalidConfig: If `thread_id` is not a valid id.
            CorruptStore: If stored data is damaged.
        """
        return (yield from read_trace(self.engine.session, thread_id_of(thread_id))).marks()

    drifts, adrifts = faces(_drifts)

    def _trajectories(
        self,
        threads: Iterable[str] | None = None,
        *,
        channel: str = "messages",
        model: str | None = None,
        label: Label | None = None,
        min_cost: float | None = None,
        max_cost: float | None = None,
        limit: int | None = None,
        on_skip: OnSkip | None = None,
    ) -> Pages[dict[str, Any]]:
        """Yield threads as training data, one plain dict per thread.

        A trajectory covers the checkpoints from the first to the latest, without abandoned branches. Its keys:
        `thread_id`, `checkpoint_id`, `label`, `messages` (OpenAI's chat format), `tools_called` (name to count),
        `calls` (model, parameters and offered tools of each call), `usage` (sum of tokens), `cost` (sum; `None` if a
        call does not report it), `is_pruned`, `steps`, `started_at`, `ended_at`, `drift`. If `is_pruned`, the first
        checkpoints were removed, and `started_at` is `None`. Then `usage` and `cost` are `None` too, unless a prune
        removed the checkpoints, as it keeps their calls. One thread is in memory at a time.

        Args:
            threads: Thread ids; by default all threads of the store, last activity first. A thread that continues
                during the export may be skipped.
            channel: The channel that contains the messages; threads without it are skipped.
            model: Only threads with calls of this model, by requested or served name.
            label: Only threads with this label; or a function that returns the label for the latest checkpoint (as
                `get_tuple` returns it), from its state or from a table of your own. By default the label is `label` or
                `outcome` in the metadata of the latest checkpoint that has one: it applies until a later turn sets
                another.
            min_cost: Only threads that cost at least this, in the providers' currency; skips unknown costs.
            max_cost: Only threads that cost at most this; skips unknown costs.
            limit: Maximum number of threads to yield.
            on_skip: Called for each skipped thread with its id and the reason: `"no messages"`, `"filtered"`,
                `"unknown cost"`, or the error. Without `on_skip`, errors are raised.

        Raises:
            InvalidInput: If `limit` is negative, or `threads` is one string.
            NotFound: If one of `threads` does not exist.
            CorruptStore: If stored data of a thread is damaged.
            RefusedType: If a message has a type that may not be revived here. Such values in other channels are
                replaced with `Unread` for `label`.
        """
        from langgraph_keel.provenance.export import Export, ThreadFilter

        wanted = ThreadFilter(channel=channel, model=model, label=label, min_cost=min_cost, max_cost=max_cost)
        return Export(self.engine.session, wanted, threads, limit, on_skip)

    trajectories, atrajectories = iterator_faces(_trajectories)

    def _replay(
        self,
        graph: Any,
        config: Mapping[str, Any],
        *,
        configurable: Mapping[str, Any] | None = None,
        inputs: Sequence[Any] = (),
        context: Any = None,
        bind: bool = False,
        allow_tools: Collection[str] = (),
        ignore: Collection[str] = (),
        limit: int = 100,
        keep: bool = False,
        on_step: Callable[[int], object] | None = None,
    ) -> Plan[Replay]:
        """Run a thread again in a fork, and compare each step with the record.

        The fork follows the original up to its latest checkpoint. Each run gets its recorded input, each question its
        recorded answer, and checkpoints of `update_state` are copied. Failed or waiting tasks after the latest
        checkpoint run too. Models are called again; an answer from LangChain's cache invalidates the replay. Recorded
        parameters that are equal in all calls (model, seed, temperature, top_p, max_tokens) are put into the config if
        a node of the graph declares a `ConfigurableField` with that id.

        No tool acts. Tools in a `ToolCache` are answered from the thread's ledger. A tool call that the ledger cannot
        answer ends the replay, even if the node catches the error. While a replay runs, this process refuses tool
        calls in an OS thread without a context, as it cannot attribute them; the main thread is excepted. Nodes do run,
        so their own effects (a request, `tool.func()`, a write to a `Store`) are repeated. A node cache is not used.

        The replay compares the root graph's channels at each checkpoint, the requests and answers of all model calls,
        including those in subgraphs, and the questions to people. After the last checkpoint it compares questions and
        error classes, task by task. A difference is reported where it first appears. Values that always differ are
        ignored: times, replay marks, and ids of messages and calls if they are renamed consistently. Model calls are
        not compared in runs without recorded calls; the verdict lists these steps.

        Args:
            graph: The compiled graph; its checkpointer does not matter.
            config: `configurable.thread_id`: replay the thread from its first checkpoint. With `checkpoint_id`: from
                that checkpoint. Other keys are passed to each run.
            configurable: Values for the runs, which override recorded ones; `None` omits a value. The original's own
                configuration is not recorded.
            inputs: Inputs and answers that were not stored, in order: `durability="exit"` stores neither. If this
                includes the first run, start with its input.
            context: The runtime context of the runs, as for `graph.invoke`; it is not recorded.
            bind: Always put the recorded parameters into the config, for configurable models inside nodes that the
                graph does not declare, such as `init_chat_model(configurable_fields=...)`.
            allow_tools: Names of harmless tools that run, whether the ledger could answer them or not.
            ignore: Channels that are not compared.
            limit: Maximum number of differences to find.
            keep: Whether to keep the fork, as the thread `Replay.thread_id`. By default it is deleted, also after an
                error; only a killed process leaves it behind (a thread `replay-...`).
            on_step: Called with the number of each replayed step.

        Returns:
            The verdict, true if nothing differs. An exception of the graph is a difference, and `Replay.error`.

        Raises:
            NotFound: If the thread or checkpoint does not exist.
            InvalidInput: If `graph` is not a compiled graph, `config` names a subgraph, or `limit` is below one.
            InvalidConfig: If `config` does not name a valid thread.
            StoreError: If the store failed. The thread is only read, so it is unchanged.
        """
        from langgraph_keel.provenance.replay.replay import Replayer, check_order

        options = {} if context is None else {"context": context}
        given = {"inputs": inputs, "options": options, "bind": bind, "allow_tools": allow_tools, "ignore": ignore}
        order = check_order(config, configurable, **given, limit=limit, keep=keep, on_step=on_step)
        if not (callable(getattr(graph, "copy", None)) and hasattr(graph, "input_channels")):
            raise InvalidInput(f"replay needs a compiled graph, not a {type(graph).__name__}")
        # In strict mode the graph runs on a copy of this saver; only the copy may revive classes of its schema.
        own = graph.checkpointer
        is_ours = isinstance(own, EngineSaver) and own.engine.is_same_store(self.engine)
        saver = own if is_ours else self._saver
        twin = with_engine(saver, engine_apart(saver.engine))
        runnable = graph.copy({"checkpointer": twin, "cache": None})
        return Replayer(twin.engine.session, runnable, order).replay()

    replay, areplay = faces(_replay)


def engine_apart(engine: Engine) -> Engine:
    """Return an engine on the same store that records calls."""
    # It ignores drift and prunes nothing.
    from langgraph_keel.provenance import capture

    capture.watch()
    session = engine.session
    known = session.hooks.find(Recorder)
    recorder = Recorder(PACKAGE_VERSIONS, known.graph_version if known else None, "ignore")
    hooks = Hooks([*(hook for hook in session.hooks.all if hook.hears_replays), recorder])
    return replace(engine, session=replace(session, memo=Memo(), hooks=hooks, on_conflict="fork"))
