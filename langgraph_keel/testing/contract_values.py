"""Values: whatever a channel goes through, each version comes back as it was put, and little is written for it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from langgraph_keel.testing.histories import HISTORIES, TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, values_of

IN_PLACE: dict[str, Callable[[dict[str, Any]], object]] = {
    "append": lambda state: state["list"].append(chat(1, 50)[0]),
    "edit a message": lambda state: setattr(state["list"][3], "content", "edited in place"),
    "edit what is in a message": lambda state: state["list"][2].additional_kwargs.update(n="edited"),
    "delete from the middle": lambda state: state["list"].pop(4),
    "clear": lambda state: state["list"].clear(),
    "reverse": lambda state: state["list"].reverse(),
    "sort of the same": lambda state: state["list"].__setitem__(0, deepcopy(state["list"][0])),
    "set a leaf": lambda state: state["tree"]["branch 3"]["leaves"]["leaf 1"].update(n="edited"),
    "delete a branch": lambda state: state["tree"].pop("branch 3"),
    "move a key to the end": lambda state: state["tree"].update(moved=state["tree"].pop("branch 0")),
    "change a tuple's list": lambda state: state["pair"][0].append(2),
    "equal but of another type": lambda state: state["numbers"].__setitem__(0, True),
}


class ValuesContract(RigFixtures):
    """Channel values over time."""

    @pytest.mark.parametrize("name", HISTORIES)
    def test_every_version_comes_back(self, rig: Rig, name: str) -> None:
        versions = HISTORIES[name]
        author = rig.author()
        for version in versions:
            author.put({"channel": version, "other": "unchanged"})
            assert exact(values_of(rig.face.read(at()))["channel"]) == exact(version)
        listed = [values_of(found)["channel"] for found in rig.face.list(at())]
        assert exact(listed) == exact([*reversed(versions)])

    @pytest.mark.parametrize("change", IN_PLACE)
    def test_a_change_in_place_is_seen(self, rig: Rig, change: str) -> None:
        state: dict[str, Any] = {"list": chat(9), "tree": deepcopy(TREE), "pair": ([1], 2), "numbers": [1, 2]}
        author = rig.author()
        author.put(state)
        before = exact(deepcopy(state))
        IN_PLACE[change](state)
        author.put(state, channel_versions={"list": 1})
        found, first = rig.face.list(at())
        assert exact(values_of(found)) == exact(state)
        assert exact(values_of(first)) == before
        author.put({**state, "list": [*state["list"], *chat(1, 60)]})
        assert exact(values_of(rig.face.read(at()))["list"]) == exact([*state["list"], *chat(1, 60)])

    def test_an_emptied_channel_does_not_come_back(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": chat(3), "b": TREE, "c": 1}, channel_versions={"a": 1, "b": 1, "c": 1})
        author.put({"c": 1}, channel_versions={"a": 2, "b": 2, "c": 1})
        assert values_of(rig.face.read(at())) == {"c": 1}
        author.put({"a": chat(4)}, channel_versions={"a": 3, "b": 2, "c": 2})
        assert exact(values_of(rig.face.read(at()))) == exact({"a": chat(4)})

    def test_odd_channel_names(self, rig: Rig) -> None:
        names = ["", "it's", 'say "x"', "a.b", "a/b", "..", "\x00", "100%", "line\nbreak", "😀", "branch:to:x"]
        author = rig.author()
        for n in range(3):
            author.put({name: [*range(n), name * 70] for name in names})
        assert values_of(rig.face.read(at())) == {name: [0, 1, name * 70] for name in names}

    def test_forks_share_and_differ(self, rig: Rig) -> None:
        trunk = rig.author()
        states = [{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 50)]
        configs = trunk.follow(states)
        forks = [rig.continuing(at("t", "", configs[n]["configurable"]["checkpoint_id"])) for n in (10, 30)]
        for n in range(40):
            for name, fork in zip("xy", forks, strict=True):
                state = {"list": chat(11) + chat(n, 100 * ord(name)), "tree": {**TREE, name: n}}
                fork.put(state)
                states.append(state)
        listed = [values_of(found) for found in rig.face.list(at())]
        assert exact(listed) == exact([*reversed(states)])

    def test_savers_that_know_different_versions_pack_nothing_away(self, warm: Rig) -> None:
        """Rows that one saver packed hold items that another, who knew an older version, would pack otherwise."""
        old = warm.author(face=warm.open())
        states = [chat(n) for n in range(1, 33)]
        old.follow([{"list": state} for state in states])
        states.append(chat(20, 13))
        warm.continuing(at(), warm.open()).put({"list": states[-1]})
        # This saver knows the trimmed list only, so what it packs begins in the middle of what the old one would pack.
        packing = warm.continuing(at(), warm.open())
        for n in range(34, 80):
            states.append(chat(n - 13, 13))
            packing.put({"list": states[-1]})
        old.config = at("t", "", "00000032")
        states.append(chat(32) + chat(1, 900))
        old.put({"list": states[-1]})
        listed = [values_of(found)["list"] for found in warm.open().list(at())]
        assert exact(listed) == exact([*reversed(states)])

    def test_savers_in_turn_on_one_thread(self, warm: Rig) -> None:
        faces = [warm.open() for _ in range(3)]
        states = [{"list": chat(min(n, 40), max(0, n - 40)), "tree": {**TREE, "n": n}} for n in range(1, 70)]
        for n, state in enumerate(states):
            face = faces[n * n % 3]
            author = warm.continuing(at(), face) if n else warm.author(face=face)
            author.put(state)
        listed = [values_of(found) for found in warm.open().list(at())]
        assert exact(listed) == exact([*reversed(states)])

    def test_bytes_grow_with_what_is_new(self, warm: Rig) -> None:
        author = warm.author()
        sizes = [len(warm.backend.raw())]
        for hundred in (1, 2):
            author.follow([{"messages": chat(n)} for n in range(100 * hundred - 99, 100 * hundred + 1)])
            sizes.append(len(warm.backend.raw()))
        assert sizes[2] - sizes[1] < 1.5 * (sizes[1] - sizes[0])

    def test_a_small_change_of_a_large_dict_takes_few_bytes(self, warm: Rig) -> None:
        tree = {f"k{n}": {"n": n, "text": f"{n} " * 30} for n in range(500)}
        author = warm.author()
        author.put({"tree": tree})
        before = len(warm.backend.raw())
        for n in range(10):
            author.put({"tree": {**tree, "k77": {"n": n}}})
        assert len(warm.backend.raw()) - before < 10 * 2000

    def test_a_fork_takes_few_bytes(self, warm: Rig) -> None:
        configs = warm.author().follow([{"messages": chat(n)} for n in range(1, 200, 9)])
        before = len(warm.backend.raw())
        warm.continuing(configs[11]).put({"messages": chat(100)})
        assert len(warm.backend.raw()) - before < 5000
