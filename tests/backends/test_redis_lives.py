"""RedisSaver: threads that are deleted and start again, servers that lost writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.backends.redis_steps import Open, behind, keys, opened, put
from support.saver_parts import store_of

from langgraph_keel import CorruptStore, KeelSaver, RedisSaver
from langgraph_keel.backends.redis import entries as names
from langgraph_keel.testing.rig import at, checkpoint_of, id_of, values_of

__all__ = ["behind", "opened"]  # fixtures
End = Callable[[Any, bytes], object]


def same_bucket(thread: str, count: int) -> list[str]:
    """Return other threads in the same part of the index."""
    bucket = names.bucket_of(thread)
    return [other for n in range(9000) if names.bucket_of(other := f"t{n}") == bucket][:count]


def put_at(saver: KeelSaver, number: int, ts: str, run: str = "r") -> None:
    checkpoint = checkpoint_of(f"{number:04}", {"list": [number]}, ts=ts)
    saver.put(at(), checkpoint, {"run_id": run}, {})  # type: ignore[arg-type]


def seen(saver: RedisSaver) -> tuple[list[tuple[str, str | None]], list[str | None]]:
    """Return listings: ids of threads with their latest checkpoint, and checkpoints."""
    return [(info.thread_id, info.latest) for info in saver.threads()], [id_of(found) for found in saver.list(None)]


@pytest.mark.parametrize("end", [lambda behind, key: behind.pexpire(key, 1), lambda behind, key: behind.delete(key)])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_restarted_thread_is_listed_once(
    opened: Open, behind: Any, redis_prefix: str, end: End, read_only: bool
) -> None:
    saver = opened()
    put_at(saver, 1, "2026-01-01", run="old")
    [key] = keys(behind, redis_prefix, ":thread:")
    end(behind, key)
    time.sleep(0.02)
    put_at(saver, 2, "2026-01-02")
    reader = opened(read_only=read_only)
    for _ in range(2):
        assert seen(reader) == ([("t", "0002")], ["0002"])
    saver.delete_for_runs(["old"])
    assert seen(reader) == ([("t", "0002")], ["0002"])
    assert behind.zcard(f"{redis_prefix}:{{{names.bucket_of('t')}}}:threads") == (2 if read_only else 1)


def test_a_thread_that_moves_in_the_index_is_still_listed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves within the index, between the trips to the index and to the thread."""
    saver, other = opened(), opened()
    put_at(saver, 1, "2026-01-01")
    send = saver.engine.driver.send
    trips: list[str] = []

    def between(request: Any) -> Any:
        script = request.calls[0].script
        if script != "find_threads":
            trips.append(script)
            put_at(other, 1 + len(trips), f"2026-01-0{1 + len(trips)}", run=f"run {len(trips)}")
        return send(request)

    monkeypatch.setattr(saver.engine.driver, "send", between)
    assert [info.thread_id for info in saver.threads()] == ["t"]
    assert [id_of(found) for found in saver.list(None, limit=1)] == ["0004"]
    assert saver.engine.run(store_of(saver).find_runs(["run 3"])) == ["t"]
    assert trips == ["read_threads", "read_values", "search", "read_values", "find_runs"]


def test_remains_of_an_expired_thread_do_not_hide_its_successor(opened: Open, behind: Any, redis_prefix: str) -> None:
    """The same checkpoint, perhaps from a backup, has the expired one's index entry."""
    expiring, stays = opened(ttl=0.05), opened()
    put(expiring, 1)
    time.sleep(0.1)
    put(stays, 1)
    for thread in same_bucket("t", 6):
        put(expiring, 1, thread)
        time.sleep(0.1)
    assert seen(stays) == ([("t", "0001")], ["0001"])


# -- a server that lost the last second ----------------------------------------------------------------------------


class Rewound:
    """A thread that is reset to an earlier state, by DUMP and RESTORE.

    A failover or a power cut has this effect.
    """

    def __init__(self, behind: Any, prefix: str) -> None:
        self._behind = behind
        [self._key] = keys(behind, prefix, ":thread:")
        self._dump = behind.dump(self._key)

    def rewind(self) -> None:
        self._behind.restore(self._key, 0, self._dump, replace=True)


def big(who: str) -> dict[str, Any]:
    return {"plan": {"who": who, "text": [who * 30] * 30}, "list": [f"{who} {n}" for n in range(20)]}


@pytest.mark.parametrize("follows", ["head", "parent"])
def test_a_put_never_builds_on_a_lost_checkpoint(opened: Open, behind: Any, redis_prefix: str, follows: str) -> None:
    """The lost entry's number is used again, for an entry that must not be confused."""
    first, second = opened(on_conflict="fork"), opened(on_conflict="fork")
    put(first, 1, values={"plan": 0, "list": [0]})
    before = Rewound(behind, redis_prefix)
    config = put_after(first, "0001", "0002", big("alice"))
    before.rewind()
    put_after(second, "0001", "0003", big("bob"))
    if follows == "head":
        assert values_of(first.get_tuple(at()) or pytest.fail("gone")) == big("bob")
    parent = "0003" if follows == "head" else id_of(config)
    put_after(first, parent, "0004", big("alice"))
    found = opened().get_tuple(at("t", "", "0004")) or pytest.fail("gone")
    assert values_of(found) == big("alice")


def put_after(saver: KeelSaver, parent: str | None, number: str, values: Any) -> Any:
    versions = dict.fromkeys(values, int(number))
    return saver.put(at("t", "", parent), checkpoint_of(number, values), {}, versions)  # type: ignore[arg-type]


def test_pruning_a_lost_checkpoint_removes_nothing_else(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    put(saver, 1)
    before = Rewound(behind, redis_prefix)
    put(saver, 2)
    gone = [
        node.stamp
        for node in saver.engine.run(store_of(saver).read_graph("t")).nodes
        if node.address.checkpoint_id == "0002"
    ]
    before.rewind()
    put(saver, 3)
    saver.engine.run(store_of(saver).remove_entries("t", gone, {}))
    assert [id_of(found) for found in saver.list(at())] == ["0003", "0001"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda behind, key: behind.hset(key, "thread", b"\xff"),
        lambda behind, key: behind.hdel(key, "thread"),
        lambda behind, key: (behind.delete(key), behind.set(key, "something else")),
    ],
    ids=["unreadable", "missing", "another type"],
)
def test_a_damaged_thread_is_named(
    opened: Open, behind: Any, redis_prefix: str, damage: End, caplog: pytest.LogCaptureFixture
) -> None:
    """Previously, listings silently omitted it, and removed it from the index."""
    saver, others = opened(), same_bucket("t", 2)
    for thread in (others[0], "t", others[1]):
        put(saver, 1, thread)
    damage(behind, names.Keys(redis_prefix).thread("t").encode())
    for _ in range(2):
        assert [info.thread_id for info in saver.threads()] == sorted(others, reverse=True)
    assert "thread 't' is not listed" in caplog.text
    assert {(finding.kind, finding.thread_id) for finding in saver.check()} == {("lost", "t")}
    with pytest.raises(CorruptStore, match="'t'"):
        saver.retention.erase(user_id="nobody", dry_run=True)


def test_a_damaged_thread_can_be_deleted(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    put(saver, 1)
    behind.hset(names.Keys(redis_prefix).thread("t"), "thread", "?")
    with pytest.raises(CorruptStore, match="thread:t"):
        put(saver, 2)
    saver.delete_thread("t")
    assert [*saver.threads(), *saver.check()] == []
    put(saver, 1)
    assert [info.thread_id for info in saver.threads()] == ["t"]
