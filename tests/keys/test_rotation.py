"""Rotation of the master key under load: no process fails, and the old key can go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from support.retention.threads import BACKENDS
from support.tiers import sized

from langgraph_keel import KeelSaver, KeyMissing, Keyring, LocalKey, MemorySaver
from langgraph_keel.engine.layers import Layer
from langgraph_keel.keys.methods import describe_backups
from langgraph_keel.stack import Stack, stack_of
from langgraph_keel.testing.faults import Fault, Injected, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of

KEYS = [LocalKey(f"k{number}", bytes(range(number, number + 32))) for number in range(6)]
ALL = [Keyring(key, *(other for other in KEYS if other is not key)) for key in KEYS]
"""Keyrings with each key as the current one, and all others after it."""
WRITERS = 8
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def put(saver: KeelSaver, thread_id: str, number: int) -> None:
    found = saver.get_tuple(at(thread_id))
    values = [] if found is None else found.checkpoint["channel_values"]["list"]
    assert len(values) == number - 1
    metadata: Any = {"source": "loop", "step": number, "parents": {}}
    config = found.config if found else at(thread_id)
    checkpoint: Any = checkpoint_of(f"{number:08}", {"list": [*values, f"item {number}"]})
    config = saver.put(config, checkpoint, metadata, {})
    saver.put_writes(config, [("list", number)], "task")


def length(saver: KeelSaver, thread_id: str) -> int:
    found = saver.get_tuple(at(thread_id))
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == [len(found.checkpoint["channel_values"]["list"])]
    return len(found.checkpoint["channel_values"]["list"])


@each_backend
def test_eight_writers_continue_during_a_rotation(stores: Any, backend: str) -> None:
    store, puts = stores[backend], sized(3, 6, 60)
    store.wipe()
    with store.open(encryption=ALL[0]) as saver:
        put(saver, "before", 1)
        put(saver.for_tenant("acme"), "before", 1)

    is_rotated = Event()

    def write(number: int) -> None:
        for nth in range(1, puts + 1):
            assert nth == 1 or is_rotated.wait(60)
            # A program that keeps its saver, or one that opens it again with any key as the current one.
            with store.open(encryption=ALL[nth % len(ALL)] if number % 2 else ALL[0]) as saver:
                put(saver.for_tenant("acme") if number % 4 == 3 else saver, f"t{number}", nth)
                put(saver, f"{number} {nth}", 1)

    def go_on(number: int) -> None:
        with store.open(encryption=ALL[0]) as saver:
            for nth in range(1, puts + 1):
                assert nth == 1 or is_rotated.wait(60)
                put(saver, f"u{number}", nth)

    rotated = 0
    with ThreadPoolExecutor(WRITERS) as pool:
        working = [pool.submit(write if number < 4 else go_on, number) for number in range(WRITERS)]
        while rotated < 2 or not all(each.done() for each in working):
            with store.open(encryption=ALL[1 + rotated % 5]) as saver:
                saver.keys.rotate()
            rotated += 1
            is_rotated.set()
        for each in working:
            each.result()

    with store.open(encryption=ALL[5]) as saver:
        saver.keys.rotate()
        assert saver.keys.list().is_current
    with store.open(encryption=Keyring(KEYS[5])) as saver:  # with no other keys
        acme = saver.for_tenant("acme")
        assert [length(each, "before") for each in (saver, acme)] == [1, 1]
        assert [length(acme if number == 3 else saver, f"t{number}") for number in range(4)] == [puts] * 4
        assert [length(saver, f"u{number}") for number in range(4, WRITERS)] == [puts] * 4
        threads = [info.thread_id for info in saver.threads()]
        assert len(threads) == 1 + 3 + 4 + 4 * puts
        assert {length(saver, name) for name in threads if " " in name} == {1}
    with store.open(encryption=Keyring(*KEYS[:5])) as saver:
        for each in (saver, saver.for_tenant("acme")):
            with pytest.raises(KeyMissing, match="'k5'"):
                each.get_tuple(at("before"))
    store.wipe()


@each_backend
@pytest.mark.parametrize("lost_reply", [False, True], ids=["before", "after"])
def test_a_rotation_interrupted_at_any_request_can_be_repeated(stores: Any, backend: str, lost_reply: bool) -> None:
    store, cut, was_cut = stores[backend], 0, True
    old, both, new = Keyring(KEYS[0]), Keyring(KEYS[1], KEYS[0]), Keyring(KEYS[1])
    while was_cut:
        store.wipe()
        with store.open(encryption=old) as saver:
            for each in (saver, saver.for_tenant("acme"), saver.for_tenant("bolt")):
                put(each, "t", 1)
        was_cut = False
        with store.open(encryption=both) as saver:
            try:
                with_tap(saver, Fault(cut, lost_reply=lost_reply)).keys.rotate()
            except Injected:
                was_cut = True
            assert [length(each, "t") for each in (saver, saver.for_tenant("acme"), saver.for_tenant("bolt"))] == [
                1
            ] * 3
        with store.open(encryption=both) as saver:
            saver.keys.rotate()
            assert saver.keys.list() == ("k1", "k1", "")
        with store.open(encryption=new) as saver:
            assert [length(each, "t") for each in (saver, saver.for_tenant("acme"), saver.for_tenant("bolt"))] == [
                1
            ] * 3
        cut += sized(3, 3, 1)
    assert cut > 5
    store.wipe()


class Above(Layer):
    """A layer above the sealing layer."""

    def of_tenant(self, tenant: str) -> Above:
        return Above(self.inner.of_tenant(tenant))


def test_keys_are_found_below_another_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    build = stack_of
    monkeypatch.setattr("langgraph_keel.saver.stack_of", lambda *args: _with_layer(build(*args)))
    with MemorySaver(encryption=ALL[0]) as saver:
        for view in (saver, saver.for_tenant("acme")):
            put(view, "t", 1)
            assert type(view.engine.session.store) is Above
            assert view.keys.list().needed == "k0"
        assert not saver.keys.renew().failed
        assert saver.engine.run(describe_backups(saver.engine.session, ALL[0]))


def _with_layer(stack: Stack) -> Stack:
    return replace(stack, store=Above(stack.store))
