"""The choice of a policy, a pure function over the checkpoints of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from langgraph_keel import CorruptStore, InvalidInput, MemorySaver, Retention
from langgraph_keel.engine import removal
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.lineage import Ancestry, NodeAndHeader, find_steps_behind, leaves
from langgraph_keel.engine.records import Graph, Node
from langgraph_keel.engine.removal import Removal, Survey, plan_removal
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.retention.policy import choose, trunk
from langgraph_keel.retention.prune import find_called_from, find_open_heads

START = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
NOW = (START + timedelta(hours=10)).timestamp() * 1000


def moment(
    number: int,
    parent: int | None,
    step: int | None = None,
    source: str = "loop",
    *,
    run: str | None = None,
    head: bool = False,
    ns: str = "",
    **metadata: Any,
) -> NodeAndHeader:
    """Return checkpoint `number`, made `number` hours after `START`."""
    said = {"source": source, **({} if step is None else {"step": step}), **metadata}
    header = Header({"ts": (START + timedelta(hours=number)).isoformat()}, said, {})
    above = None if parent is None else str(parent)
    return Node(Address("t", ns, str(number)), above, number, b"", {}, run, head, False), header


def line(*sources: str, start: int = 0) -> list[NodeAndHeader]:
    """Return consecutive checkpoints with these sources."""
    last = start + len(sources) - 1
    return [moment(n, n - 1 if n else None, n - 1, source, head=n == last) for n, source in enumerate(sources, start)]


# Two runs; then a rewind to 3 (8 is its twin), from which another branch leads to the head.
CHAT = [
    *(moment(n, n - 1 if n else None, n - 1, "input" if n in (0, 4) else "loop") for n in range(8)),
    moment(8, 2, 2, "fork", keel_rewound_to="3"),
    moment(9, 8, 3),
    moment(10, 9, 4, head=True),
]


def numbers(policy: Retention, moments: Sequence[NodeAndHeader] = CHAT, named: Sequence[int] = ()) -> list[Any]:
    places = {Address("t", "", str(n)) for n in named}
    return sorted(choose(policy, moments, NOW, places), key=int)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retention(), []),
        (Retention(last=1), [10]),
        (Retention(last=4), [2, 8, 9, 10]),
        (Retention(last=99), [0, 1, 2, 8, 9, 10]),
        (Retention(within=2 * 3600), [8, 9, 10]),
        (Retention(within=timedelta(hours=1, seconds=1)), [9, 10]),
        (Retention(within=1), [10]),
        (Retention(per="run"), [3, 7, 10]),
        (Retention(per="day"), [1, 10]),
        (Retention(branch_points=True), [3, 4, 8]),
        (Retention(last=2, per="day"), [1, 9, 10]),
        (Retention(ttl=1), list(range(11))),
    ],
    ids=lambda value: str(value).replace(" ", "_"),
)
def test_a_policy_chooses_checkpoints(policy: Retention, expected: list[int]) -> None:
    assert numbers(policy) == expected


def test_labelled_checkpoints_are_kept_by_default() -> None:
    assert numbers(Retention(), named=[3, 6]) == [3, 6]
    assert numbers(Retention(labelled=False), named=[3, 6]) == []


def test_per_run_uses_run_ids() -> None:
    moments = [moment(n, n - 1 if n else None, n, run="ab"[n // 2], head=n == 3) for n in range(4)]
    assert numbers(Retention(per="run"), moments) == [1, 3]


def test_per_run_with_exit_durability_uses_step_numbers() -> None:
    """`durability="exit"` stores no input checkpoint, only the step number."""
    moments = [moment(n, n - 1 if n else None, 3 * n + 1, head=n == 3) for n in range(4)]
    assert numbers(Retention(per="run"), moments) == [0, 1, 2, 3]
    resumed = [moment(0, None, 1), moment(1, 0, 2, head=True)]
    assert numbers(Retention(per="run"), resumed) == [1]


def test_an_update_ends_a_run() -> None:
    assert numbers(Retention(per="run"), line("input", "loop", "update", "loop", "loop")) == [1, 4]


def test_the_trunk_continues_past_a_removed_parent() -> None:
    left = [each for each in CHAT if each[0].stamp in (1, 3, 7, 9, 10)]
    assert [node.stamp for node in trunk(left)] == [10, 9, 3, 1]


def test_certain_ancestry_ends_at_a_removed_parent() -> None:
    headers = {node.stamp: header for node, header in CHAT}
    whole = Ancestry(node for node, _ in CHAT)
    latest = next(node for node, _ in CHAT if node.stamp == 10)
    left = Ancestry(node for node, _ in CHAT if node.stamp in (1, 3, 7, 9, 10))
    assert [node.stamp for node in left.way(latest)] == [10, 9]
    assert [node.stamp for node in left.likely_way(latest, lambda node: headers[node.stamp])] == [10, 9, 3, 1]
    every = [node.stamp for node in whole.way(*(node for node, _ in CHAT))]
    assert sorted(every) == sorted(headers)


def test_a_cycle_of_parents_ends() -> None:
    """No saver writes a cycle, but stored bytes are untrusted."""
    circle = [moment(0, 1, 0), moment(1, 0, 1, head=True, counters_since_delta_snapshot={"log": [1, 1]})]
    assert len(list(trunk(circle))) == 2
    assert set(find_steps_behind(circle, {1})) == {"0", "1"}
    assert plan_removal(circle, {1}).ghosts == {0: {"log"}}


def test_no_memories_are_read_if_nothing_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memories are read if nothing is removed, or if only heads stay."""
    monkeypatch.setattr(removal, "Memories", None)
    nodes = [node for node, _ in CHAT]
    read = Survey("t", Graph(nodes, {}, None), CHAT)
    removal.keep_memory_callers(read, {node.stamp for node in nodes}, Removal())
    removal.keep_memory_callers(read, {10}, Removal(gone={node.stamp for node in nodes} - {10}))


def test_a_checkpoint_without_a_time_counts_as_recent() -> None:
    node, header = moment(0, None)
    untimed = (node, Header({}, header.metadata, {}))
    assert numbers(Retention(within=1), [untimed]) == [0]
    assert numbers(Retention(per="day"), [untimed]) == [0]


def test_a_checkpoint_stored_after_a_recent_one_counts_as_recent() -> None:
    """A host with a slow clock stored the last but one, which was once removed."""
    node, header = CHAT[9]
    late = Header({"ts": (START - timedelta(hours=9)).isoformat()}, header.metadata, {})
    assert numbers(Retention(within=2 * 3600), [*CHAT[:9], (node, late), CHAT[10]]) == [8, 9, 10]


def test_leaves_are_checkpoints_without_children() -> None:
    assert [node.stamp for node, _ in leaves(CHAT)] == [7, 10]
    rewound = [*line("input", "loop"), moment(2, 0, 0, "fork", keel_rewound_to="1")]
    assert [node.stamp for node, _ in leaves(rewound)] == [2]


CALL, NESTED = (f"{name}:{UUID(int=7)}" for name in ("call", "nested"))


def called(number: int, ns: str, *, head: bool = True, **parents: str) -> NodeAndHeader:
    """A subgraph's checkpoint; `root` and `call` name the checkpoints that called it."""
    names = {"root": "", "call": CALL}
    return moment(number, None, ns=ns, head=head, parents={names[name]: said for name, said in parents.items()})


@pytest.mark.parametrize(
    ("moments", "kept"),
    [
        ([*line("input", "loop"), called(2, CALL, root="1")], {1, 2}),
        ([*line("input", "loop"), called(2, CALL, root="0")], {1}),
        ([called(0, CALL, root="gone"), *line("input", "loop", start=1)], {2, 0}),
        ([called(0, CALL, root="0000"), *line("input", "loop", start=1)], {2}),
        ([*line("input", "loop"), called(2, CALL, root="3")], {1, 2}),
        ([*line("input", "loop"), called(2, CALL, root="00-of-a-host-whose-clock-is-late")], {1, 2}),
        ([*line("input"), called(1, CALL, root="3"), moment(2, 0, 1, head=True)], {1, 2}),
        ([called(0, CALL, root="1")], {0}),
        (
            [*line("input", "loop"), called(2, CALL, root="3"), called(3, f"{CALL}|{NESTED}", root="3", call="4")],
            {1, 2, 3},
        ),
        ([*line("input", "loop"), called(2, CALL, root="0"), called(3, f"{CALL}|{NESTED}", root="0", call="4")], {1}),
        ([*line("input", "loop"), called(2, f"{CALL}|{NESTED}", root="0", call="9")], {1}),
        ([*line("input", "loop"), called(2, f"{CALL}|{NESTED}", root="3", call="9")], {1, 2}),
    ],
    ids=[
        "under way",
        "over",
        "its step is yet to come by its id",
        "its step was pruned",
        "its step is not stored yet",
        "not stored yet, by a clock that is late",
        "overtaken by two steps",
        "no root yet",
        "nested, nothing stored yet",
        "nested in what is over",
        "nested, nothing is left around it",
        "nested, nothing stored around it yet",
    ],
)
def test_open_heads_of_subgraph_calls_are_found(moments: list[NodeAndHeader], kept: set[int]) -> None:
    heads = [(replace(node, is_head=node.is_head and node.stamp in _last_of(moments)), said) for node, said in moments]
    assert find_open_heads(heads) == kept


def _last_of(moments: list[NodeAndHeader]) -> set[Any]:
    return set({node.address.checkpoint_ns: node.stamp for node, _ in moments}.values())


def test_checkpoints_of_subgraphs_belong_to_their_step() -> None:
    inner = f"{CALL}|{NESTED}"
    moments = [
        *CHAT,
        called(11, CALL, head=False, root="3"),
        called(12, CALL, root="3"),
        called(13, "memory", root="3"),
    ]
    moments += [called(14, inner, root="3", call="12"), called(15, "memory", root="4"), moment(16, None, ns="memory")]
    assert find_called_from(moments, {"3"}) == {11, 12, 13, 14}
    assert find_called_from(moments, set()) == set()


@st.composite
def threads(draw: st.DrawFn) -> list[NodeAndHeader]:
    """Any tree, with twins, gaps, unknown steps and unknown runs."""
    count = draw(st.integers(1, 14))
    made = []
    for n in range(count):
        parent = draw(st.none() | st.integers(0, n - 1)) if n else None
        marks = {"keel_rewound_to": str(draw(st.integers(0, n - 1)))} if n and draw(st.booleans()) else {}
        step = draw(st.none() | st.integers(-1, 6))
        source = draw(st.sampled_from(["input", "loop", "update", "fork"]))
        made.append(
            moment(n, parent, step, source, run=draw(st.sampled_from([None, "a"])), head=n == count - 1, **marks)
        )
    return made


POLICIES = st.builds(
    Retention,
    last=st.none() | st.integers(1, 6),
    within=st.none() | st.integers(1, 12 * 3600),
    per=st.sampled_from([None, "run", "day"]),
    branch_points=st.booleans(),
)


@given(threads(), POLICIES, st.integers(0, 13))
@settings(max_examples=examples(120), deadline=None)
def test_choosing_again_keeps_the_chosen_checkpoints(moments: list[NodeAndHeader], policy: Retention, cut: int) -> None:
    """After an interrupted prune (oldest first), and after a complete one."""
    heads = {node.stamp for node, _ in moments if node.is_head}
    kept = choose(policy, moments, NOW, ()) | heads
    plan_removal = [node.stamp for node, _ in moments if node.stamp not in kept]
    for gone in (plan_removal[:cut], plan_removal):
        left = [each for each in moments if each[0].stamp not in gone]
        assert kept - choose(policy, left, NOW, ()) <= heads
    if not policy.last:  # the path to the head may be longer if a gap hides its end
        assert choose(policy, left, NOW, ()) <= kept


@given(POLICIES, st.text(min_size=1), st.none() | st.integers(1, 9**9))
def test_a_policy_round_trips_through_a_dict(policy: Retention, threads: str, ttl: int | None) -> None:
    whole = Retention.from_dict({**policy.to_dict(), "threads": threads, **({"ttl": ttl} if ttl else {})})
    assert Retention.from_dict(whole.to_dict()) == whole
    assert str(whole)


@pytest.mark.parametrize(
    "wrong",
    [
        {"last": 0},
        {"last": True},
        {"last": 2.5},
        {"within": -1},
        {"within": 0},
        {"within": "7d"},
        {"within": float("nan")},
        {"per": "week"},
        {"labelled": 1},
        {"threads": ""},
        {"idle": True},
        {"idle": 0.0},
        {"ttl": 0},
        {"ttl": timedelta(days=-1)},
        {"keep": 3},
    ],
    ids=str,
)
def test_invalid_policies_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Retention.from_dict(wrong)


@pytest.mark.parametrize("said", [None, {}, [1], [{"last": 0}], [{"later": 1}], [[]]], ids=str)
def test_damaged_policies_are_refused(said: Any) -> None:
    with MemorySaver() as saver:
        table: CellTable[Any] = CellTable("retention", "", list, list)
        saver.engine.run(Cells(saver.engine.session, table, None).swap("policies", None, [said]))
        with pytest.raises(CorruptStore, match="retention policies"):
            saver.retention.policies()


def test_policy_patterns_and_descriptions() -> None:
    policy = Retention(last=20, per="day", threads="chat-*", idle=timedelta(hours=12), ttl=timedelta(days=90))
    assert [policy.fits(name) for name in ("chat-1", "CHAT-1", "a chat-1")] == [True, False, False]
    assert str(policy) == (
        "threads 'chat-*' idle for 12h: keeps the last 20, the last of each day, labelled, waiting; "
        "the thread goes after 90d"
    )
    assert repr(policy) == "Retention(last=20, per='day', threads='chat-*', idle=43200.0, ttl=7776000.0)"
    assert eval(repr(policy)) == policy
    assert Retention(threads="<b>")._repr_html_().startswith("<div>threads &#x27;&lt;b&gt;&#x27;: keeps")
    assert str(Retention(labelled=False, waiting=False)) == "threads '*': keeps the latest"
    assert [policy.says_nothing for policy in (Retention(idle=3), Retention(last=1), Retention(ttl=1))] == [1, 0, 0]
