"""RedisSaver and its server's settings: durability, access, full, replica, absent."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import servers
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError, TimeoutError
from redis.retry import Retry
from support.backends.redis_steps import put

from langgraph_keel import (
    AccessDenied,
    DurabilityWarning,
    ReadOnlyStore,
    RedisSaver,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    UnsafeStore,
)
from langgraph_keel.backends import redis as redis_backend
from langgraph_keel.backends.redis import Durability
from langgraph_keel.backends.redis import connection as opening
from langgraph_keel.backends.redis import entries as names
from langgraph_keel.engine.cells import Shelf, Swapped
from langgraph_keel.testing.contract_cells import cell
from langgraph_keel.testing.rig import FACES, Face, at, checkpoint_of, id_of, values_of

SHELF = Shelf("t", "tool")


@pytest.fixture(params=list(FACES))
def caller_of(request: pytest.FixtureRequest) -> Iterator[Callable[[RedisSaver], Face]]:
    """Return a face on a saver, and close both at the end."""
    made: list[tuple[Face, RedisSaver]] = []

    def caller(saver: RedisSaver) -> Face:
        made.append((FACES[request.param](lambda: saver), saver))
        return made[-1][0]

    yield caller
    for face, saver in made:
        face.close()
        saver.close()


Caller = Callable[[RedisSaver], Face]


@contextmanager
def running(*options: str) -> Iterator[tuple[str, Any]]:
    """Start the test's own server, with a client that bypasses the saver."""
    with servers.redis(options, own=True) as server, Redis.from_url(server.url) as behind:
        yield server.url, behind


# -- durability ------------------------------------------------------------------------------------------------

KEEPS = {
    "disk": (("yes", "always"), "on disk"),
    "second": (("yes", "everysec"), "lost by a power cut within about 1 s"),
    "kernel": (("yes", "no"), "lost by a power cut within about 30 s"),
    "memory": (("no", "everysec"), "in memory only"),
}


@pytest.mark.parametrize("name", KEEPS)
def test_a_server_with_weak_durability_causes_a_warning(caller_of: Caller, name: str) -> None:
    (appendonly, appendfsync), words = KEEPS[name]
    with running("--appendonly", appendonly, "--appendfsync", appendfsync) as (url, _):
        saver = RedisSaver(url)
        caller = caller_of(saver)
        if name == "disk":
            caller.put(at(), checkpoint_of("1", {"a": 1}))
        else:
            with pytest.warns(DurabilityWarning, match=f"{words}.*appendonly yes and appendfsync always.*'any'"):
                caller.put(at(), checkpoint_of("1", {"a": 1}))
        # Once per process and server; and not at all if the setting is good enough.
        caller_of(RedisSaver(url)).put(at(), checkpoint_of("2", {"a": 1}))
        opening.warned_of.clear()
        caller_of(RedisSaver(url, durability="any")).put(at(), checkpoint_of("3", {"a": 1}))
        assert saver.durability() == Durability(appendonly, appendfsync, words, "noeviction")


async def test_adurability_describes_the_server(redis_url: str, redis_prefix: str) -> None:
    async with RedisSaver(redis_url, prefix=redis_prefix) as saver:
        assert (await saver.adurability()).is_on_disk


def test_durability_is_read_from_info_without_config() -> None:
    with running("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru") as (url, behind):
        allowed = {"enabled": True, "passwords": ["+p"], "keys": ["*"], "categories": ["+@all"]}
        behind.acl_setuser("app", **allowed, commands=["-config"])
        with pytest.warns(DurabilityWarning, match="unknown durability"):
            found = _durability(url.replace("//", "//app:p@"))
        assert found == Durability("yes", "unknown", "unknown", "allkeys-lru")
        behind.acl_setuser("app", **allowed, commands=["-config", "-info"])
        opening.warned_of.clear()
        with pytest.warns(DurabilityWarning, match="unknown durability"):
            assert _durability(url.replace("//", "//app:p@")) == Durability()


def _durability(url: str) -> Durability:
    with RedisSaver(url) as saver:
        return saver.durability()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(caller_of: Caller, policy: str) -> None:
    with running(*servers.DURABLE, "--maxmemory-policy", policy) as (url, behind):
        caller = caller_of(RedisSaver(url))
        for _ in range(2):
            with pytest.raises(UnsafeStore, match=f"{policy}.*noeviction.*allow_eviction"):
                caller.put(at(), checkpoint_of("1", {"a": 1}))
        assert caller.get_tuple(at()) is None
        with pytest.raises(UnsafeStore):
            RedisSaver(url).setup()
        assert behind.dbsize() == 0
        caller_of(RedisSaver(url, allow_eviction=True)).put(at(), checkpoint_of("1", {"a": 1}))
        assert id_of(caller.get_tuple(at())) == "1"


# -- access ----------------------------------------------------------------------------------------------------


def test_a_wrong_password_raises_access_denied(caller_of: Caller) -> None:
    with servers.redis(password="right") as server:
        for url in (server.url.replace("right", "wrong"), server.url.replace(":right@", "")):
            caller = caller_of(RedisSaver(url))
            began = time.monotonic()
            with pytest.raises(AccessDenied) as caught:
                caller.put(at(), checkpoint_of("1", {"a": 1}))
            assert "wrong" not in str(caught.value)
            with pytest.raises(AccessDenied):
                caller.get_tuple(at())
            assert time.monotonic() - began < 5
        caller_of(RedisSaver(server.url)).put(at(), checkpoint_of("1", {"a": 1}))


@pytest.mark.parametrize("lacking", ["evalsha", "hset", "zadd", "keys"])
def test_a_user_without_rights_gets_access_denied(caller_of: Caller, lacking: str) -> None:
    with running(*servers.DURABLE) as (url, behind):
        with RedisSaver(url) as saver:
            put(saver, 1)
        before = behind.hgetall(names.Keys("keel").thread("t"))
        keys = "theirs:*" if lacking == "keys" else "*"
        commands = [] if lacking == "keys" else [f"-{lacking}", "-eval"][: 1 + (lacking == "evalsha")]
        behind.acl_setuser("app", enabled=True, passwords=["+p"], keys=[keys], categories=["+@all"], commands=commands)
        caller = caller_of(RedisSaver(url.replace("//", "//app:p@")))
        with pytest.raises(AccessDenied):
            caller.put(at(), checkpoint_of("0002", {"a": 1}, ts="2027-01-01T00:00:00+00:00"))
        assert behind.hgetall(names.Keys("keel").thread("t")) == before
        with RedisSaver(url) as saver:
            assert [info.thread_id for info in saver.threads()] == ["t"]


def test_the_documented_rights_are_sufficient() -> None:
    page = Path(redis_backend.__file__).with_name("README.md").read_text(encoding="utf-8")
    (rights,) = re.findall(r"an ACL user with `([^`]+)`", page)
    with running(*servers.DURABLE) as (url, behind):
        if int(behind.info("server")["redis_version"].partition(".")[0]) < 7:
            rights = rights.replace(" +config|get", "")
        behind.execute_command("ACL", "SETUSER", "agent", "on", ">p", "resetchannels", *rights.split())
        with RedisSaver(url.replace("//", "//agent:p@"), durability="any") as saver:
            for thread in ("t", "u"):
                put(saver, 1, thread)
                put(saver, 2, thread)
            assert id_of(saver.get_tuple(at())) == "0002"
            saver.labels.set(at(), "here")
            saver.set_ttl("t", 100)
            saver.prune(["t"])
            saver.copy_thread("t", "copy")
            saver.delete_thread("u")
            saver.retention.reclaim_space()
            assert {info.thread_id for info in saver.threads()} == {"t", "copy"}
            assert len(list(saver.list(None))) == 2
            listening: Any = saver._listen()  # private: as a worker does
            with closing(listening) as heard:
                saver._notify()  # private: as an approval does
                heard.wait(5)


@pytest.mark.parametrize("lacking", ["hset", "zadd", "hget"])
def test_a_user_without_rights_cannot_swap_cells(caller_of: Caller, lacking: str) -> None:
    with running(*servers.DURABLE) as (url, behind):
        mine = caller_of(RedisSaver(url))
        mine.verb("swap_cell", SHELF, "k", None, cell("1"))
        commands = [f"-{lacking}"]
        behind.acl_setuser("app", enabled=True, passwords=["+p"], keys=["*"], categories=["+@all"], commands=commands)
        caller = caller_of(RedisSaver(url.replace("//", "//app:p@"), ttl=100))
        with pytest.raises(AccessDenied):
            caller.verb("swap_cell", SHELF, "other", None, cell("2"))
        assert mine.verb("read_cells", SHELF, ["k"]) == {"k": cell("1")}
        assert [key for key, _ in mine.verb("list_cells", SHELF, "", None, 5)] == ["k"]


# -- full, read-only, absent -----------------------------------------------------------------------------------


def test_a_server_out_of_memory_refuses_writes(caller_of: Caller) -> None:
    with running(*servers.DURABLE) as (url, behind):
        caller = caller_of(RedisSaver(url))
        for n in range(1, 20):
            caller.put(at(), checkpoint_of(f"{n:04}", {"list": [f"{n}" * 100] * n}), {"run_id": str(n % 2)})
        behind.config_set("maxmemory", 1)
        thread = next(behind.scan_iter(match="*:thread:t"))
        before = behind.dump(thread)
        for call in (
            lambda: caller.put(at(), checkpoint_of("new", {"list": ["x" * 1000]})),
            lambda: caller.put(at(), checkpoint_of("0019", {"list": ["x" * 1000]})),
            lambda: caller.put_writes(at("t", "", "0019"), [("a", 1)], "task"),
            lambda: caller.copy_thread("t", "copy"),
        ):
            with pytest.raises(StoreFull):
                call()
        assert behind.dump(thread) == before
        assert id_of(caller.get_tuple(at())) == "0019"
        # Operations that free memory are not refused.
        caller.delete_for_runs(["0"])
        caller.prune(["t"])
        assert [id_of(found) for found in caller.list(at())] == ["0019"]
        caller.delete_thread("t")
        assert not list(behind.scan_iter(match="*:thread:*"))


def test_a_server_out_of_memory_refuses_swaps(caller_of: Caller) -> None:
    with running(*servers.DURABLE) as (url, behind):
        caller = caller_of(RedisSaver(url))
        for key in "ab":
            caller.verb("swap_cell", SHELF, key, None, cell("1"))
        behind.config_set("maxmemory", 1)
        for key, expected in (("a", "1"), ("c", None)):
            with pytest.raises(StoreFull):
                caller.verb("swap_cell", SHELF, key, expected, cell("2"))
        assert caller.verb("swap_cell", SHELF, "a", None, cell("2")) == Swapped(False, cell("1"))
        # Operations that free memory are not refused.
        assert caller.verb("swap_cell", SHELF, "a", "1", None).done
        assert caller.verb("remove_cells", SHELF, {"b": "1"}) == 1
        assert caller.verb("list_cells", SHELF, "", None, 5) == []


def test_a_refused_swap_writes_nothing(caller_of: Caller) -> None:
    with running(*servers.DURABLE) as (url, behind):
        caller = caller_of(RedisSaver(url, ttl=100))
        caller.verb("swap_cell", SHELF, "k", None, cell("1", origin="t"))
        before = behind.info("persistence")["rdb_changes_since_last_save"]
        for expected, new in ((None, cell("2")), ("0", None), ("0", cell("1"))):
            caller.verb("swap_cell", SHELF, "k", expected, new)
        assert behind.info("persistence")["rdb_changes_since_last_save"] == before


@pytest.mark.slow
def test_a_replica_can_be_read(caller_of: Caller) -> None:
    with running(*servers.DURABLE) as (url, behind), running(*servers.DURABLE) as (replica_url, replica):
        with RedisSaver(url) as saver:
            put(saver, 1)
            saver.put_writes(at("t", "", "0001"), [("a", 1)], "task")
        replica.replicaof("127.0.0.1", behind.connection_pool.connection_kwargs["port"])
        until(lambda: replica.exists("keel:keel") and replica.info("replication")["master_link_status"] == "up")
        for read_only in (True, False):
            caller = caller_of(RedisSaver(replica_url, read_only=read_only))
            assert id_of(caller.get_tuple(at())) == "0001"
            assert [id_of(found) for found in caller.list(None)] == ["0001"]
            assert [info.thread_id for info in caller.saver.threads()] == ["t"]
            with pytest.raises(ReadOnlyStore):
                caller.put(at(), checkpoint_of("2", {"a": 1}))


def answers(behind: Any) -> bool:
    try:
        return bool(behind.ping())
    except ResponseError:
        return False


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_is_down_raises_store_unavailable(caller_of: Caller) -> None:
    caller = caller_of(RedisSaver(f"redis://127.0.0.1:{servers.free_port()}/0", timeout=2))
    for call in (lambda: caller.put(at(), checkpoint_of("1", {"a": 1})), lambda: caller.get_tuple(at())):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            call()
        assert time.monotonic() - began < 8


@pytest.mark.slow
def test_a_silent_server_raises_store_unavailable(caller_of: Caller) -> None:
    with servers.redis(own=True) as server:
        caller = caller_of(RedisSaver(server.url, timeout=2))
        caller.put(at(), checkpoint_of("1", {"a": 1}))
        with Redis.from_url(server.url, socket_timeout=None) as behind:
            behind.execute_command("CLIENT", "PAUSE", 12_000)
        began = time.monotonic()
        for call in (lambda: caller.put(at(), checkpoint_of("2", {"a": 1})), lambda: caller.get_tuple(at())):
            with pytest.raises(StoreUnavailable, match="timeout"):
                call()
        assert time.monotonic() - began < 11
        time.sleep(began + 12.2 - time.monotonic())
        caller.put(at(), checkpoint_of("3", {"a": 1}))
        assert id_of(caller.get_tuple(at())) == "3"


@pytest.mark.slow
def test_concurrent_calls_to_a_silent_server_fail_together() -> None:
    """Ten first calls at the same time fail after one timeout, not after ten."""
    with servers.redis(own=True) as server, RedisSaver(server.url, timeout=2, durability="any") as saver:
        with Redis.from_url(server.url, socket_timeout=None) as behind:
            behind.execute_command("CLIENT", "PAUSE", 60_000)
        began = time.monotonic()
        with ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(saver.get_tuple, at()) for _ in range(10)]
        assert {type(call.exception()) for call in calls} == {StoreUnavailable}
        assert time.monotonic() - began < 12


def test_a_server_busy_with_a_script_raises_store_busy(caller_of: Caller) -> None:
    with running(*servers.DURABLE, "--lua-time-limit", "50") as (url, behind):
        caller = caller_of(RedisSaver(url, timeout=5))
        caller.put(at(), checkpoint_of("1", {"a": 1}))
        once = Retry(NoBackoff(), 0)
        with Redis.from_url(url, socket_timeout=0.3, retry=once) as other, pytest.raises(TimeoutError):
            other.eval("while true do end", 0)
        with pytest.raises(StoreBusy, match="BUSY"):
            caller.put(at(), checkpoint_of("2", {"a": 1}))
        behind.script_kill()
        until(lambda: answers(behind))
        caller.put(at(), checkpoint_of("3", {"a": 1}))


def test_a_put_with_a_lost_reply_is_stored_once(caller_of: Caller) -> None:
    states = [{"list": [f"{n}"] * n, "tree": {"n": n}} for n in range(1, 12)]
    with running(*servers.DURABLE) as (url, behind), proxy_of(behind) as proxy:
        caller = caller_of(RedisSaver(proxy.url_for(url)))
        for number, state in enumerate(states, 1):
            breaks = proxy.cut_before_reply if number % 2 else proxy.cut_before_request
            if number > 1:
                breaks()
            caller.put(at(), checkpoint_of(f"{number:04}", state))
        found = list(caller.list(at()))
        assert [values_of(each) for each in found] == states[::-1]
        # Eleven writes, eleven sequence numbers.
        life = behind.hget(names.Keys("keel").thread("t"), "thread")
        assert life.split(b" ")[1:3] == [b"11", b"11"]
        proxy.cut_before_reply(2)
        caller.copy_thread("t", "copy")
        assert [id_of(each) for each in caller.list(at("copy"))] == [id_of(each) for each in found]


def test_a_swap_with_a_lost_reply_is_done_once(caller_of: Caller) -> None:
    with running(*servers.DURABLE) as (url, behind), proxy_of(behind) as proxy:
        caller = caller_of(RedisSaver(proxy.url_for(url)))
        total = "0"
        caller.verb("swap_cell", SHELF, "k", None, cell(total))
        for number in range(1, 8):
            (proxy.cut_before_reply if number % 2 else proxy.cut_before_request)()
            assert caller.verb("swap_cell", SHELF, "k", total, cell(f"{number}")) == Swapped(True)
            total = f"{number}"
        proxy.cut_before_reply()
        assert caller.verb("swap_cell", SHELF, "k", total, None) == Swapped(True)
        assert caller.verb("read_cells", SHELF, ["k"]) == {}


def proxy_of(behind: Any) -> AbstractContextManager[servers.Proxy]:
    return servers.proxy("127.0.0.1", behind.connection_pool.connection_kwargs["port"])


def test_read_only_savers_cause_no_durability_warning(caller_of: Caller) -> None:
    with running("--appendonly", "no") as (url, behind):
        behind.set("keel:keel", 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert caller_of(RedisSaver(url, read_only=True)).get_tuple(at()) is None
