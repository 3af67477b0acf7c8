"""Runs a thread again in a fork, and compares it with the record step by step.

A replay is a plan (`engine.plan`) with requests to the store and `Play`, which runs the graph. It follows the trunk of
the root graph, and one unfinished step after its end if tasks there failed or wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import starmap
from secrets import token_hex
from typing import Any, cast

from langchain_core.runnables.config import RunnableConfig, merge_configs

from langgraph_keel._langgraph import CONFIG_KEY_CHECKPOINT_MAP, METADATA_PREFIXES, NS_SEP
from langgraph_keel.engine.checkpoints import delete_thread
from langgraph_keel.engine.config import Address, address_of, texts_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, ToolNotReplayed
from langgraph_keel.provenance.reading import read_calls
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay.compare import (
    Comparison,
    Difference,
    compare_calls,
    find_agreed,
    find_declared,
    show,
    state_of,
)
from langgraph_keel.provenance.replay.history import (
    History,
    Outcomes,
    Recall,
    RecordedCheckpoint,
    find_outcomes,
    find_questions,
    read_history,
)
from langgraph_keel.provenance.replay.run import Fork, Play, Played, cached_subgraphs
from langgraph_keel.provenance.replay.states import StateReader
from langgraph_keel.provenance.replay.verdict import Replay
from langgraph_keel.tools.guard import ToolGuard
from langgraph_keel.tools.ledger import CallRecord

_ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id", CONFIG_KEY_CHECKPOINT_MAP)

_OWN = ("source", "step", "parents", "writes", "run_id", "thread_id", "graph_version")
_OWN_PREFIXES = (*METADATA_PREFIXES, "keel_")
"""Prefixes of metadata keys that do not come from the caller's config; see `_OWN`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The arguments of a replay; see `saver.provenance.replay`."""

    source: str
    start: str | None
    config: Mapping[str, Any]
    configurable: Mapping[str, Any]
    inputs: Sequence[Any]
    options: Mapping[str, Any]
    bind: bool
    allow_tools: Collection[str]
    ignore: Collection[str]
    limit: int
    keep: bool
    on_step: Callable[[int], object] | None


def check_order(config: Mapping[str, Any], configurable: Mapping[str, Any] | None, **given: Any) -> Order:
    """Return the validated order of a replay; `given` has its other fields."""
    address = address_of(config)
    if address.checkpoint_ns:
        raise InvalidInput(f"replay needs the config of a root graph, not of the subgraph {address.checkpoint_ns!r}")
    if not isinstance(given["limit"], int) or given["limit"] < 1:
        raise InvalidInput(f"limit={given['limit']!r}: use a whole number above 0")
    if isinstance(given["inputs"], (str, Mapping)):
        raise InvalidInput("inputs must be a list with one input or answer for each run")
    wanted = {name: value for name, value in config["configurable"].items() if name not in _ADDRESS}
    names = {"allow_tools": texts_of(given["allow_tools"], "tool"), "ignore": texts_of(given["ignore"], "channel")}
    return Order(
        source=address.thread_id,
        start=address.checkpoint_id,
        config={name: value for name, value in config.items() if name not in ("configurable", "run_id")},
        configurable={**wanted, **(configurable or {})},
        **given | names,
    )


class _Ended(Exception):
    """The comparison cannot continue, because the record is incomplete."""


class _Differs(Exception):
    """The replay cannot continue, because it took another path than the record."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class Replayer:
    """One replay."""

    def __init__(self, session: Session, graph: Any, order: Order) -> None:
        self._session = session
        self._graph = graph
        self._order = order
        self._fork = Fork(session, f"replay-{token_hex(16)}")
        self._guard = ToolGuard(order.source, self._fork.thread_id, order.allow_tools, self._step_of)
        self._comparison = Comparison(lambda value: session.codec.encode([value]), order.limit)
        self._states = StateReader(session)
        self._inputs = iter(order.inputs)
        self._found: list[Difference] = []
        self._differing: Collection[tuple[str, str, str]] = ()
        self._compared: list[tuple[RecordedCheckpoint, str]] = []
        self._is_past = self._is_through = False
        self._made: dict[str, str] = {}
        self._tried: set[str] = set()
        self._retried: set[str] = set()
        self._old: set[str] = set()
        self._ended: str | None = None
        self._error: Exception | None = None
        self._left: list[RecordedCheckpoint] = []
        self._bound: dict[str, Any] = {}  # recorded parameters that the config passes to models

    def replay(self) -> Plan[Replay]:
        """Replay the thread and return the verdict."""
        self._was = yield from read_history(self._session, self._order.source)
        found = yield from self._session.store.read_entry(Address(self._order.source))
        self._trunk = self._was.trunk(found.entry.address.checkpoint_id if found else None, self._order.start)
        self._recall = yield from Recall.read(self._session, self._was, self._order.allow_tools)
        is_kept = False
        try:
            yield from self._begin()
            calls = yield from read_calls(self._session, Query(self._order.source))
            self._old = {call.id for call in calls}
            trunk, left = ({checkpoint.id for checkpoint in each} for each in (self._trunk, self._left))
            self._calls = [call for call in calls if self._is_on(call, trunk, left)]
            agreed = find_agreed([call for call in self._calls if call.error is None])
            wanted = agreed.keys() if self._order.bind else find_declared(self._graph)
            self._bound = {name: value for name, value in agreed.items() if name in wanted}
            yield from self._follow()
            result = yield from self._result()
            is_kept = self._order.keep
        finally:
            self._guard.close(is_kept=is_kept)
            if not is_kept:
                yield from delete_thread(self._session, self._fork.thread_id)
        return result

    def _begin(self) -> Plan[Any]:
        """Start with the first input if it is recorded, else with the first checkpoint."""
        first = self._trunk[0]
        is_whole = self._order.start is None and (first.source, first.step) == ("input", -1)
        is_given = self._order.start is None and first.source == "loop" and bool(self._order.inputs)
        self._left = list(self._trunk)
        if not (is_whole or is_given):
            yield from self._fork.begin_at(self._was, self._left.pop(0))
            self._made[first.id] = first.id
        if not self._left and not find_outcomes(self._was, first.id):
            self._ended = f"nothing was recorded after step {first.step}"

    def _step_of(self, call: CallRecord) -> int | None:
        step = self._was.root_step(call.checkpoint_ns, call.checkpoint_id)
        return step if step is None or call.checkpoint_ns else step + 1

    def _is_on(self, call: ModelCall, trunk: Collection[str], left: Collection[str]) -> bool:
        """Return whether a call belongs to the replayed steps."""
        checkpoint = self._was.at(call.checkpoint_ns, call.checkpoint_id)
        if checkpoint is None:
            return False
        if call.checkpoint_ns:
            return checkpoint.root in trunk
        # The record of a waiting or failed task is stored at the checkpoint from which the task started.
        is_left_there = NS_SEP not in call.path and call.step is not None and checkpoint.step < call.step
        return checkpoint.id in (trunk if is_left_there else left)

    # -- following the trunk -------------------------------------------------------------------------------------

    def _follow(self) -> Plan[Any]:
        try:
            while self._left and len(self._found) < self._order.limit:
                checkpoint = self._left[0]
                if checkpoint.source == "update" or self._is_copy(checkpoint):
                    yield from self._copy(checkpoint)
                else:
                    played = yield (yield from self._next(checkpoint))
                    yield from self._take(checkpoint, played)
            if not self._left and not self._ended:
                yield from self._go_past(self._trunk[-1])
        except _Ended as ended:
            self._ended = str(ended)
        except _Differs as differs:
            self._found.append(differs.difference)

    def _is_copy(self, checkpoint: RecordedCheckpoint) -> bool:
        parent = self._was.root(checkpoint.parent)
        return checkpoint.source == "fork" and (parent is None or parent.step != checkpoint.step)

    def _copy(self, checkpoint: RecordedCheckpoint) -> Plan[Any]:
        """Copy a checkpoint of `update_state`, which is exact only if nothing differs."""
        what = f"step {checkpoint.step} was made by update_state"
        if self._found:
            raise _Ended(f"{what}, which cannot be repeated on a state that differs")
        if checkpoint.metadata.get("counters_since_delta_snapshot"):
            raise _Ended(f"{what} of a thread with delta channels, which cannot be repeated")
        parent = self._made.get(str(checkpoint.parent))
        made = yield from self._fork.copy(checkpoint, parent)
        yield from self._compare(self._left.pop(0), made)

    def _go_past(self, head: RecordedCheckpoint) -> Plan[Any]:
        """Continue the runs after the head, until they make a step that is not recorded."""
        # The run that made the head continues by itself; if it stopped before a node, a later run did.
        may_resume = bool(find_outcomes(self._was, head.id))
        while not self._is_past:
            asked = yield from self._fork.pending()
            given = self._recall.find_answers(head, asked) if asked else self._recall.find_command(head)
            if given is None and (asked or self._error or not may_resume):
                break
            may_resume = may_resume and given is not None
            beyond = replace(head, step=head.step + 1)
            yield from self._take(beyond, (yield self._play(beyond, given, None)))
        self._is_through = True

    def _next(self, checkpoint: RecordedCheckpoint) -> Plan[Play]:
        """Return the run that makes a checkpoint and the following ones of its run."""
        before = self._was.root(checkpoint.parent)
        asked = {} if checkpoint.source != "loop" or before is None else (yield from self._fork.pending())
        if not asked and checkpoint.id in self._tried:
            raise _Differs(Difference(checkpoint.step, "run", "continued", "ended"))
        given, addressed = None, None
        if asked and before is not None:
            given = self._find_answer(before, asked)
        elif checkpoint.source == "input":
            given = yield from self._read_input(checkpoint)
        elif checkpoint.source == "fork":
            addressed = self._made.get(str(checkpoint.parent))
            if addressed is None:
                raise _Ended(f"step {checkpoint.step} is a fork of a checkpoint that was not replayed")
        elif before is None or checkpoint.step > before.step + 1:
            given = self._next_input(f"the input of the run that made step {checkpoint.step} is not recorded")
        else:
            given = self._recall.find_command(before)
        self._tried.add(checkpoint.id)
        return self._play(checkpoint, given, addressed)

    def _find_answer(self, before: RecordedCheckpoint, asked: Mapping[str, Any]) -> Any:
        if (command := self._recall.find_answers(before, asked)) is not None:
            return command
        if not self._was.was_asked(before.id):
            step = before.step + 1
            raise _Differs(Difference(step, "question", "none", show(self._fork.questions)))
        return self._next_input(f"the answer to the question of step {before.step + 1} is not recorded")

    def _next_input(self, otherwise: str) -> Any:
        for given in self._inputs:
            return given
        raise _Ended(f"{otherwise} (durability='exit' stores neither): pass inputs=[...], one for each such run")

    def _read_input(self, checkpoint: RecordedCheckpoint) -> Plan[Any]:
        found = yield from self._fork.read(checkpoint)
        values, names = found.checkpoint["channel_values"], self._graph.input_channels
        if not isinstance(names, str):
            updated = found.checkpoint.get("updated_channels") or names
            return {name: values[name] for name in names if name in values and name in updated}
        if names not in values:
            raise _Ended(f"step {checkpoint.step} was an input, which is not recorded")
        return values[names]

    def _play(self, checkpoint: RecordedCheckpoint, given: Any, addressed: str | None) -> Play:
        self._guard.step, self._guard.run_id = checkpoint.step, checkpoint.metadata.get("run_id")
        config, order = self._config(checkpoint, addressed), self._order
        head, guard = self._fork.head, self._guard
        return Play(self._graph, given, config, self._until(), head, guard, order.options, order.on_step)

    def _until(self) -> int:
        """Return the last step to make in a run; the last run makes one unrecorded step."""
        last = self._left[0].step if self._left else self._trunk[-1].step
        for checkpoint in self._left[1:]:
            if (checkpoint.source, checkpoint.step) != ("loop", last + 1):
                return last
            last = checkpoint.step
        return last + 1

    def _config(self, checkpoint: RecordedCheckpoint, addressed: str | None) -> Mapping[str, Any]:
        """Return the config of a run, from recorded and the caller's own parameters."""
        values = {**self._bound, **self._order.configurable}
        values = {name: value for name, value in values.items() if value is not None}
        values["thread_id"] = self._fork.thread_id
        if addressed is not None:
            values["checkpoint_id"] = addressed
        scalars = {name: v for name, v in checkpoint.metadata.items() if isinstance(v, (str, int, float, bool))}
        theirs = {name: v for name, v in scalars.items() if name not in _OWN and not name.startswith(_OWN_PREFIXES)}
        limit = self._trunk[-1].step + 25  # the original limit is not recorded; `until` ends the run anyway
        ours: RunnableConfig = {"metadata": theirs, "callbacks": [self._guard], "recursion_limit": limit}
        config = merge_configs(ours, cast(RunnableConfig, self._order.config))
        return {**config, "configurable": values}

    # -- comparing -----------------------------------------------------------------------------------------------

    def _take(self, checkpoint: RecordedCheckpoint, played: Played) -> Plan[Any]:
        for step, made in played.made:
            self._fork.head = made
            self._is_past = not self._left
            if self._left and self._left[0].step == step:
                yield from self._compare(self._left.pop(0), made)
        if self._guard.refused:
            self._refuse(self._guard.refused[0])
        if played.error is not None and not self._may_try_again():
            self._error = played.error
            if not self._left:
                return  # the failed step is after the head
            text = f"{type(played.error).__name__}: {played.error}"
            raise _Differs(Difference(self._guard.step, "error", "none", show(text)))

    def _may_try_again(self) -> bool:
        """Return whether the original failed here too, and was resumed."""
        before = self._was.root(self._left[0].parent) if self._left else None
        if before is None or not before.has_failed or before.id in self._retried:
            return False
        self._retried.add(before.id)
        self._tried.discard(self._left[0].id)
        return True

    def _refuse(self, error: ToolNotReplayed) -> None:
        step = self._guard.step
        self._error = error
        if not error.is_new:
            raise _Ended(f"in step {step} {error}")
        raise _Differs(Difference(step, f"tool {error.tool}", "no such call", f"called with {show(error.called)}"))

    def _compare(self, checkpoint: RecordedCheckpoint, made: str) -> Plan[Any]:
        self._made[checkpoint.id] = made
        self._compared.append((checkpoint, made))
        pair = yield from self._states.next(checkpoint.address, Address(self._fork.thread_id, "", made))
        was, now = (state_of(values, self._order.ignore) for values in (pair.was, pair.now))
        found = self._comparison.differences(checkpoint.step, was, now, pair.starts)
        # A difference that the previous step had too was reported there.
        differing = {(each.field, each.recorded, each.replayed): each for each in found}
        self._found += [each for key, each in differing.items() if key not in self._differing]
        self._differing = differing.keys()

    def _result(self) -> Plan[Replay]:
        calls = yield from self._fork.calls(self._old)
        now: History = yield from read_history(self._session, self._fork.thread_id)
        found, uncompared = self._differences_of_calls(now, calls)
        found += [Difference(v.step, f"tool {v.tool}.version", v.recorded, v.now) for v in self._guard.versions]
        found = sorted([*found, *self._found, *self._differences_of_tasks(now)], key=lambda each: each.step)
        ended = self._ended
        if not ended and (cached := next((call for call in calls if call.cached), None)):
            where = f"the call of a model in node {cached.node!r}, step {cached.step}"
            ended = f"{where}, was answered by LangChain's cache: disable it with set_llm_cache(None)"
        elif not ended and (names := cached_subgraphs(self._graph)):
            ended = f"the node cache of subgraph {names[0]!r} may have answered: compile the subgraph without a cache"
        return Replay(
            source=self._order.source,
            thread_id=self._fork.thread_id if self._order.keep else None,
            steps=len(self._compared),
            differences=tuple(found[: self._order.limit]),
            ended=ended,
            calls=tuple(calls),
            uncompared=tuple(uncompared),
            error=self._error,
        )

    def _differences_of_calls(self, now: History, calls: Sequence[ModelCall]) -> tuple[list[Difference], list[int]]:
        run_of, again, run, last = dict[int, int](), set[int](), 0, 0
        for checkpoint, made in self._compared:
            run += (checkpoint.source, checkpoint.step - 1) != ("loop", last)
            run_of[checkpoint.step], last = run, checkpoint.step
            if self._was.was_left(checkpoint.parent) or now.was_left(getattr(now.root(made), "parent", None)):
                again.add(checkpoint.step)
        led = [call for call in calls if call.checkpoint_id is not None]
        return compare_calls(dict(sorted(run_of.items())), again, (self._was, self._calls), (now, led))

    def _differences_of_tasks(self, now: History) -> Iterator[Difference]:
        """Compare questions, and the outcomes of tasks after the head."""
        for checkpoint in [checkpoint for checkpoint in self._trunk if checkpoint.id in self._made]:
            places, step = ((self._was, checkpoint.id), (now, self._made[checkpoint.id])), checkpoint.step + 1
            if checkpoint is not self._trunk[-1]:
                was, its = starmap(find_questions, places)
                # Only paths on both sides: in a replay, the ledger answers the questions of tools.
                yield from self._differences_of_paths(step, was.keys() & its.keys(), was, its)
            elif self._is_through:
                was, its = starmap(find_outcomes, places)
                yield from self._differences_of_paths(step, was.keys() | its.keys(), was, its) if was else ()
                if not was and (its or self._is_past or self._error):
                    self._ended = f"the outcome of step {step} is not recorded"

    def _differences_of_paths(self, step: int, paths: Set[str], was: Outcomes, now: Outcomes) -> Iterator[Difference]:
        for path in sorted(paths):
            for found in self._comparison.differences(step, was.get(path, {}), now.get(path, {})):
                yield replace(found, node=path.rpartition(", ")[2])
