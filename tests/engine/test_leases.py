"""A process judges another's claim only by observations on its own clock."""

from __future__ import annotations

from langgraph_keel.engine import leases
from langgraph_keel.engine.leases import Watch, looks_alive


class Looks:
    """Looks at one claim, at times of a separate clock."""

    def __init__(self, lease: float = 30.0) -> None:
        self.now = 0.0
        self.watch = Watch(lease, lambda: self.now)

    def at(self, seconds: float, mark: int, token: str = "t", asked: float | None = None) -> bool | None:
        self.now = seconds
        return self.watch.is_over(token, mark, seconds if asked is None else asked)


def test_a_claim_expires_after_a_lease_without_renewal() -> None:
    looks = Looks()
    assert [looks.at(seconds, 7) for seconds in (0, 10, 29.9)] == [None, None, None]
    assert looks.at(30, 7) is True
    assert looks.at(30, 7, "another") is None


def test_a_renewed_claim_lives_for_another_lease() -> None:
    looks = Looks()
    assert [looks.at(seconds, seconds) for seconds in (0, 10, 20)] == [None, False, False]
    assert looks.at(39, 20) is False  # seen unchanged for 10 after the first time
    assert looks.at(40, 20) is None  # now it may be dead
    assert looks.at(50, 20) is True


def test_a_renewal_of_unknown_age_proves_nothing() -> None:
    looks = Looks()
    assert [looks.at(seconds, seconds) for seconds in (0, 3600)] == [None, None]


def test_a_slow_reply_does_not_prove_expiry() -> None:
    """The store may have answered at once, and the reply may have taken half a minute."""
    looks = Looks()
    assert looks.at(5, 7, asked=0) is None
    assert looks.at(40, 7, asked=34.9) is None
    assert looks.at(41, 7, asked=35) is True


def test_the_lease_promised_by_the_holder_counts() -> None:
    watch = Looks(lease=3.0)
    assert watch.watch.is_over("t", 7, 0.0, 60.0) is None
    watch.now = 59.0
    assert watch.watch.is_over("t", 7, 59.0, 60.0) is None
    assert watch.watch.is_over("t", 7, 60.0, 60.0) is True


def test_the_number_of_remembered_claims_is_limited() -> None:
    looks, most = Looks(), leases.MOST_SEEN
    for number in range(most + 10):
        looks.at(0, 1, f"{number}")
    assert looks.at(30, 1, "0") is None  # forgotten, and watched again
    assert looks.at(30, 1, f"{most}") is True


def test_looks_alive_holds_for_one_lease_before_expiry() -> None:
    assert [looks_alive(1000, 300, now) for now in (699, 700, 999, 1000)] == [False, True, True, False]
