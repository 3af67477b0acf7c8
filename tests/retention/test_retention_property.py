"""Random threads and policies: kept checkpoints read as before, the rest is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.retention.threads import MEMORY, START, Written, prune, secrets_in
from support.stores.files import FilesUnderTest
from support.tiers import examples

from langgraph_keel import KeelSaver, Retention
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import unpack_header
from langgraph_keel.engine.lineage import find_moves_back, leaves
from langgraph_keel.engine.records import Entry
from langgraph_keel.engine.removal import Removal, Survey, live_runs, measure, survey
from langgraph_keel.engine.session import Session
from langgraph_keel.retention.policy import KEEP_LATEST, choose
from langgraph_keel.testing.rig import at

NOW = START.timestamp() * 1000 + 3_600_000 * 14

ACTIONS = st.tuples(
    st.sampled_from(
        [
            "put",
            "put",
            "put",
            "input",
            "snapshot",
            "branch",
            "ask",
            "answer",
            "memory",
            "call",
            "rewind",
            "label",
            "fork",
        ]
    ),
    st.integers(0, 20),
)
POLICIES = st.builds(
    Retention,
    last=st.none() | st.integers(1, 5),
    within=st.none() | st.integers(1, 10 * 3600),
    per=st.sampled_from([None, "run", "day"]),
    labelled=st.booleans(),
    branch_points=st.booleans(),
    waiting=st.booleans(),
).map(lambda policy: KEEP_LATEST if policy.says_nothing else policy)


class History(Written):
    """A thread whose actions hypothesis draws."""

    def act(self, action: str, number: int) -> None:
        roots = self.ids()
        at = roots[number % len(roots)] if roots else None
        if action in ("put", "input", "snapshot") or at is None:
            self.put(source="input" if action == "input" else "loop", snapshot=action == "snapshot")
        elif action == "branch":
            self.put(at, source="input" if number % 2 else "loop", run_id=f"run {number % 3}")
        elif action == "ask":
            self.ask(at)
        elif action == "answer":
            self.answer(at)
        elif action == "memory":
            self.remember()
        elif action == "call":
            self.call(number, at if number % 3 == 0 else None)
        elif action == "label":
            self.saver.labels.set(self.config(at), f"label {at} {self.made} {self.said}")
        else:
            self._twin(action, at)

    def _twin(self, action: str, of: str) -> None:
        """Rewind or fork; twins have no values of their own, and the saver names them."""
        before = set(self.all())
        if action == "rewind":
            self.saver.rewind(self.config(of))
        else:
            self.saver.fork(self.config(of))
        for address in set(self.all()) - before:
            self._know(address, of if not address.checkpoint_ns else None)
        if action == "rewind":
            self.heads[""] = self.ids()[-1]

    def _know(self, address: Address, of: str | None) -> None:
        name = str(address.checkpoint_id)
        found = self.saver.get_tuple({"configurable": {"thread_id": self.thread, "checkpoint_ns": address.checkpoint_ns,
                                                        "checkpoint_id": name}})  # fmt: skip
        assert found
        marks = dict(found.metadata)
        original = of or str(marks.get("keel_rewound_to", ""))
        self.shown[name] = found.checkpoint["channel_values"].get("list", [])
        self.counts[name] = self.counts.get(original, 0)
        self.steps[name] = self.steps.get(original, -1)
        self.parents[name] = self.parents.get(original)
        self.beside[name] = self.beside.get(original, set())
        if address.checkpoint_ns:
            self.heads[address.checkpoint_ns] = name


def read_all(saver: KeelSaver) -> Survey:
    return saver.engine.run(survey(saver.engine.session, "t"))


def remembered(saver: KeelSaver, read: Survey, name: str) -> Any:
    """The memory from which the subgraph would continue after a rewind of the root."""
    node = next(node for node, _ in read.seen if (node.address.checkpoint_ns, node.address.checkpoint_id) == ("", name))
    back = find_moves_back(read.graph, node, saver.engine.session.codec)
    if MEMORY in back:
        memory = back[MEMORY]
    else:
        memory = next((each for each, _ in read.seen if each.address.checkpoint_ns == MEMORY and each.is_head), None)
    if memory is None or not unpack_header(memory.header, saver.engine.session.codec, memory.address).checkpoint.get(
        "channel_versions"
    ):
        return None
    found = saver.get_tuple(at("t", MEMORY, memory.address.checkpoint_id))
    return found and found.checkpoint["channel_values"]


def wanted(saver: KeelSaver, read: Survey, policy: Retention) -> set[str | None]:
    """Root checkpoints that must stay: chosen by the policy, or asking a question."""
    labels = {label.address for label in saver.labels.list("t")} if policy.labelled else set()
    stamps = choose(policy, read.seen, NOW, labels) | {node.stamp for node, _ in read.seen if node.is_head}
    ends = {node.address.checkpoint_id for node, _ in leaves(read.seen)} if policy.waiting else set()
    asking = {name for name in ends if name and asks(saver, name)}
    roots = {
        node.address.checkpoint_id for node, _ in read.seen if not node.address.checkpoint_ns and node.stamp in stamps
    }
    return roots | asking


def asks(saver: KeelSaver, name: str) -> bool:
    found = saver.get_tuple(at("t", "", name))
    writes = (found.pending_writes or []) if found else []
    return any(
        channel == "__interrupt__" and {other for owner, other, _ in writes if owner == task} == {"__interrupt__"}
        for task, channel, _ in writes
    )


GIVEN = given(st.lists(ACTIONS, min_size=3, max_size=16), POLICIES, st.sampled_from(["sync", "async"]))
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.slow
@GIVEN
@settings(max_examples=examples(25), deadline=None, suppress_health_check=CHECKS)
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_kept_checkpoints_read_back_and_the_rest_is_removed(
    stores: Any, backend: str, actions: list[tuple[str, int]], policy: Retention, face: str
) -> None:
    check(stores[backend], actions, policy, face)


@GIVEN
@settings(max_examples=examples(10), deadline=None, suppress_health_check=CHECKS)
@pytest.mark.parametrize("backend", ["files", "postgres", "redis"])
def test_kept_checkpoints_read_back_in_files_and_on_servers(
    stores: Any, backend: str, actions: list[tuple[str, int]], policy: Retention, face: str
) -> None:
    check(stores[backend], actions, policy, face)


def check(store: Any, actions: list[tuple[str, int]], policy: Retention, face: str) -> None:
    store.wipe()
    with pytest.MonkeyPatch.context() as patch, store.open() as saver:
        patch.setattr(Session, "milliseconds", NOW)
        thread = History(saver)
        for action in actions:
            thread.act(*action)
        before, read = thread.all(), read_all(saver)
        roots = wanted(saver, read, policy)
        earlier = roots - {node.address.checkpoint_id for node, _ in read.seen if node.is_head}
        memories = {name: remembered(saver, read, str(name)) for name in earlier}
        strategy = "keep_latest" if policy == KEEP_LATEST else policy
        (report,) = prune(saver, face, ["t"], strategy).threads
        after, left = thread.all(), read_all(saver)

        assert {address.checkpoint_id for address in after if not address.checkpoint_ns} == roots
        assert {address: before[address] for address in after} == after
        assert all(thread.read(address) is None for address in before if address not in after)
        assert (report.kept, report.removed) == (len(after), len(before) - len(after))
        assert {name: remembered(saver, left, str(name)) for name in earlier} == memories
        no_leak(store, saver, thread, after, left)
        as_a_copy(store, saver)
        assert not prune(saver, face, ["t"], strategy).threads[0].is_changed


def no_leak(store: Any, saver: KeelSaver, thread: Written, after: Mapping[Address, Any], left: Survey) -> None:
    """The store contains only readable values and those that delta channels need."""
    ghosts = {str(node.address.checkpoint_id) for node in left.graph.nodes if node.is_ghost}
    if any(address.checkpoint_ns == MEMORY for address in after):
        thread.anchors = ghosts  # they record which memory belongs to which moment
    assert ghosts <= thread.expected_ghosts(after)
    assert secrets_in(store.raw(), thread.said) <= thread.expected(after)
    assert saver.engine.run(saver.engine.session.store.remove_rows("t", live_runs(left.graph), left.graph)) == 0


def as_a_copy(store: Any, saver: KeelSaver) -> None:
    """Assert that the thread is stored exactly as a new copy of it would be.

    Compared are the entries in order, with ghosts (ids, parents, headers, references); their writes (tasks and bytes);
    the rows of each channel (numbers, counts of items, bytes: up to 32 elements of a list share one); their size as a
    dry run measures it; and the total number of rows. Files read a stretch of a log as one row, so their rows are not
    counted. Cells are not compared, because copies have none, nor the overhead of databases.
    """
    saver.copy_thread("t", "copy")
    held, copied = content(saver, "t"), content(saver, "copy")
    assert held == copied
    assert weight(saver, "t") == weight(saver, "copy")
    # Entries stay, so this counts all rows of the copy, also rows that no entry shows.
    graph = saver.engine.run(saver.engine.session.store.read_graph("copy"))
    rows = saver.engine.run(saver.engine.session.store.remove_rows("copy", {}, graph))
    assert rows == len(held[1]) or isinstance(store, FilesUnderTest)
    saver.delete_thread("copy")


def content(saver: KeelSaver, thread: str) -> tuple[list[Any], dict[Any, Any]]:
    """The entries of a thread with their writes, and their rows."""
    nodes = saver.engine.run(saver.engine.session.store.read_graph(thread)).nodes
    entries = [Entry(each.address, each.parent, each.stamp, each.header, each.refs, each.run_id) for each in nodes]
    found = saver.engine.run(saver.engine.session.store.read_values(entries))
    told = [
        (node.address.checkpoint_ns, node.address.checkpoint_id, node.parent, node.header, dict(node.refs), node.run_id,
         node.is_head, node.is_ghost)
        for node in nodes
    ]  # fmt: skip
    writes = [(each.entry.address.checkpoint_id, tuple(each.batches)) for each in found]
    rows = {
        (each.entry.address.checkpoint_ns, channel, row.lo): (row.count, row.body)
        for each in found
        for channel, rows in each.rows.items()
        for row in rows
    }
    return [told, writes], rows


def weight(saver: KeelSaver, thread: str) -> tuple[int, int]:
    """The number of rows of a thread, and the total bytes."""
    read = saver.engine.run(survey(saver.engine.session, thread))
    everything = Removal(gone={node.stamp for node in read.graph.nodes})
    return saver.engine.run(measure(saver.engine.session, read, everything))
