"""Bad and odd input: each is a named error, or works as if there were nothing odd about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from langgraph_keel.errors import InvalidConfig, InvalidInput, RefusedType, UnstorableValue
from langgraph_keel.testing.rig import Rig, RigFixtures, at, checkpoint_of, exact, id_of, values_of

ODD_IDS = {
    "long": "x" * 10_000,
    "slash": "a/b",
    "dots": "..",
    "dot": ".",
    "NUL": "a\x00b",
    "percent": "100%25%s",
    "newline": "a\nb\r\n",
    "emoji": "😀 naïve",
    "quotes": 'it\'s "quoted" `so`',
    "sql": "'; DROP TABLE threads; --",
    "glob": "*?[a-z]",
    "braces": "{t}:{}",
    "spaces": "  ",
    "backslash": "a\\b",
    "separators": "a|b:c|d",
    "not normalized": "e\u0301",
}
"""Ids that some store or other takes for something else."""

BAD_IDS: dict[str, Any] = {
    "surrogate": "lone \ud800",
    "list": ["t"],
    "bytes": b"t",
    "float": 1.5,
    "bool": True,
}

LOOKALIKES = [("a", "A"), ("a/b", "a%2Fb"), ("é", "e\u0301"), ("1", "01"), ("a", "a "), ("a\x00", "a"), ("%", "%%")]


@dataclass
class Allowed:
    """A class of the program."""

    name: str


class Unknown:
    """A class no serializer knows how to store."""

    __slots__ = ("lock",)


class InputContract(RigFixtures):
    """What callers pass."""

    @pytest.mark.parametrize("name", ODD_IDS)
    def test_odd_ids_are_only_ids(self, warm: Rig, name: str) -> None:
        odd = ODD_IDS[name]
        config = warm.author(odd, odd).put({"a": [1]}, checkpoint_id=odd, metadata={"run_id": odd.replace("\x00", "")})
        warm.face.put_writes(config, [(odd, 1)], odd, odd)
        warm.author("other", odd).put({"a": [2]}, checkpoint_id=odd)
        for found in (warm.face.read(at(odd, odd)), *warm.face.list(at(odd, odd, odd))):
            assert (values_of(found), found.config) == ({"a": [1]}, at(odd, odd, odd))
            assert found.pending_writes == [(odd, odd, 1)]
        warm.face.copy_thread(odd, f"{odd} copy")
        warm.face.prune([odd])
        warm.face.delete_for_runs([odd.replace("\x00", "")])
        assert list(warm.face.list(at(odd, None))) == list(warm.face.list(at(f"{odd} copy", None))) == []
        warm.face.delete_thread(odd)
        assert [values_of(found) for found in warm.face.list(None)] == [{"a": [2]}]

    @pytest.mark.parametrize("pair", LOOKALIKES, ids=str)
    def test_ids_that_look_alike_are_different(self, warm: Rig, pair: tuple[str, str]) -> None:
        for thread in pair:
            for ns in pair:
                warm.author(thread, ns).put({"where": [thread, ns]}, checkpoint_id=pair[0])
                warm.author(thread, ns).put({"where": [ns, thread]}, checkpoint_id=pair[1])
        for thread in pair:
            for ns in pair:
                assert values_of(warm.face.read(at(thread, ns, pair[0]))) == {"where": [thread, ns]}
                assert values_of(warm.face.read(at(thread, ns, pair[1]))) == {"where": [ns, thread]}
        warm.face.delete_thread(pair[0])
        assert len(list(warm.face.list(at(pair[1], None)))) == 4

    @pytest.mark.parametrize("name", BAD_IDS)
    def test_bad_ids_are_refused(self, warm: Rig, name: str) -> None:
        bad = BAD_IDS[name]
        for config in (at(bad), at("t", bad), at("t", "", bad)):
            with pytest.raises(InvalidConfig):
                warm.face.put(config, checkpoint_of("c1", {}))
            with pytest.raises(InvalidConfig):
                warm.face.get_tuple(config)
            with pytest.raises(InvalidConfig):
                list(warm.face.list(config))
            with pytest.raises(InvalidConfig):
                warm.face.put_writes({"configurable": {"checkpoint_id": "c", **config["configurable"]}}, [], "task")
        assert list(warm.face.list(None)) == []

    @pytest.mark.parametrize("name", BAD_IDS)
    def test_bad_ids_besides_the_config_are_refused(self, warm: Rig, name: str) -> None:
        bad = BAD_IDS[name]
        config = warm.author().put({"a": 1})
        with pytest.raises(InvalidInput):
            warm.face.put(at(), checkpoint_of(bad, {}))
        with pytest.raises(InvalidInput):
            warm.face.put_writes(config, [("a", 1)], bad)
        with pytest.raises(InvalidInput):
            warm.face.put_writes(config, [("a", 1)], "task", bad)
        with pytest.raises(InvalidInput):
            list(warm.face.list(at(), before=at("t", "", bad)))
        with pytest.raises(InvalidInput):
            warm.face.delete_thread(bad)
        with pytest.raises(InvalidInput):
            warm.face.delete_for_runs([bad])
        with pytest.raises(InvalidInput):
            warm.face.copy_thread("t", bad)
        with pytest.raises(InvalidInput):
            warm.face.prune([bad])
        (found,) = warm.face.list(None)
        assert (values_of(found), found.pending_writes) == ({"a": 1}, [])

    def test_a_surrogate_elsewhere_is_stored_or_refused(self, warm: Rig) -> None:
        lone = "lone \ud800"
        warm.author().put({"a": 1})
        attempts: list[dict[str, Any]] = [
            {"values": {lone: [1]}},
            {"values": {}, "metadata": {"run_id": lone}},
            {"values": {}, "metadata": {lone: 1}},
            {"values": {}, "ts": lone},
            {"values": {"a": lone}},
            {"values": {"a": [lone, {lone: lone}]}},
        ]
        for attempt in attempts:
            before = warm.face.read(at())
            author = warm.continuing(at())
            try:
                author.put(attempt.pop("values"), **attempt)
            except (InvalidInput, UnstorableValue):
                assert exact(warm.face.read(at())) == exact(before)
            else:
                assert id_of(warm.face.read(at())) == id_of(author.config)

    def test_configs_without_a_thread_are_refused(self, warm: Rig) -> None:
        configs: list[Any] = [
            {},
            {"configurable": {}},
            {"configurable": {"thread_id": None}},
            at(""),
            {"configurable": 1},
        ]
        for config in configs:
            for call in (warm.face.get_tuple, lambda config: list(warm.face.list(config))):
                with pytest.raises(InvalidConfig):
                    call(config)
            with pytest.raises(InvalidConfig):
                warm.face.put(config, checkpoint_of("c1", {}))
        assert list(warm.face.list(None)) == []

    def test_an_int_is_a_thread_id(self, rig: Rig) -> None:
        config = rig.author(7).put({"a": 1})
        assert config["configurable"]["thread_id"] == "7"
        assert rig.face.read(at("7")).config == rig.face.read(at(7)).config == config

    def test_a_checkpoint_needs_an_id(self, rig: Rig) -> None:
        for missing in (None, "", 1):
            with pytest.raises(InvalidInput, match="id"):
                rig.face.put(at(), {**checkpoint_of("c", {}), "id": missing})
        assert list(rig.face.list(None)) == []

    @pytest.mark.parametrize("size", [1, 400])
    def test_what_cannot_be_stored_is_refused_by_name(self, rig: Rig, size: int) -> None:
        good: dict[str, Any] = {"list": list(range(size))}
        config = rig.author().put(good)
        before = rig.backend.raw()
        states: list[dict[str, Any]] = [{**good, "mine": Unknown()}, {"list": [*good["list"], {"deep": Unknown()}]}]
        for state, channel in zip(states, ["mine", "list"], strict=True):
            with pytest.raises(UnstorableValue, match=rf"thread 't'.*'{channel}'.*Unknown"):
                rig.continuing(at()).put(state)
        with pytest.raises(UnstorableValue, match=r"thread 't'.*task 1.*mine.*Unknown"):
            rig.face.put_writes(config, [("mine", Unknown())], "task 1")
        with pytest.raises(UnstorableValue, match=r"thread 't'.*metadata.*Unknown"):
            rig.continuing(at()).put(good, metadata={"mine": Unknown()})
        assert rig.backend.raw() == before
        rig.continuing(at()).put({"list": [*good["list"], "next"]})
        assert values_of(rig.face.read(at())) == {"list": [*good["list"], "next"]}

    def test_a_type_that_is_not_allowed_is_refused_on_reading(self, warm: Rig) -> None:
        warm.author().follow([{"mine": 1}, {"mine": Allowed("x")}])
        narrow = warm.open(types=())
        with pytest.raises(RefusedType, match=r"thread 't'.*'mine'.*Allowed"):
            narrow.get_tuple(at())
        assert values_of(narrow.read(at("t", "", "00000001"))) == {"mine": 1}
        assert values_of(warm.face.read(at())) == {"mine": Allowed("x")}
