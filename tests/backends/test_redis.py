"""RedisSaver: names and keys, ownership of keys, scripts, and round trips."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import servers
from hypothesis import given
from hypothesis import strategies as st
from support.backends.redis_steps import Open, behind, keys, opened, put

from langgraph_keel import (
    InvalidInput,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    RedisSaver,
    StoreClosed,
)
from langgraph_keel.backends.redis import entries as names
from langgraph_keel.testing.machine import chat
from langgraph_keel.testing.rig import FACES, at, checkpoint_of, id_of, values_of

__all__ = ["behind", "opened"]  # fixtures
EVIL = ["a", "a:b", "a%3Ab", "{a}", "}{", "a b", "a\x00b", "a\nb", "ä", "%", "#1", "", "a:", ":a", "thread", "\x7f"]
EVIL += ["a\xa0b", "\u3000", "\x85", "\u2028"]  # Python's white space


# -- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encode", [names.name, names.word, names.name_or_mark])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_encoded_names_are_decoded_unchanged(encode: Callable[[str], str], text: str) -> None:
    assert names.parse_name(encode(text)) == text
    assert not re.search(r"[\x00-\x20\x7f]", encode(text))


@given(ids=st.lists(st.text(st.sampled_from(":%{}#~ \x00aé"), max_size=4), min_size=3, max_size=3))
def test_lists_of_ids_are_encoded_unambiguously(ids: list[str]) -> None:
    assert list(map(names.parse_name, ":".join(map(names.name, ids)).split(":"))) == ids


@given(st.lists(st.tuples(*[st.text(st.sampled_from("\x00\x01\x02a~é𐀀"), max_size=3)] * 3), min_size=2, max_size=2))
def test_members_of_the_index_are_sorted_by_time_and_id(lives: list[tuple[str, ...]]) -> None:
    first, second = lives
    members = [names.member_of(*life) for life in lives]
    assert (members[0] < members[1]) == (first < second)
    assert [tuple(names.parse_member(member)) for member in members] == lives


@pytest.mark.parametrize("prefix", ["", "a b", "{a}", "a}", "a%", "a\n", "#"])
def test_a_prefix_that_would_break_keys_is_refused(redis_url: str, prefix: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        RedisSaver(redis_url, prefix=prefix)


def test_ids_of_any_form_stay_distinct(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    ids = [text for text in EVIL if text]
    for thread in ids:
        for number, ns in enumerate(EVIL):
            for checkpoint_id in (ns or "empty", f"{ns}:{thread}"):
                values = {channel: [thread, ns, channel] for channel in EVIL[number : number + 2]}
                saver.put(at(thread, ns), checkpoint_of(checkpoint_id, values), {}, {})  # type: ignore[arg-type]
            saver.put_writes(at(thread, ns, ns or "empty"), [(ns, thread)], f"task {thread}", f"~ {ns}")
    assert len(keys(behind, redis_prefix, ":thread:")) == len(ids)
    for thread in ids:
        found = {
            (each.config["configurable"]["checkpoint_ns"], id_of(each)): each for each in saver.list(at(thread, None))
        }
        assert found.keys() == {(ns, each) for ns in EVIL for each in (ns or "empty", f"{ns}:{thread}")}
        for (ns, named), each in found.items():
            assert all(value == [thread, ns, channel] for channel, value in values_of(each).items())
            written = [(f"task {thread}", ns, thread)] if named == (ns or "empty") else []
            assert each.pending_writes == written
    assert sorted(info.thread_id for info in saver.threads()) == sorted(ids)


def test_a_thread_can_be_read_in_redis_cli(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    put(saver, 1)
    saver.put(at("t", "", "0001"), checkpoint_of("0002", {"list": chat(4)}), {}, {})  # type: ignore[arg-type]
    [key] = keys(behind, redis_prefix, ":thread:")
    assert re.fullmatch(rf"{redis_prefix}:{{[0-9a-f]{{2}}}}:thread:t", key.decode())
    fields = behind.hgetall(key)
    assert set(fields) >= {b"thread", b"head:", b"id::0001", b"id::0002", b"entry:1", b"entry:2", b"end::list"}
    line = fields[b"entry:2"].partition(b"\n")[0].decode()
    assert re.fullmatch(r"[0-9a-f]{8} trunk  0002 #1  2026-01-01T00:00:00\+00:00 [0-9a-f]{8},3 list:2:0-4", line)


def test_stores_with_other_prefixes_do_not_see_each_other(opened: Open, redis_prefix: str) -> None:
    inner, outer = opened(prefix=f"{redis_prefix}:inner"), opened()
    put(inner, 1)
    put(outer, 2, "mine")
    assert [info.thread_id for info in inner.threads()] == ["t"]
    assert [info.thread_id for info in outer.threads()] == ["mine"]


# -- ownership of keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["users:1", "{00}:threadz", "{zz}:threads", "thread:t"])
def test_keys_of_other_programs_are_not_touched(opened: Open, behind: Any, redis_prefix: str, key: str) -> None:
    behind.set(f"{redis_prefix}:{key}", "theirs")
    with pytest.raises(NotAKeelStore, match=re.escape(repr(f"{redis_prefix}:{key}"))):
        put(opened(), 1)
    with pytest.raises(NotAKeelStore):
        opened().setup()
    assert keys(behind, redis_prefix, "") == [f"{redis_prefix}:{key}".encode()]
    assert opened().get_tuple(at()) is None


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", ["string", "list", "hash"])
def test_a_key_that_is_not_a_thread_is_refused(
    opened: Open, behind: Any, redis_prefix: str, kind: str, face: str
) -> None:
    saver = opened()
    saver.setup()
    key = names.Keys(redis_prefix).thread("t")
    {"string": lambda: behind.set(key, "x"), "list": lambda: behind.lpush(key, "x")}.get(
        kind, lambda: behind.hset(key, "name", "x")
    )()
    before = behind.dump(key)
    caller = FACES[face](lambda: saver)
    calls: list[Callable[[], object]] = [
        lambda: caller.put(at(), checkpoint_of("1", {"a": [1]})),
        lambda: caller.put_writes(at("t", "", "1"), [("a", 1)], "task"),
        lambda: caller.get_tuple(at()),
        lambda: list(caller.list(at())),
        lambda: caller.delete_thread("t"),
        lambda: caller.copy_thread("t", "u"),
        lambda: caller.copy_thread("u", "t"),
        lambda: caller.prune(["t"]),
        lambda: saver.set_ttl("t", 1),
    ]
    for call in calls:
        with pytest.raises(NotAKeelStore):
            call()
    assert behind.dump(key) == before
    assert len(keys(behind, redis_prefix, "")) == 2
    caller.close()


def test_a_newer_format_is_refused(opened: Open, behind: Any, redis_prefix: str) -> None:
    put(opened(), 1)
    behind.set(f"{redis_prefix}:keel", 2)
    for call in (lambda: put(opened(), 2), lambda: opened().get_tuple(at()), lambda: opened().setup()):
        with pytest.raises(NewerFormat, match="upgrade"):
            call()
    behind.set(f"{redis_prefix}:keel", "tide")
    with pytest.raises(NotAKeelStore):
        opened().get_tuple(at())


def test_a_missing_format_mark_is_restored_by_a_put(opened: Open, behind: Any, redis_prefix: str) -> None:
    put(opened(), 1)
    behind.delete(f"{redis_prefix}:keel")
    put(opened(), 2)
    assert behind.get(f"{redis_prefix}:keel") == b"1"


def test_reading_creates_no_keys(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    assert saver.get_tuple(at()) is None
    assert [*saver.list(None), *saver.threads()] == []
    assert keys(behind, redis_prefix, "") == []
    saver.setup()
    saver.setup()
    assert keys(behind, redis_prefix, "") == [f"{redis_prefix}:keel".encode()]


def test_auto_setup_false_creates_no_store(opened: Open) -> None:
    with pytest.raises(NotSetUp, match="setup"):
        put(opened(auto_setup=False), 1)
    with pytest.raises(NotFound):
        opened(read_only=True).get_tuple(at())
    saver = opened(auto_setup=False)
    saver.setup()
    put(saver, 1)
    put(opened(auto_setup=False), 2)


def test_read_only_writes_nothing(opened: Open, behind: Any, redis_prefix: str) -> None:
    put(opened(), 1)
    behind.delete(names.Keys(redis_prefix).thread("t"))
    put(opened(), 2, "u")
    reader = opened(read_only=True, refresh_ttl_on_read=True, ttl=5)
    assert id_of(reader.get_tuple(at("u"))) == "0002"
    # One was deleted by hand: it remains in the index.
    assert [info.thread_id for info in reader.threads()] == ["u"]
    assert behind.zcard(f"{redis_prefix}:{{{names.bucket_of('t')}}}:threads") == 1
    assert behind.pttl(names.Keys(redis_prefix).thread("u")) == -1
    for call in (lambda: put(reader, 3), lambda: reader.delete_thread("u"), lambda: reader.set_ttl("u", 1)):
        with pytest.raises(ReadOnlyStore):
            call()


# -- scripts and round trips -----------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_scripts_are_sent_again_after_a_script_flush(opened: Open, behind: Any, face: str) -> None:
    saver = opened()
    caller = FACES[face](lambda: saver)
    for number in range(1, 4):
        behind.script_flush()
        caller.put(at(), checkpoint_of(f"{number}", {"list": chat(number)}))
        behind.script_flush()
        assert len(values_of(caller.read(at()))["list"]) == number
        behind.script_flush()
        assert len(list(caller.list(None))) == number
    caller.close()


@pytest.mark.parametrize("face", FACES)
def test_each_operation_takes_one_round_trip_on_the_wire(redis_url: str, redis_prefix: str, face: str) -> None:
    host, port = re.fullmatch(r"redis://(.*):(\d+)/0", redis_url).groups()  # type: ignore[union-attr]
    with servers.proxy(host, int(port)) as proxy:
        saver = RedisSaver(proxy.url_for(redis_url), prefix=redis_prefix, ttl=100)
        caller = FACES[face](lambda: saver)
        calls: list[Callable[[int], object]] = [
            lambda n: caller.put(at(), checkpoint_of(f"{n:04}", {"list": chat(40 + n), "tree": {"n": n}})),
            lambda n: caller.put_writes(at("t", "", f"{n:04}"), [("a", "b" * n)], "task"),
            lambda n: caller.get_tuple(at()),
            lambda n: caller.get_tuple(at("t", "", f"{n:04}")),
            lambda n: caller.get_tuple(at("unknown")),
            lambda n: caller.delete_thread("unknown"),
        ]
        for n in range(4):
            for call in calls:
                before = proxy.round_trips
                call(n)
                # A deletion asks whether a person is on hold.
                assert n == 0 or proxy.round_trips - before == (2 if call is calls[-1] else 1)
        caller.close()
        saver.close()


def test_a_closed_saver_refuses_every_call(opened: Open) -> None:
    saver = opened()
    put(saver, 1)
    saver.close()
    saver.close()
    for call in (lambda: put(saver, 2), lambda: saver.get_tuple(at()), saver.setup, saver.durability):
        with pytest.raises(StoreClosed):
            call()
    caller = FACES["async"](lambda: saver)
    with pytest.raises(StoreClosed):
        caller.get_tuple(at())
    caller.close()
