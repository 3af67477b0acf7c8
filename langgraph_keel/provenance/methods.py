"""`saver.provenance`: calls of models, drift, threads as training data, and a thread run once more."""

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
    """`saver.provenance`: which model wrote what, and whether it would do so again."""

    def _read(self, config: Mapping[str, Any]) -> Plan[Sequence[ModelCall]]:
        """Return the calls of models that led to a checkpoint, or to all of a thread, in the order of the checkpoints.

        Args:
            config: `configurable.thread_id`; with `checkpoint_ns` or `checkpoint_id`, only what led there.

        Returns:
            One record a call; first those that prunes have carried, of checkpoints that are gone. At the end those that
            stand nowhere yet: of this process, with no `checkpoint_id`. Of a thread that is not there, none.

        Raises:
            InvalidConfig: The config names no usable thread.
            CorruptStore: Stored bytes do not add up.
        """
        address_of(config)  # `None`, for `list` all threads, names none
        session, query = self.engine.session, query_of(config, None, None, None)
        found = yield from read_calls(session, query)
        recorder = session.hooks.find(Recorder)
        if recorder is None or query.checkpoint_ns is not None or query.checkpoint_id is not None:
            return found
        return [*found, *recorder.find_waiting(str(query.thread_id))]

    read, aread = faces(_read)

    def _drifts(self, thread_id: str) -> Plan[Sequence[DriftMark]]:
        """Return where a thread went on with something else than it was written with, oldest first.

        Raises:
            InvalidConfig: `thread_id` is no usable id. Of a thread that is not there, nothing is returned.
            CorruptStore: Stored bytes do not add up.
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
        """Yield threads as training data, a plain dict each, one thread in memory at a time.

        A trajectory is the way to the thread's latest checkpoint: `thread_id`, `checkpoint_id`, `label`, `messages` in
        the format of OpenAI's chat, `tools_called` (how often), `calls` of models (as `read`: model, parameters,
        tools offered), `usage` (tokens, summed), `cost` (summed; `None` if a call does not say), `is_pruned`, `steps`,
        `started_at`, `ended_at`, `drift`. Calls on branches that were left are no part of it. Where `is_pruned`, the
        first checkpoints are gone, and `started_at` is `None`; so are `usage` and `cost`, unless it was a prune that
        took them, which carries their calls.

        Args:
            threads: Their ids; `None` for all of the store, last activity first. A thread that goes on while this is
                read may be passed over.
            channel: The one that holds the messages; threads without are passed over.
            model: Only threads that this model has written, by the name asked for or served.
            label: Only threads with this label; or a function that tells the label from the latest checkpoint, as
                `get_tuple` returns it: from the state, or from a table of your own by the thread's id. Else that is
                `label` or `outcome` in the metadata of the latest checkpoint, or of the nearest one before it that has
                one: the word of an earlier turn holds until a later one says another.
            min_cost: Only threads that cost at least this, in the providers' currency; none whose cost is unknown.
            max_cost: Only threads that cost at most this; none whose cost is unknown.
            limit: Most to yield.
            on_skip: Called for each thread that is not yielded, with its id and why: `"no messages"`, `"filtered"`,
                `"unknown cost"`, or the error, which is raised if there is no `on_skip`.

        Raises:
            InvalidInput: `limit` is negative, or `threads` is one string.
            NotFound: One of `threads` is not there.
            CorruptStore: Stored bytes of a thread do not add up.
            RefusedType: A message is of a type that may not be revived here. (An `Unread` stands for what is in another
                channel, at which `label` may look.)
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
        """Run a thread again as it was run before, in a fork, and say whether the same happens.

        The fork follows the way to the latest checkpoint: each run gets the input that is recorded, each question the
        answer, and what `update_state` has made is put as it is. If tasks have failed or ask there, they run too. The
        models are asked anew: an answer of LangChain's cache ends the replay's claim. Recorded parameters in which all
        calls agree (model, seed, temperature, top_p, max_tokens) are put into the config where a node of the graph
        declares a `ConfigurableField` by that id.

        No tool acts: those of a `ToolCache` are answered from the ledger of the thread, and where one is called that
        the ledger cannot answer, the replay ends, whatever the node catches. In threads without a context, where
        nothing says whose a call is, no tool runs in this process meanwhile, but in the main thread. Nodes run: what
        they do themselves (a request, `tool.func()`, a write to a `Store`) they do again; a node cache is not used.

        Compared is checkpoint by checkpoint what the root graph's channels hold, call by call what models were asked
        and have answered, subgraphs included, and what was asked of people; after the last checkpoint the questions and
        the classes of errors, task by task. A difference is shown where it comes up. Set aside is what is another each
        time: ids of messages and calls where they are renamed consistently, times, and the marks of replays. Calls of
        models are not compared in runs of which none are recorded; the verdict says so.

        Args:
            graph: The compiled graph; the saver that it was compiled with does not matter.
            config: `configurable.thread_id`: replay the thread from its first checkpoint. With `checkpoint_id`: from
                that one on. What else is in it goes to each run.
            configurable: What to run with, before what is recorded; `None` keeps a value from being passed at all. What
                the original was configured with is not recorded.
            inputs: What runs were given of which the record does not say so, in order: with `durability="exit"`
                neither inputs nor answers are stored. If the first run was one of those, begin with its input.
            context: The runtime context of the runs, as for `graph.invoke`; it is not recorded.
            bind: Put the recorded parameters into the config in any case, for configurable models inside of nodes, such
                as `init_chat_model(configurable_fields=...)`, which a graph does not show.
            allow_tools: The names of harmless tools that may run, and then do so, whatever the ledger says.
            ignore: Channels that are not compared.
            limit: Most differences to find.
            keep: Whether the fork stays, as the thread `Replay.thread_id`. Else it is deleted, also after an error; a
                process that dies leaves it behind (a thread `replay-...`).
            on_step: Called with the number of each step that the replay has made.

        Returns:
            The verdict, true if nothing differs. What the graph raises is a difference, and `Replay.error`.

        Raises:
            NotFound: There is no such thread or checkpoint.
            InvalidInput: `graph` is no compiled graph, `config` names a subgraph, or `limit` is below one.
            InvalidConfig: `config` names no usable thread.
            StoreError: The store failed. The thread is as it was: it is only read.
        """
        from langgraph_keel.provenance.replay.replay import Replayer, check_order

        options = {} if context is None else {"context": context}
        given = {"inputs": inputs, "options": options, "bind": bind, "allow_tools": allow_tools, "ignore": ignore}
        order = check_order(config, configurable, **given, limit=limit, keep=keep, on_step=on_step)
        if not (callable(getattr(graph, "copy", None)) and hasattr(graph, "input_channels")):
            raise InvalidInput(f"replay needs a compiled graph, not a {type(graph).__name__}")
        # In strict mode the graph runs on a copy of this saver, which alone may revive classes of its schema.
        own = graph.checkpointer
        is_ours = isinstance(own, EngineSaver) and own.engine.is_same_store(self.engine)
        saver = own if is_ours else self._saver
        twin = with_engine(saver, engine_apart(saver.engine))
        runnable = graph.copy({"checkpointer": twin, "cache": None})
        return Replayer(twin.engine.session, runnable, order).replay()

    replay, areplay = faces(_replay)


def engine_apart(engine: Engine) -> Engine:
    """Return an engine that shares only its store with this one. It records, ignores drift, and prunes nothing."""
    from langgraph_keel.provenance import capture

    capture.watch()
    session = engine.session
    known = session.hooks.find(Recorder)
    recorder = Recorder(PACKAGE_VERSIONS, known.graph_version if known else None, "ignore")
    hooks = Hooks([*(hook for hook in session.hooks.all if hook.hears_replays), recorder])
    return replace(engine, session=replace(session, memo=Memo(), hooks=hooks, on_conflict="fork"))
