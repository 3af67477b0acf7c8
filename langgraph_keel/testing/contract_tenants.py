"""Isolation of tenants from each other and from savers without a tenant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from langgraph_keel.engine.cells import Search, Shelf
from langgraph_keel.engine.records import Page
from langgraph_keel.errors import InvalidInput
from langgraph_keel.testing.contract_cells import cell
from langgraph_keel.testing.contract_search import key_of, ranked
from langgraph_keel.testing.rig import Face, Rig, RigFixtures, at, values_of

WHO = ("", "one", "one2")
OWN, SHARED, RANKED = Shelf("t", "own"), Shelf(None, "own"), Shelf(None, "ranked")


def views_of(rig: Rig) -> dict[str, Face]:
    """Return a face for no tenant and for each one; empty if there are no tenants."""
    saver = rig.face.saver
    try:
        return {who: rig.on(saver.for_tenant(who) if who else saver) for who in WHO}
    except InvalidInput:
        return {}


def fill(rig: Rig, face: Face, who: str) -> None:
    """Write two threads of a tenant, one of them a stray, and cells.

    Only the values differ between tenants.
    """
    author = rig.author(face=face)
    author.put({"a": who, "list": [who]}, checkpoint_id="00000001", metadata={"run_id": "r"})
    author.put({"a": who, "list": [who, "more"]}, checkpoint_id="00000002", metadata={"run_id": "r"})
    face.put_writes(at("t", "", "00000002"), [("a", f"written by {who}")], "task")
    face.put_writes(at("stray", "", "00000001"), [("a", who)], "task")
    face.verb("swap_cell", OWN, "k", None, cell(f"own{who}"))
    face.verb("swap_cell", SHARED, "k", None, cell(f"shared{who}", origin="t"))
    face.verb("swap_cell", RANKED, key_of(1, 2, 3, 4), None, replace(ranked(f"ranked{who}", 1), origin="t"))


def read_all(face: Face) -> dict[str, Any]:
    """Return all visible data."""
    found, pages = face.get_tuple(at()), {"threads": Page(limit=10), "shown": Page(limit=10, tolerant=True)}
    return {
        "latest": found and (values_of(found), [write[2] for write in found.pending_writes or ()]),
        "listed": [(each.config["configurable"]["thread_id"], each.checkpoint["id"]) for each in face.list(None)],
        **{
            name: [(info.thread_id, info.checkpoints) for info, _ in face.verb("read_threads", page)]
            for name, page in pages.items()
        },
        "runs": face.verb("find_runs", ["r"]),
        "strays": face.verb("list_strays", None, 10),
        "cells": {
            shelf.thread_id: {key: each.token for key, each in face.verb("list_cells", shelf, "", None, 10)}
            for shelf in (OWN, SHARED)
        },
        "ranked": [
            [(key, each.token) for key, each in face.verb("find_cells", RANKED, search)]
            for search in (Search(), Search(key_of(1)), Search(key_of(1, 2)), Search(is_grouped=True))
        ],
        "held": [each.origin for each in face.verb("read_cells", SHARED, ["k"]).values()],
    }


class TenantContract(RigFixtures):
    """`of_tenant` and `list_tenants`.

    A store without tenants must raise a named error.
    """

    def test_tenants_are_isolated_from_each_other(self, rig: Rig) -> None:
        """With equal names of threads, and a tenant whose name is a prefix of another's."""
        views = views_of(rig)
        nothing = {who: read_all(face) for who, face in views.items()}
        for number, (who, face) in enumerate(views.items()):
            fill(rig, face, who)
            expected = {
                "latest": ({"a": who, "list": [who, "more"]}, [f"written by {who}"]),
                "listed": [("t", "00000002"), ("t", "00000001")],
                "threads": [("t", 2)],
                "shown": [("t", 2)],
                "runs": ["t"],
                "strays": ["stray"],
                "cells": {"t": {"k": f"own{who}"}, None: {"k": f"shared{who}"}},
                "ranked": [[(key_of(1, 2, 3, 4), f"ranked{who}")]] * 4,
                "held": ["t"],
            }
            assert read_all(face) == expected
            for other in WHO[number + 1 :]:
                assert read_all(views[other]) == nothing[other]
        before = {who: read_all(face) for who, face in views.items()}
        for who, face in views.items():
            face.copy_thread("t", "copy")
            face.delete_thread("t")
            face.delete_thread("stray")
            assert read_all(face)["listed"] == [("copy", "00000002"), ("copy", "00000001")]
            assert (read_all(face)["strays"], read_all(face)["held"]) == ([], [])
            face.delete_thread("copy")
            assert read_all(face) == nothing[who]
            for other in WHO[WHO.index(who) + 1 :]:
                assert read_all(views[other]) == before[other]

    def test_tenants_with_data_are_listed(self, warm: Rig) -> None:
        """In pages, in order, if they have threads or only shared records."""
        views = views_of(warm)
        if not views:
            return
        listed = warm.face.verb
        assert listed("list_tenants", None, 10) == []
        warm.author(face=views["one2"]).put({"a": 1})
        views["one"].verb("swap_cell", SHARED, "k", None, cell("token"))
        warm.author().put({"a": 1})
        assert listed("list_tenants", None, 10) == ["one", "one2"]
        assert (listed("list_tenants", None, 1), listed("list_tenants", "one", 1)) == (["one"], ["one2"])

    def test_a_tenant_without_data_is_not_listed(self, warm: Rig) -> None:
        views = views_of(warm)
        if not views:
            return
        for who in ("one", "one2"):
            warm.author(face=views[who]).put({"a": 1})
        views["one2"].delete_thread("t")
        assert warm.face.verb("list_tenants", None, 10) == ["one"]

    def test_deleting_a_tenant_removes_exactly_its_data(self, warm: Rig) -> None:
        """Threads, strays and cells, in parts. Other tenants keep everything, also if names share a prefix."""
        views = views_of(warm)
        nothing = {who: read_all(face) for who, face in views.items()}
        for who, face in views.items():
            fill(warm, face, who)
            warm.author("more", face=face).put({"a": who})
        before = {who: read_all(face) for who, face in views.items()}
        for face in (each for who, each in views.items() if who == "one"):
            gone = [face.verb("delete_all", 1)]
            while gone[-1]:
                gone.append(face.verb("delete_all", 1))
            assert sum(gone) >= 2
            assert read_all(face) == nothing["one"]
            assert warm.face.verb("list_tenants", None, 10) == ["one2"]
            assert {who: read_all(views[who]) for who in ("", "one2")} == {who: before[who] for who in ("", "one2")}
            fill(warm, face, "one")
            assert read_all(face)["latest"] == before["one"]["latest"]

    def test_delete_all_is_refused_without_a_tenant(self, rig: Rig) -> None:
        """That could happen if the caller forgets the tenant's name."""
        rig.author().put({"a": 1})
        if views_of(rig):
            with pytest.raises(InvalidInput, match="not the store of a tenant"):
                rig.face.verb("delete_all", 10)
        assert [info.thread_id for info, _ in rig.face.verb("read_threads", Page(None, 10))] == ["t"]

    def test_a_tenant_cannot_have_tenants(self, warm: Rig) -> None:
        for who, face in views_of(warm).items():
            if who:
                with pytest.raises(InvalidInput, match="tenant"):
                    face.saver.for_tenant("other")
