"""Test the history checker: silent about a correct store, never about a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes.histories import Operation, Outcome, Version, anomalies
from support.tiers import examples


class List:
    """A correct store: one list, compare-and-set.

    The wrong stores below misbehave in a third of their calls.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.head: Version = ()
        self.past: list[Version] = [()]

    def misbehaves(self) -> bool:
        return self.chance.random() < 0.33

    def read(self, client: int) -> Version:
        return self.head

    def final(self) -> Version:
        return self.head

    def write(self, client: int, after: Version, mark: str) -> bool:
        if after != self.head:
            return False
        self.set(after, mark)
        return True

    def set(self, after: Version, *marks: str) -> None:
        self.head = (*after, *marks)
        self.past.append(self.head)


class Overwriting(List):
    """Does not always compare: the second of two writers wins."""

    def write(self, client: int, after: Version, mark: str) -> bool:
        if not self.misbehaves():
            return super().write(client, after, mark)
        self.set(after, mark)
        return True


class Forgetting(List):
    """Acknowledges and loses a write, as a killed server without a durable log."""

    def write(self, client: int, after: Version, mark: str) -> bool:
        return (after == self.head and self.misbehaves()) or super().write(client, after, mark)


class Stale(List):
    """Answers reads from a replica that lags behind."""

    def read(self, client: int) -> Version:
        return self.past[-min(len(self.past), 3)] if self.misbehaves() else self.head


class Resurrecting(List):
    """Refuses and yet applies a write.

    As if it was sent twice, its first reply was lost, and the head moved in between.
    """

    def write(self, client: int, after: Version, mark: str) -> bool:
        if super().write(client, after, mark):
            return True
        if self.misbehaves():
            self.set(self.head, mark)
        return False


class Doubling(List):
    """Applies a write twice, because it does not recognize a repeated request."""

    def write(self, client: int, after: Version, mark: str) -> bool:
        if after == self.head and self.misbehaves():
            self.set(after, mark, mark)
            return True
        return super().write(client, after, mark)


class Split(List):
    """Two servers that both act as the primary."""

    def __init__(self, chance: Random) -> None:
        super().__init__(chance)
        self.sides = List(chance), List(chance)

    def read(self, client: int) -> Version:
        return self.sides[client % 2].head

    def write(self, client: int, after: Version, mark: str) -> bool:
        return self.sides[client % 2].write(client, after, mark)

    def final(self) -> Version:
        return self.sides[0].head


class GoingBack(List):
    """Makes an old version the head again."""

    def read(self, client: int) -> Version:
        if self.misbehaves():
            self.head = self.past[-min(len(self.past), 2)]
        return self.head


class Touchy(List):
    """Refuses without a reason."""

    def write(self, client: int, after: Version, mark: str) -> bool:
        return not self.misbehaves() and super().write(client, after, mark)


class Rebasing(List):
    """Appends to the current list instead of the one that the client read."""

    def write(self, client: int, after: Version, mark: str) -> bool:
        self.set(self.head if self.misbehaves() else after, mark)
        return True


class Shuffling(List):
    """Keeps everything, sometimes in another order."""

    def read(self, client: int) -> Version:
        if self.misbehaves():
            self.head = (*self.head[:-2], *reversed(self.head[-2:]))
        return self.head


WRONG = {
    Overwriting: "lost update",
    Forgetting: "lost update",
    Stale: "stale read",
    Resurrecting: "refused, yet there",
    Doubling: "duplicate",
    Split: "lost update",
    GoingBack: "lost update",
    Touchy: "groundless refusal",
    Rebasing: "divergence",
    Shuffling: "divergence",
}


def client(store: List, who: int, turns: int, clock: Iterator[int], history: list[Operation]) -> Iterator[None]:
    """Append repeatedly; others may act at every `yield`.

    One acknowledgement in ten is lost.
    """
    for turn in range(turns):
        began = next(clock)
        yield
        seen = store.read(who)
        yield
        history.append(Operation(who, began, next(clock), seen))
        began, fate, mark = next(clock), store.chance.random(), f"{who}.{turn}"
        yield
        kept = fate >= 0.1 and store.write(who, seen, mark)
        yield
        outcome: Outcome = "unknown" if fate < 0.2 else "ok" if kept else "refused"
        history.append(Operation(who, began, next(clock), seen, mark, outcome))


def simulated(kind: type[List], chance: Random, clients: int, turns: int) -> tuple[list[Operation], Version]:
    """Run clients in a random order; return their history and the final list."""
    store, clock = kind(chance), count()
    history: list[Operation] = []
    running = [client(store, who, turns, clock, history) for who in range(clients)]
    while running:
        one = chance.choice(running)
        if next(one, "done") == "done":
            running.remove(one)
    return history, store.final()


def can_be(history: list[Operation], final: Version) -> bool:
    """Search all orders for one that explains a short history: the definition."""

    def possible(head: Version, left: frozenset[Operation]) -> bool:
        if head == final and all(operation.outcome == "unknown" for operation in left):
            return True
        first = min((operation.done for operation in left), default=0)
        return any(
            possible(after, left - {operation})
            for operation in left
            if operation.invoked <= first and (after := step(head, operation)) is not None
        )

    return possible((), frozenset(history))


def step(head: Version, operation: Operation) -> Version | None:
    """Return the list after an operation, or `None` if its result was impossible."""
    if operation.outcome == "refused":
        return head if head != operation.seen else None
    if operation.mark is None:
        return head if head == operation.seen else None
    return operation.version if head == operation.seen else (head if operation.outcome == "unknown" else None)


SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=examples(300), deadline=None)
@given(SEEDS, st.integers(1, 8), st.integers(0, 40))
def test_a_correct_list_shows_no_anomaly(seed: int, clients: int, turns: int) -> None:
    history, final = simulated(List, Random(seed), clients, turns)
    assert anomalies(history, final) == []


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_an_incorrect_list_is_detected(kind: type[List]) -> None:
    for seed in range(50):
        history, final = simulated(kind, Random(seed), clients=6, turns=40)
        found = anomalies(history, final)
        assert found, f"{kind.__name__} went unseen with seed {seed}"
    assert WRONG[kind] in {anomaly.kind for anomaly in found}


@pytest.mark.slow
@settings(max_examples=examples(2000), deadline=None)
@given(st.sampled_from([List, *WRONG]), SEEDS, st.sampled_from([(2, 2), (3, 1), (3, 2), (4, 1)]))
def test_the_checker_agrees_with_a_search_of_all_orders(kind: type[List], seed: int, size: tuple[int, int]) -> None:
    history, final = simulated(kind, Random(seed), *size)
    assert (anomalies(history, final) == []) == can_be(history, final)
