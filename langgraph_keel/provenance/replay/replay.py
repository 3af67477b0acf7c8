"""Would it happen again? A thread is run once more in a fork, as it was run before, and compared step by step.

A plan, as all of Keel's semantics (`core.plan`), whose requests are those of the store and `Play`: run the graph. It
follows the trunk of the root graph: gives each run what it was given, and each question the answer that it got, and
goes one step past its end, if the record has begun one there that failed, or asks. The thread itself is only read; all
is written to the fork, which is deleted in the end.

What is to be replayed, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from secrets import token_hex
from typing import Any, TypeAlias

from langchain_core.runnables.config import merge_configs

from langgraph_keel._langgraph import CONFIG_KEY_CHECKPOINT_MAP, METADATA_PREFIXES, NS_SEP
from langgraph_keel.engine.checkpoints import delete_thread
from langgraph_keel.engine.config import address_of, texts_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Address, Query
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, ToolNotReplayed
from langgraph_keel.provenance.reading import recorded
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay import verdict as unfinished
from langgraph_keel.provenance.replay.compare import (
    Comparison,
    Difference,
    agreed,
    declared,
    differences_of,
    shown,
    state_of,
)
from langgraph_keel.provenance.replay.compare import Steps as Compared
from langgraph_keel.provenance.replay.history import History, Moment, Recall, read_history
from langgraph_keel.provenance.replay.run import Fork, Play, Played, cached_subgraphs
from langgraph_keel.provenance.replay.verdict import Replay, Versions
from langgraph_keel.tools.guard import ToolGuard
from langgraph_keel.tools.ledger import CallRecord

_ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id", CONFIG_KEY_CHECKPOINT_MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be replayed, and how; see `KeelSaver.replay`."""

    source: str
    start: str | None
    config: Mapping[str, Any]
    configurable: Mapping[str, Any]
    inputs: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    bind: bool = False
    allow_tools: Collection[str] = ()
    ignore: Collection[str] = ()
    limit: int = 100
    keep: bool = False
    on_step: Callable[[int], object] | None = None


def ordered(
    config: Mapping[str, Any],
    configurable: Mapping[str, Any] | None,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    bind: bool,
    allow_tools: Collection[str],
    ignore: Collection[str],
    limit: int,
    keep: bool,
    on_step: Callable[[int], object] | None,
) -> Order:
    """Return what a caller wants, checked.

    Raises:
        InvalidInput: It cannot be meant so.
        InvalidConfig: The config names no usable thread.
    """
    address = address_of(config)
    if address.checkpoint_ns:
        raise InvalidInput(f"a root graph is replayed, with its subgraphs; not {address.checkpoint_ns!r} alone")
    if not isinstance(limit, int) or limit < 1:
        raise InvalidInput(f"limit={limit!r}: use a whole number above 0")
    if isinstance(inputs, (str, Mapping)):
        raise InvalidInput("inputs is a list: what each run was given")
    wanted = {name: value for name, value in config["configurable"].items() if name not in _ADDRESS}
    return Order(
        source=address.thread_id,
        start=address.checkpoint_id,
        config={name: value for name, value in config.items() if name not in ("configurable", "run_id")},
        configurable={**wanted, **(configurable or {})},
        inputs=inputs,
        options=options,
        bind=bind,
        allow_tools=texts_of(allow_tools, "tool"),
        ignore=texts_of(ignore, "channel"),
        limit=limit,
        keep=keep,
        on_step=on_step,
    )


Steps: TypeAlias = Plan[Any, Any, Any]
_OWN = ("source", "step", "parents", "writes", "run_id", "thread_id", "graph_version")
_OWN_PREFIXES = (*METADATA_PREFIXES, "keel_")
"""Keys of a checkpoint's metadata that are not from the caller's config."""


class _Ended(Exception):
    """The comparison cannot go on: the record does not say what is needed."""


class _Differs(Exception):
    """The replay cannot go on: it goes another way than the record."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class Replayer:
    """One replay.

    Args:
        session: What it runs on.
        graph: The graph, on a saver over `core`.
        order: What is to be replayed.
    """

    def __init__(self, session: Session, graph: Any, order: Order) -> None:
        self._session = session
        self._graph = graph
        self._order = order
        self._fork = Fork(session, f"replay-{token_hex(16)}")
        self._held = ToolGuard(order.source, self._fork.thread_id, order.allow_tools, self._step_of)
        self._comparison = Comparison(lambda value: session.codec.encode([value]), order.limit)
        self._versions = Versions(session)
        self._inputs = iter(order.inputs)
        self._found: list[Difference] = []
        self._told: Collection[tuple[str, str, str]] = ()
        self._compared: list[tuple[Moment, str]] = []
        self._is_past = self._is_through = False
        self._made: dict[str, str] = {}
        self._tried: set[str] = set()
        self._retried: set[str] = set()
        self._old: set[str] = set()
        self._ended: str | None = None
        self._error: Exception | None = None
        self._left: list[Moment] = []
        self._bound: dict[str, Any] = {}

    def replay(self) -> Plan[Any, Any, Replay]:
        """Plan it all."""
        self._was = yield from read_history(self._session, self._order.source)
        found = yield from self._session.store.read_entry(Address(self._order.source))
        self._trunk = self._was.trunk(found.entry.address.checkpoint_id if found else None, self._order.start)
        self._recall = yield from Recall.of(self._session, self._was, self._order.allow_tools)
        is_kept = False
        try:
            yield from self._begin()
            self._calls = yield from self._recorded_calls()
            self._bound = self._bindings()
            yield from self._follow()
            result = yield from self._result()
            is_kept = self._order.keep
        finally:
            self._held.close(is_kept=is_kept)
            if not is_kept:
                yield from delete_thread(self._session, self._fork.thread_id)
        return result

    def _begin(self) -> Steps:
        """Begin with the first input; where that is not recorded or not wanted, with the first checkpoint."""
        first = self._trunk[0]
        is_whole = self._order.start is None and (first.source, first.step) == ("input", -1)
        is_given = self._order.start is None and first.source == "loop" and bool(self._order.inputs)
        self._left = list(self._trunk)
        if not (is_whole or is_given):
            yield from self._fork.begin_at(self._was, self._left.pop(0))
            self._made[first.id] = first.id
        if not self._left and not unfinished.outcomes(self._was, first.id):
            self._ended = f"nothing was recorded after step {first.step}"

    def _recorded_calls(self) -> Plan[Any, Any, list[ModelCall]]:
        calls = yield from recorded(self._session, Query(self._order.source))
        self._old = {call.id for call in calls}
        kept, left = {moment.id for moment in self._trunk}, {moment.id for moment in self._left}
        return [call for call in calls if self._is_on(call, kept, left)]

    def _bindings(self) -> dict[str, Any]:
        """Return the recorded parameters that models are handed by the config."""
        recorded = agreed([call for call in self._calls if call.error is None])
        wanted = recorded.keys() if self._order.bind else declared(self._graph)
        return {name: value for name, value in recorded.items() if name in wanted}

    def _step_of(self, call: CallRecord) -> int | None:
        step = self._was.root_step(call.checkpoint_ns, call.checkpoint_id)
        return step if step is None or call.checkpoint_ns else step + 1

    def _is_on(self, call: ModelCall, trunk: Collection[str], left: Collection[str]) -> bool:
        """Return whether a call belongs to the steps that are replayed."""
        moment = self._was.at(call.checkpoint_ns, call.checkpoint_id)
        if moment is None:
            return False
        if call.checkpoint_ns:
            return moment.root in trunk
        # Of a task that has asked or failed, the record stands where the task began.
        is_left_there = NS_SEP not in call.path and call.step is not None and moment.step < call.step
        return moment.id in (trunk if is_left_there else left)

    # -- following the trunk -------------------------------------------------------------------------------------

    def _follow(self) -> Steps:
        try:
            while self._left and len(self._found) < self._order.limit:
                moment = self._left[0]
                if moment.source == "update" or self._is_copy(moment):
                    yield from self._carry(moment)
                else:
                    played = yield (yield from self._next(moment))
                    yield from self._take(moment, played)
            if not self._left and not self._ended:
                yield from self._go_past(self._trunk[-1])
        except _Ended as ended:
            self._ended = str(ended)
        except _Differs as differs:
            self._found.append(differs.difference)

    def _is_copy(self, moment: Moment) -> bool:
        parent = self._was.root(moment.parent)
        return moment.source == "fork" and (parent is None or parent.step != moment.step)

    def _carry(self, moment: Moment) -> Steps:
        """Put what somebody else than the graph has made, as it is: exact as long as nothing differs so far."""
        what = f"step {moment.step} was made by update_state"
        if self._found:
            raise _Ended(f"{what}, which cannot be done again on a state that differs")
        if moment.metadata.get("counters_since_delta_snapshot"):
            raise _Ended(f"{what} of a thread with delta channels, which cannot be done again")
        parent = self._made.get(str(moment.parent))
        made = yield from self._fork.carry(moment, parent)
        yield from self._compare(self._left.pop(0), made)

    def _go_past(self, head: Moment) -> Steps:
        """Have the runs that went on from the head go on here, until a step is made that is not recorded."""
        # The run that made the head goes on by itself; but where that waits before a node, another one has.
        may_resume = bool(unfinished.outcomes(self._was, head.id))
        while not self._is_past:
            asked = yield from self._fork.pending()
            given = self._recall.answers(head, asked) if asked else self._recall.commanded(head)
            if given is None and (asked or self._error or not may_resume):
                break
            may_resume = may_resume and given is not None
            beyond = replace(head, step=head.step + 1)
            yield from self._take(beyond, (yield self._play(beyond, given, None)))
        self._is_through = True

    def _next(self, moment: Moment) -> Plan[Any, Any, Play]:
        """Return the run that makes a checkpoint, and those after it that were made by the same one."""
        before = self._was.root(moment.parent)
        asked = {} if moment.source != "loop" or before is None else (yield from self._fork.pending())
        if not asked and moment.id in self._tried:
            raise _Differs(Difference(moment.step, "run", "it went on", "it ended"))
        given, addressed = None, None
        if asked and before is not None:
            given = self._answered(before, asked)
        elif moment.source == "input":
            given = yield from self._input(moment)
        elif moment.source == "fork":
            addressed = self._forked_from(moment)
        elif before is None or moment.step > before.step + 1:
            given = self._next_input(f"what the run was given that made step {moment.step} is not recorded")
        else:
            given = self._recall.commanded(before)
        self._tried.add(moment.id)
        return self._play(moment, given, addressed)

    def _forked_from(self, moment: Moment) -> str:
        if (made := self._made.get(str(moment.parent))) is None:
            raise _Ended(f"step {moment.step} is a fork of a checkpoint that was not replayed")
        return made

    def _answered(self, before: Moment, asked: Mapping[str, Any]) -> Any:
        if (command := self._recall.answers(before, asked)) is not None:
            return command
        if not self._was.was_asked(before.id):
            step = before.step + 1
            raise _Differs(Difference(step, "question", "none", shown(self._fork.questions)))
        return self._next_input(f"the answer to the question of step {before.step + 1} is not recorded")

    def _next_input(self, otherwise: str) -> Any:
        for given in self._inputs:
            return given
        raise _Ended(f"{otherwise} (durability='exit' keeps neither): pass inputs=[...], what each such run was given")

    def _input(self, moment: Moment) -> Steps:
        found = yield from self._fork.read(moment)
        values, names = found.checkpoint["channel_values"], self._graph.input_channels
        if not isinstance(names, str):
            updated = found.checkpoint.get("updated_channels") or names
            return {name: values[name] for name in names if name in values and name in updated}
        if names not in values:
            raise _Ended(f"step {moment.step} was an input, which is not recorded")
        return values[names]

    def _play(self, moment: Moment, given: Any, addressed: str | None) -> Play:
        self._held.step, self._held.run_id = moment.step, moment.metadata.get("run_id")
        return Play(
            self._graph,
            given,
            self._config(moment, addressed),
            self._until(),
            self._fork.head,
            self._held,
            self._order.options,
            self._order.on_step,
        )

    def _until(self) -> int:
        """Return the last step that a run is to make: of the last one, a step that is not recorded."""
        last = self._left[0].step if self._left else self._trunk[-1].step
        for moment in self._left[1:]:
            if (moment.source, moment.step) != ("loop", last + 1):
                return last
            last = moment.step
        return last + 1

    def _config(self, moment: Moment, addressed: str | None) -> Mapping[str, Any]:
        """Return the config of a run: the recorded parameters, and the caller's own."""
        values = {**self._bound, **self._order.configurable}
        values = {name: value for name, value in values.items() if value is not None}
        values["thread_id"] = self._fork.thread_id
        if addressed is not None:
            values["checkpoint_id"] = addressed
        # The limit that the original ran with is not recorded; `until` is one.
        limit = self._trunk[-1].step + 25
        ours = {"metadata": dict(_of_the_caller(moment.metadata)), "callbacks": [self._held], "recursion_limit": limit}
        config = merge_configs(ours, self._order.config)  # type: ignore[arg-type]
        return {**config, "configurable": values}

    # -- comparing -----------------------------------------------------------------------------------------------

    def _take(self, moment: Moment, played: Played) -> Steps:
        for step, made in played.made:
            self._fork.head = made
            self._is_past = not self._left
            if self._left and self._left[0].step == step:
                yield from self._compare(self._left.pop(0), made)
        if self._held.refused:
            self._refuse(self._held.refused[0])
        if played.error is not None and not self._may_try_again():
            self._error = played.error
            if not self._left:
                return  # what has failed is past the head
            text = f"{type(played.error).__name__}: {played.error}"
            raise _Differs(Difference(self._held.step, "error", "none", shown(text)))

    def _may_try_again(self) -> bool:
        """Return whether the original has failed here too, and was resumed."""
        before = self._was.root(self._left[0].parent) if self._left else None
        if before is None or not before.has_failed or before.id in self._retried:
            return False
        self._retried.add(before.id)
        self._tried.discard(self._left[0].id)
        return True

    def _refuse(self, error: ToolNotReplayed) -> None:
        step = self._held.step
        self._error = error
        if not error.is_new:
            raise _Ended(f"in step {step} {error}")
        raise _Differs(Difference(step, f"tool {error.tool}", "not called so", f"called with {shown(error.called)}"))

    def _compare(self, moment: Moment, made: str) -> Steps:
        self._made[moment.id] = made
        self._compared.append((moment, made))
        pair = yield from self._versions.next(moment.address, Address(self._fork.thread_id, "", made))
        was, now = (state_of(values, self._order.ignore) for values in (pair.was, pair.now))
        found = self._comparison.differences(moment.step, was, now, pair.starts)
        # What differed in the step before already has been told.
        told = {(each.field, each.recorded, each.replayed): each for each in found}
        self._found += [each for key, each in told.items() if key not in self._told]
        self._told = told.keys()

    def _result(self) -> Plan[Any, Any, Replay]:
        calls = yield from self._fork.calls(self._old)
        now: History = yield from read_history(self._session, self._fork.thread_id)
        found, uncompared = self._differences_of_calls(now, calls)
        found += [Difference(v.step, f"tool {v.tool}.version", v.recorded, v.now) for v in self._held.versions]
        found = sorted([*found, *self._found, *self._differences_of_tasks(now)], key=lambda each: each.step)
        return Replay(
            source=self._order.source,
            thread_id=self._fork.thread_id if self._order.keep else None,
            steps=len(self._compared),
            differences=tuple(found[: self._order.limit]),
            ended=self._ended or self._by_a_cache(calls),
            calls=tuple(calls),
            uncompared=tuple(uncompared),
            error=self._error,
        )

    def _differences_of_calls(self, now: History, calls: Sequence[ModelCall]) -> tuple[list[Difference], list[int]]:
        run_of, again, run, last = dict[int, int](), set[int](), 0, 0
        for moment, made in self._compared:
            run += (moment.source, moment.step - 1) != ("loop", last)
            run_of[moment.step], last = run, moment.step
            if self._was.was_left(moment.parent) or now.was_left(getattr(now.root(made), "parent", None)):
                again.add(moment.step)
        led = [call for call in calls if call.checkpoint_id is not None]
        compared = Compared(dict(sorted(run_of.items())), again)
        return differences_of(compared, (self._was, self._calls), (now, led))

    def _differences_of_tasks(self, now: History) -> Iterator[Difference]:
        """Compare what was asked, and what tasks of the step past the head have left."""
        compare = partial(unfinished.differences, self._comparison)
        for moment in [moment for moment in self._trunk if moment.id in self._made]:
            places = (self._was, moment.id), (now, self._made[moment.id])
            if moment is not self._trunk[-1]:
                yield from compare(moment.step + 1, *unfinished.common(*starmap(unfinished.questions, places)))
            elif self._is_through:
                was, its = starmap(unfinished.outcomes, places)
                yield from compare(moment.step + 1, was, its) if was else ()
                if not was and (its or self._is_past or self._error):
                    self._ended = f"the record does not say what became of step {moment.step + 1}"

    def _by_a_cache(self, calls: Sequence[ModelCall]) -> str | None:
        for call in calls:
            if call.cached:
                where = f"the call of a model in node {call.node!r}, step {call.step}"
                return f"{where}, was answered by LangChain's cache: switch it off, set_llm_cache(None)"
        for name in cached_subgraphs(self._graph):
            return f"the node cache of subgraph {name!r} may have answered: compile it without"
        return None


def _of_the_caller(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in metadata.items():
        if isinstance(value, (str, int, float, bool)) and name not in _OWN and not name.startswith(_OWN_PREFIXES):
            yield name, value
