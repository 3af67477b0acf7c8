"""Values come back unchanged: the encoding is compared with whole values.

The histories are random.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple
from support.checkpoints import checkpoint_of, config_for, twin
from support.engine.states import CHANNELS, EDITS, LONE_EDITS, RETYPES, Edit, State, apply, form
from support.tiers import examples

from langgraph_keel import MemorySaver, SqliteSaver
from langgraph_keel.saver import KeelSaver

HANDS = st.integers(0, 1)


@dataclass
class Whole:
    """A checkpoint as the store of whole values keeps it."""

    id: str
    parent: str | None
    values: State
    run: str


class Histories(RuleBasedStateMachine):
    """Two savers on one store, and a deepcopy of every stored checkpoint."""

    memo = 100, 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.hands = self.open()
        self.kept: dict[str, list[Whole]] = {"t": []}
        self.numbers = count(1)
        self.thread = "t"
        self.config = config_for("t")

    def open(self) -> list[KeelSaver]:
        saver = MemorySaver()
        return [twin(saver, *self.memo) for _ in range(2)]

    def reopen(self, hand: int) -> None:
        self.hands[hand] = twin(self.hands[hand], *self.memo)

    @property
    def living(self) -> list[Whole]:
        return self.kept[self.thread]

    def has_checkpoints(self) -> bool:
        return bool(self.living)

    @initialize(state=CHANNELS)
    def start(self, state: State) -> None:
        self.state = state
        self.put(0, 0)

    def _step(self, edits: list[Edit], hand: int, run: int) -> None:
        """Change the last stored objects in place, and store them again."""
        for edit in edits:
            apply(self.state, edit)
        self.put(hand, run)

    # Most steps are of this kind: Hypothesis chooses all rules with equal probability.
    step = rule(edits=EDITS, hand=HANDS, run=st.integers(0, 4))(_step)
    step_alone = rule(edits=LONE_EDITS, hand=HANDS, run=st.integers(0, 4))(_step)
    step_retyped = rule(edits=RETYPES, hand=HANDS, run=st.integers(0, 4))(_step)

    @rule(edits=EDITS)
    def change(self, edits: list[Edit]) -> None:
        """Change stored objects without storing them."""
        for edit in edits:
            apply(self.state, edit)

    def put(self, hand: int, run: int) -> None:
        parent = self.config["configurable"].get("checkpoint_id")
        self.store(hand, Whole(f"{next(self.numbers):08}", parent, deepcopy(self.state), f"run{run}"), self.config)

    def store(self, hand: int, whole: Whole, config: RunnableConfig) -> None:
        metadata: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}, "run_id": whole.run}
        self.config = self.hands[hand].put(config, checkpoint_of(whole.id, self.state), metadata, {})
        assert self.config["configurable"]["checkpoint_id"] == whole.id
        self.kept[self.thread] = [old for old in self.living if old.id != whole.id] + [whole]

    @precondition(has_checkpoints)
    @rule(hand=HANDS, edits=EDITS)
    def put_again(self, hand: int, edits: list[Edit]) -> None:
        """Store other values under the same id."""
        last = self.living[-1]
        for edit in edits:
            apply(self.state, edit)
        again = Whole(last.id, last.parent, deepcopy(self.state), last.run)
        self.store(hand, again, config_for(self.thread, last.parent))

    @precondition(has_checkpoints)
    @rule(hand=HANDS, which=st.integers(0, 50))
    def fork(self, hand: int, which: int) -> None:
        """Continue from an older checkpoint, with the objects that it returned."""
        self.adopt(self.read(hand, self.living[which % len(self.living)]))

    def adopt(self, found: CheckpointTuple) -> None:
        self.config, self.state = found.config, found.checkpoint["channel_values"]

    def latest(self, hand: int) -> None:
        """Continue from the current latest checkpoint."""
        found = self.hands[hand].get_tuple(config_for(self.thread))
        if found is None:
            self.config = config_for(self.thread)
            assert not self.living
        else:
            assert found.checkpoint["id"] == self.living[-1].id
            self.adopt(found)

    @rule(hand=HANDS, strategy=st.sampled_from(["keep_latest", "keep_latest", "delete"]))
    def prune(self, hand: int, strategy: str) -> None:
        self.hands[hand].prune([self.thread], strategy=strategy)
        self.kept[self.thread] = self.living[-1:] if strategy == "keep_latest" else []
        self.latest(hand)

    @rule(hand=HANDS, run=st.integers(0, 4))
    def delete_run(self, hand: int, run: int) -> None:
        self.hands[hand].delete_for_runs([f"run{run}"])
        for thread, wholes in self.kept.items():
            self.kept[thread] = [whole for whole in wholes if whole.run != f"run{run}"]
        self.latest(hand)

    @precondition(lambda self: self.living and len(self.kept) < 4)
    @rule(hand=HANDS)
    def copy_thread(self, hand: int) -> None:
        """Copy the thread and continue with the copy."""
        target = f"copy{len(self.kept)}"
        self.hands[hand].copy_thread(self.thread, target)
        self.kept[target] = deepcopy(self.living)
        self.thread = target
        self.latest(hand)

    @rule(hand=HANDS)
    def forget(self, hand: int) -> None:
        self.reopen(hand)

    @rule(hand=HANDS)
    def check(self, hand: int) -> None:
        for self_thread, wholes in self.kept.items():
            for whole in wholes:
                self.read(hand, whole, self_thread)

    def read(self, hand: int, whole: Whole, thread: str | None = None) -> CheckpointTuple:
        thread = thread or self.thread
        found = self.hands[hand].get_tuple(config_for(thread, whole.id))
        assert found
        self.equal(found, whole, thread)
        return found

    def equal(self, found: CheckpointTuple, whole: Whole, thread: str) -> None:
        values = found.checkpoint["channel_values"]
        assert values.keys() == whole.values.keys()
        assert {name: form(value) for name, value in values.items()} == {
            name: form(value) for name, value in whole.values.items()
        }
        parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        living = {other.id for other in self.kept[thread]}
        assert parent == (whole.parent if whole.parent in living else None)

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for hand in (0, 1):
            self.check(hand)
            self.reopen(hand)
        self.check(0)
        for thread, wholes in self.kept.items():
            listed = list(self.hands[1].list(config_for(thread)))
            assert [found.checkpoint["id"] for found in listed] == [whole.id for whole in reversed(wholes)]
            for found, whole in zip(listed, reversed(wholes), strict=True):
                self.equal(found, whole, thread)
        self.hands[1].prune(list(self.kept), strategy="delete")
        assert not list(self.hands[0].list(None))


class TinyMemo(Histories):
    """The memo forgets nearly everything immediately."""

    memo = 1, 1000


class LightMemo(Histories):
    """The memo usually has room for an entry only without the content of its rows."""

    memo = 10, 3000


class InSqlite(Histories):
    memo = 100, 1 << 20

    def open(self) -> list[KeelSaver]:
        self.sqlite = SqliteSaver(":memory:")
        return [twin(self.sqlite, *self.memo) for _ in range(2)]

    def teardown(self) -> None:
        super().teardown()
        self.sqlite.close()


class InSqliteTinyMemo(InSqlite):
    memo = 1, 1000


class InFiles(Histories):
    """Uses real second connections, which are closed and reopened.

    At the end, the file must be empty.
    """

    memo = 1, 1 << 20

    def open(self) -> list[KeelSaver]:
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name) / "keel.db"
        return [self.saver(), self.saver()]

    def saver(self) -> SqliteSaver:
        return SqliteSaver(self.path, memo_entries=self.memo[0], memo_bytes=self.memo[1])

    def reopen(self, hand: int) -> None:
        old: Any = self.hands[hand]
        old.close()
        self.hands[hand] = self.saver()

    def teardown(self) -> None:
        super().teardown()
        for hand in self.hands:
            hand.close()
        self.directory.cleanup()


COMMON = settings(
    deadline=None,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

TestMemory = Histories.TestCase
TestMemory.settings = settings(COMMON, max_examples=examples(60))
TestMemoryForgetting = TinyMemo.TestCase
TestMemoryForgetting.settings = settings(COMMON, max_examples=examples(40))
TestMemoryLight = LightMemo.TestCase
TestMemoryLight.settings = settings(COMMON, max_examples=examples(40))
TestSqlite = InSqlite.TestCase
TestSqlite.settings = settings(COMMON, max_examples=examples(60))
TestSqliteForgetting = InSqliteTinyMemo.TestCase
TestSqliteForgetting.settings = settings(COMMON, max_examples=examples(40))
TestSqliteFiles = InFiles.TestCase
TestSqliteFiles.settings = settings(COMMON, max_examples=examples(25))
for machine in (TestMemoryForgetting, TestMemoryLight, TestSqlite, TestSqliteForgetting, TestSqliteFiles):
    pytest.mark.slow(machine)
