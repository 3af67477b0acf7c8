"""Cut connections: each verb takes effect once, or reports that it did or may not."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from servers import Proxy
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.places import ON_SERVERS, Place
from support.savers import each_face

from langgraph_keel import CheckpointConflict, KeelSaver, MemorySaver, RedisSaver, StoreUnavailable, ThreadExists
from langgraph_keel.testing.rig import FACES, Face

pytestmark = pytest.mark.slow

NAMES = [f"{number:08}" for number in range(1, 33)]
ITEMS = [f"{name} {'x' * 200}" for name in NAMES]
LATEST = config_for("t", NAMES[30])
# "Bounded": less than the 30 seconds of a driver's timeout, since a cut connection is noticed immediately.
BOUND = 15.0


def metadata_of(number: int) -> dict[str, Any]:
    return {**METADATA, "run_id": f"run {number % 4}"}


def value_at(number: int) -> dict[str, Any]:
    """Return a list that grows by one.

    At 32 items, a write also packs the 31 rows before it.
    """
    return {"list": ITEMS[:number], "number": number}


def grow(face: Face, number: int) -> None:
    parent = config_for("t", NAMES[number - 2] if number > 1 else None)
    face.put(parent, checkpoint_of(NAMES[number - 1], value_at(number)), metadata_of(number))


def put_again(face: Face) -> None:
    config = config_for("t", NAMES[29])
    face.put(config, checkpoint_of(NAMES[30], {"list": ["another"]}), metadata_of(31))


def begin(face: Face) -> None:
    """Create a thread of 31 checkpoints by four runs, with writes."""
    for number in range(1, 32):
        grow(face, number)
    face.put_writes(LATEST, [("a", 1), ("b", [2])], "task")


VERBS: dict[str, Callable[[Face], object]] = {
    "put": lambda face: grow(face, 32),
    "put first": lambda face: face.put(config_for("new"), checkpoint_of("1", {"list": ITEMS}), METADATA),
    "put again": put_again,
    "put_writes": lambda face: face.put_writes(LATEST, [("c", 3), ("__interrupt__", "why")], "other"),
    "put_writes again": lambda face: face.put_writes(LATEST, [("a", 1), ("b", [2])], "task"),
    "delete_thread": lambda face: face.delete_thread("t"),
    "copy_thread": lambda face: face.copy_thread("t", "copy"),
    "prune": lambda face: face.prune(["t"]),
    "delete_for_runs": lambda face: face.delete_for_runs(["run 1", "run 3"]),
}
THREADS = ("t", "copy", "new")
Content = dict[str, list[CheckpointTuple]]


def content_of(saver: KeelSaver) -> Content:
    """Return all data that can be read."""
    threads = sorted(info.thread_id for info in saver.threads())
    assert set(threads) <= set(THREADS)
    return {thread: list(saver.list({"configurable": {"thread_id": thread}})) for thread in threads}


def intended(verb: Callable[[Face], object]) -> tuple[Content, Content]:
    """Return the reference model's content before and after a verb."""
    with MemorySaver() as saver:
        face = FACES["sync"](lambda: saver)
        begin(face)
        before = content_of(saver)
        verb(face)
        return before, content_of(saver)


@contextmanager
def faces(name: str, saver: KeelSaver) -> Iterator[Face]:
    face = FACES[name](lambda: saver)
    try:
        yield face
    finally:
        face.close()


@contextmanager
def begun(place: Place, name: str) -> Iterator[tuple[Face, Proxy]]:
    """Yield a face with an open connection through a proxy, and a full memo."""
    with place.open() as direct:
        for thread in THREADS:
            direct.delete_thread(thread)
        begin(FACES["sync"](lambda: direct))
    with place.proxy() as proxy, place.through(proxy).open() as saver, faces(name, saver) as face:
        face.read(config_for("t"))
        yield face, proxy


def cut_at(proxy: Proxy, side: str, number: int) -> None:
    (proxy.cut_before_request if side == "before the request" else proxy.cut_before_reply)(number)


@ON_SERVERS
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("side", ["before the request", "before the reply"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_cut_verb_is_retried_and_takes_effect_once(place: Place, verb: str, side: str, face: str) -> None:
    """Cut at each request of the verb: it is sent again, with the same result."""
    _, after = intended(VERBS[verb])
    for number in count(1):
        with begun(place, face) as (cutting, proxy):
            asked = proxy.requests
            cut_at(proxy, side, number)
            VERBS[verb](cutting)
            is_over = proxy.requests - asked < number
            grow_on(cutting, after)
        with place.open() as direct:
            assert content_of(direct) == after, f"cut {side} {number}"
        if is_over:
            break
    assert number > 1


def grow_on(face: Face, after: Content) -> None:
    """Check that the same saver still reads the current data."""
    for thread in THREADS:
        found = face.get_tuple(config_for(thread))
        assert (found and found.checkpoint) == (after[thread][0].checkpoint if thread in after else None)


@ON_SERVERS
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("side", ["before the request", "before the reply"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_cannot_reach_the_server_raises_store_unavailable(
    place: Place, verb: str, side: str, face: str
) -> None:
    """The retry is cut too: a named error in bounded time, and no partial write.

    The saver stays usable.
    """
    before, after = intended(VERBS[verb])
    with begun(place, face) as (cutting, proxy):
        cut_at(proxy, side, 1)
        proxy.cut_at_random(random.Random(0), 1.0)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            VERBS[verb](cutting)
        assert time.monotonic() - began < BOUND
        proxy.cut_at_random(random.Random(0), 0.0)
        with place.open() as direct:
            assert content_of(direct) in ([before] if side == "before the request" else [before, after])
        finish(verb, cutting)
        grow_on(cutting, after)
    with place.open() as direct:
        assert content_of(direct) == after


def finish(verb: str, face: Face) -> None:
    """Repeat the verb after its error, which is harmless if it had been done."""
    try:
        VERBS[verb](face)
    except ThreadExists:
        assert verb == "copy_thread"


def put_after_head(face: Face, checkpoint_id: str, item: str) -> None:
    """Store a checkpoint that must follow the head, as a run's does."""
    found = face.get_tuple(config_for("t"))
    assert found
    values = {"list": [*found.checkpoint["channel_values"]["list"], item]}
    face.put(found.config, checkpoint_of(checkpoint_id, values), METADATA)


@ON_SERVERS
@pytest.mark.parametrize("face", FACES)
def test_a_write_pruned_before_its_retry_is_reported_as_maybe_stored(place: Place, face: str) -> None:
    """After a lost reply, another process continues and prunes; the write is retried."""
    with begun(place, face) as (cutting, proxy), place.open() as direct:
        put_after_head(cutting, "0000004", "before")

        def continue_and_prune() -> None:
            proxy.meanwhile = None
            put_after_head(FACES["sync"](lambda: direct), "0000006", "later")
            direct.prune(["t"])

        proxy.meanwhile = continue_and_prune
        proxy.cut_before_reply(2)
        with pytest.raises(CheckpointConflict) as caught:
            put_after_head(cutting, "0000005", "mine")
        assert proxy.meanwhile is None
        held = direct.get_tuple(config_for("t"))
        assert held
        assert held.checkpoint["channel_values"]["list"][-2:] == ["mine", "later"]
    conflict = pickle.loads(pickle.dumps(caught.value))
    assert conflict.may_be_stored
    assert "was not stored" not in str(conflict)
    assert "may have been stored" in str(conflict)
    with pytest.raises(CheckpointConflict):
        conflict.input_again("given")


@ON_SERVERS
@pytest.mark.parametrize("face", FACES)
def test_a_conflict_without_a_retry_was_not_stored(place: Place, face: str) -> None:
    with begun(place, face) as (losing, _), place.open() as direct:
        config = losing.get_tuple(config_for("t")).config  # type: ignore[union-attr]
        put_after_head(FACES["sync"](lambda: direct), "0000005", "quicker")
        direct.prune(["t"])
        with pytest.raises(CheckpointConflict) as caught:
            losing.put(config, checkpoint_of("0000004", {"list": ITEMS}), METADATA)
    assert not caught.value.may_be_stored
    assert "was not stored" in str(caught.value)
    assert caught.value.input_again("given") == "given"


@asynccontextmanager
async def by_own_client(place: Place, face: str) -> AsyncIterator[KeelSaver]:
    """Yield a saver on the user's client, which retries by itself without notice."""
    more, pauses = {"prefix": place.options["prefix"], "durability": "any"}, ConstantBackoff(0.05)
    if face == "sync":
        client = Redis.from_url(place.url, retry=Retry(pauses, 3))
        with client, RedisSaver(client=client, **more) as saver:
            yield saver
    else:
        async_client = AsyncRedis.from_url(place.url, retry=AsyncRetry(pauses, 3))
        async with async_client, RedisSaver(async_client=async_client, **more) as saver:
            yield saver


@pytest.mark.parametrize("place", ["redis"], indirect=True)
@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("is_pruned", [True, False])
@each_face
async def test_with_the_callers_client_a_conflict_may_be_stored_after_a_prune(
    place: Place, face: str, is_pruned: bool, is_lost: bool
) -> None:
    """Keel cannot know whether the client retried.

    The thread shows it, unless it was pruned.
    """
    with place.open() as direct, place.proxy() as proxy:
        begin(FACES["sync"](lambda: direct))
        theirs = FACES["sync"](lambda: direct)
        async with by_own_client(place.through(proxy), face) as saver:

            async def put(config: Any, checkpoint_id: str) -> Any:
                given: Any = config, checkpoint_of(checkpoint_id, {"list": [checkpoint_id]}), METADATA, {}
                return await saver.aput(*given) if face == "async" else saver.put(*given)

            before = await put(LATEST, "0000004")

            def go_on() -> None:
                proxy.meanwhile = None
                put_after_head(theirs, "0000006", "later")
                if is_pruned:
                    direct.prune(["t"])

            if is_lost:
                proxy.meanwhile = go_on
                proxy.cut_before_reply(1)
            else:
                go_on()
            conflict = None
            try:
                await put(before, "0000005")
            except CheckpointConflict as error:
                conflict = error
        held = direct.get_tuple(config_for("t"))
        assert held
        assert held.checkpoint["channel_values"]["list"] == ["0000005" if is_lost else "0000004", "later"]
        if is_lost and not is_pruned:
            assert conflict is None
        else:
            assert conflict
            assert conflict.may_be_stored == is_pruned
            assert ("was not stored" in str(conflict)) != is_pruned
