"""Renaming layers translate all names in the arguments and replies of each verb.

The cases are derived from the verbs' signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_keel import Keyring, LocalKey, MemorySaver
from langgraph_keel.backends.memory.store import MemoryStore
from langgraph_keel.backends.tenants import TenantStore
from langgraph_keel.blobs.store import BlobStore
from langgraph_keel.engine.cells import Cell, Search, Shelf, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.layers import Layer, Renaming
from langgraph_keel.engine.names import NameMap
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import (
    Batch,
    Copied,
    Entry,
    Found,
    Graph,
    Kind,
    NewEntry,
    Node,
    Page,
    Query,
    Ref,
    Replacement,
    Row,
    Stored,
    ThreadInfo,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.tenants import prefix_of
from langgraph_keel.engine.verbs import VERBS
from langgraph_keel.keys.names import NamelessStore, Names
from langgraph_keel.keys.store import SealedStore
from langgraph_keel.moving.touch import MovingStore

ADDRESS = Address("thread", "namespace", "id")
REFS = {"channel": Ref(Kind.WHOLE, ((0, 1),))}
ROWS = {"channel": (Row(0, 1, b"row"),)}
ENTRY = Entry(ADDRESS, "parent", 7, b"header", REFS)
BATCH = Batch("task", "path", b"body")
WRITES = Writes(3, ADDRESS, BATCH)
FOUND = Found(ENTRY, ROWS, [BATCH])
GRAPH = Graph([Node(ADDRESS, None, 7, b"", REFS, None, True, False)], {("namespace", "channel"): 1}, 5)
SHELF = Shelf("thread", "kind")
CELL = Cell("token", b"header", origin="thread")
ARGUMENTS: Mapping[str, Any] = {
    **{"thread_id": "thread", "source": "thread", "target": "thread", "key": "key", "prefix": "key"},
    **{"address": ADDRESS, "batch": BATCH, "query": Query("thread", "namespace", after=ENTRY), "entries": [ENTRY]},
    **{"channels": {"channel"}, "gone": [7], "ghosts": {8: {"channel"}}, "graph": GRAPH, "last": 7, "upto": ENTRY},
    **{"live": {("namespace", "channel"): [(0, 1)]}, "run_ids": ["run"], "limit": 9, "known": 7},
    "page": Page(("time", "thread"), 9, ["term"], oldest_first=True, tolerant=True),
    **{"shelf": SHELF, "expected": "token", "keys": ["key"], "tokens": {"key": "token"}},
}
"""A value for each argument name. Each name in it is that of its sort."""
OTHERS: Mapping[tuple[str, str], Any] = {
    ("write_entry", "new"): NewEntry(ADDRESS, None, b"", REFS, ROWS, ROWS, known={"channel": "what"}),
    ("swap_cell", "new"): CELL,
    ("swap_cells", "swaps"): [("key", "token", CELL), ("key", None, None)],
    ("find_cells", "search"): Search("key", ("mark",), (7, "key"), 9),
    ("replace_plain", "new"): Replacement(5, {7: b""}, {("namespace", "channel"): [Row(0, 1, b"")]}, [WRITES]),
    **{("list_cells", "after"): "key", ("list_strays", "after"): "thread", ("list_writes", "after"): WRITES},
    ("list_tenants", "after"): "tenant",
}
"""The values of arguments whose type depends on the verb."""
REPLIES: Mapping[str, list[Any]] = {
    "write_entry": [Stored(7, {"channel": 3})],
    "read_entry": [FOUND, Unchanged("parent", [BATCH]), None],
    "scan": [[ENTRY]],
    **{verb: [[FOUND]] for verb in ("read_values", "read_stored", "read_history")},
    "read_graph": [GRAPH],
    "copy_thread": [Copied()],
    **{verb: [["thread"]] for verb in ("find_runs", "list_strays")},
    "read_threads": [[(ThreadInfo("thread", 1, "", "id", 1), ENTRY)]],
    "swap_cell": [Swapped(False, CELL), Swapped(True, None)],
    "swap_cells": [[Swapped(False, CELL), Swapped(True, None)]],
    "find_cells": [[("key", CELL)]],
    "read_cells": [{"key": CELL}],
    "list_cells": [[("key", CELL)]],
    "list_writes": [[WRITES]],
    "list_kinds": [["kind"]],
    "list_tenants": [["tenant"]],
}
"""The replies of each verb; all others reply with a number, without names."""
NAMES = Names(bytes(32))
HIDDEN = {sort: NAMES.hide(sort.encode(), sort) for sort in ("namespace", "channel", "task")}
BELOW: Mapping[str, Mapping[str, str]] = {
    "marked": {sort: f"<{sort}>" for sort in ("thread", "namespace", "channel", "task", "path", "key", "token")},
    "tenant": {"thread": prefix_of("acme") + "thread"},
    "nameless": {**HIDDEN, "path": NAMES.hide(b"task path", "path")},
}
"""The names in the store below, by layer and sort."""


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return the value with other names, at any depth."""
    if isinstance(value, str):
        return names.get(value, value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(renamed(getattr(value, field.name), names) for field in fields(value)))
    if isinstance(value, Mapping):
        return {renamed(key, names): renamed(each, names) for key, each in value.items()}
    return type(value)(renamed(each, names) for each in value) if isinstance(value, list | tuple | set) else value


class Recording:
    """A store that records the arguments of each verb, and returns a prepared reply."""

    def __init__(self) -> None:
        self.calls: list[Mapping[str, Any]] = []
        self.reply: Any = None
        self.verbs: Any = SimpleNamespace(**{verb: self._record(verb) for verb in VERBS})

    def _record(self, verb: str) -> Callable[..., Plan[Any]]:
        def record(*args: Any, **more: Any) -> Plan[Any]:
            yield from ()
            self.calls.append(bound(verb, args, more))
            return self.reply

        return record


def parameters(verb: str) -> list[Parameter]:
    return [*signature(getattr(Store, verb)).parameters.values()][1:]


def bound(verb: str, args: tuple[Any, ...], more: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = Signature(parameters(verb)).bind(*args, **more)
    arguments.apply_defaults()
    return arguments.arguments


def calls_of(verb: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield calls with any number of positional arguments, with and without defaults."""
    given = {each.name: OTHERS.get((verb, each.name), ARGUMENTS.get(each.name)) for each in parameters(verb)}
    needed = [each.name for each in parameters(verb) if each.default is Parameter.empty]
    for names in ([*given], needed):
        for places in range(len(names) + 1):
            yield tuple(given[name] for name in names[:places]), {name: given[name] for name in names[places:]}


def carry_out(plan: Plan[Any]) -> Any:
    with pytest.raises(StopIteration) as done:
        next(plan)
    return done.value.value


def both_maps(names: Mapping[str, str]) -> tuple[NameMap, NameMap]:
    """Return the maps of each sort of name to the store below, and back.

    They fail for names of another sort.
    """

    def map_of(by_sort: Mapping[str, tuple[str, str]]) -> NameMap:
        def turning(sort: str) -> Callable[[str], str]:
            return lambda name: dict([by_sort[sort]])[name]

        def turning_cell(sort: str) -> Callable[[Shelf, str], str]:
            return lambda shelf, name: (
                turning(sort)(name) if shelf == SHELF else pytest.fail(f"{shelf} came in as it is")
            )

        plain: Any = {sort: turning(sort) for sort in ("thread", "namespace", "channel", "task", "path")}
        return NameMap(**plain, key=turning_cell("key"), token=turning_cell("token"))

    down = {sort: (sort, name) for sort, name in names.items()}
    return map_of(down), map_of({sort: (name, plain) for sort, (plain, name) in down.items()})


def marking(below: Any, told: list[bool]) -> Layer:
    def find_names(to_write: bool) -> Plan[tuple[NameMap, NameMap]]:
        yield from ()
        told.append(to_write)
        return both_maps(BELOW["marked"])

    return Renaming(below, find_names)


def find_hidden(_: bool) -> Plan[Names]:
    yield from ()
    return NAMES


LAYERS: Mapping[str, Callable[[Any], Layer]] = {
    "marked": lambda below: marking(below, []),
    "tenant": lambda below: TenantStore(below, "acme"),
    "nameless": lambda below: NamelessStore(below, find_hidden),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("verb", VERBS)
def test_names_are_translated_in_each_argument_and_reply(verb: str, layer: str) -> None:
    below, names = Recording(), BELOW[layer]
    store = LAYERS[layer](below.verbs)
    if (layer, verb) == ("tenant", "list_tenants"):
        assert carry_out(store.list_tenants(None, 9)) == ()  # it sees no others
        return
    for args, more in calls_of(verb):
        for reply in REPLIES.get(verb, [1]):
            below.reply = renamed(reply, names)
            given = carry_out(getattr(store, verb)(*args, **more))
            assert given == reply
            assert below.calls.pop() == {name: renamed(each, names) for name, each in bound(verb, args, more).items()}


def test_a_key_is_created_only_when_a_name_is_stored() -> None:
    told: list[bool] = []
    store = marking(Recording().verbs, told)
    writing = set()
    for verb in VERBS:
        for args, more in calls_of(verb):
            carry_out(getattr(store, verb)(*args, **more))
        if told and all(told):
            writing.add(verb)
        else:
            assert not any(told)
        told.clear()
    assert writing == {"write_entry", "write_batch", "swap_cell", "swap_cells"}
    carry_out(store.swap_cell(SHELF, "key", "token", None))
    carry_out(store.swap_cell(SHELF, "key", "token", new=None))
    assert told == [False, False]


def test_requests_pass_unchanged_if_no_names_are_hidden() -> None:
    below = Recording()
    store = NamelessStore(below.verbs, find_nothing)
    for verb in VERBS:
        for args, more in calls_of(verb):
            carry_out(getattr(store, verb)(*args, **more))
            assert below.calls.pop() == bound(verb, args, more)


def find_nothing(_: bool) -> Plan[None]:
    yield from ()


def test_verbs_that_name_only_threads_bypass_the_layer() -> None:
    """Hidden names need the keys, which may be lost when a thread is deleted."""
    below = Recording().verbs
    store = NamelessStore(below, find_hidden)
    assert {verb for verb in VERBS if getattr(store, verb) is getattr(below, verb)} == {
        *("delete_all", "delete_thread", "find_runs", "list_kinds", "list_strays", "list_tenants"),
    }


def test_the_table_has_every_verb_of_a_store() -> None:
    verbs = {name for name in vars(Store) if not name.startswith("_")}
    assert verbs - VERBS.keys() == {"of_tenant"}  # that is not a plan


def test_each_verb_with_a_thread_name_first_moves_the_thread_in() -> None:
    below, mover = Recording().verbs, SimpleNamespace()
    store = MovingStore(below, mover)  # type: ignore[arg-type]
    for verb, what in VERBS.items():
        if what.thread is not None:
            args = [OTHERS.get((verb, each.name), ARGUMENTS.get(each.name)) for each in parameters(verb)]
            assert what.thread(args[0]) == "thread"
            assert getattr(store, verb) is not getattr(below, verb)


def test_layers_are_stacked_in_order(tmp_path: Path) -> None:
    """Objects are sealed, names are hidden below the seals; imports pass both layers."""
    keyring = Keyring(LocalKey("k", bytes(range(32))), hide_names=True)
    options: Any = {"encryption": keyring, "blobs": f"file:{tmp_path}", "moving_from": InMemorySaver()}
    with MemorySaver(**options) as saver:
        store: Any = saver.engine.session.store
        layers = [type(store)]
        while isinstance(store, Layer):
            store = store.inner
            layers.append(type(store))
    assert layers == [SealedStore, NamelessStore, MovingStore, BlobStore, MemoryStore]
