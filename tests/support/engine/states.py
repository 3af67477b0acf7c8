"""Random states and edits of them, for the property test of the encoding.

Also equality that compares types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from zlib import crc32

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

State = dict[str, Any]
Edit = tuple[str, str, int, Any]
"""A channel, an operation, a position, and a value for the operation."""


class Mood(Enum):
    CALM = "calm"
    BUSY = "busy"


@dataclass
class Note:
    title: str
    parts: list[Any] = field(default_factory=list)


# -- equality ----------------------------------------------------------------------------------------------------------


def form(value: Any) -> Any:
    """Return plain tuples that differ if a program could tell the two values apart."""
    kind = type(value)
    if kind is float:
        return "float", value.hex(), math.copysign(1.0, value)
    if kind in (list, tuple):
        return kind.__name__, *map(form, value)
    if kind in (set, frozenset):
        return kind.__name__, *sorted(map(repr, map(form, value)))
    if kind is dict:
        return "dict", *((form(key), form(part)) for key, part in value.items())
    if isinstance(value, (BaseMessage, Note)):
        extra = getattr(value, "__pydantic_extra__", None)
        return kind, form(dict(value.__dict__)), form(dict(extra) if extra else None)
    return kind, value


# -- values ------------------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, -1, 5, 5.0, 1.0, 0.0, -0.0, True, False, "", "x" * 70, "5", b"", b"x" * 70]),
    st.integers(),
    st.floats(),
    WORDS,
    st.sampled_from(["\ud800", "a\udfffb", "\x00", "ł\u0141", "\U0001f600"]),
    st.binary(max_size=8),
    st.sampled_from([Mood.CALM, Mood.BUSY, 1 << 70, -(1 << 63), (1 << 64) - 1]),
)
HASHABLE = st.one_of(st.integers(-3, 3), WORDS, st.booleans(), st.none(), st.tuples(st.integers(0, 2), WORDS))


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(WORDS, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Note, WORDS, st.lists(inner, max_size=2)),
        st.frozensets(HASHABLE, max_size=3),
        st.sets(HASHABLE, max_size=3),
        st.builds(bytearray, st.binary(max_size=4)),
    )


VALUES = st.recursive(SCALARS, _containers, max_leaves=8)
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4))
CALLS = st.builds(
    lambda name, args, call: {"name": name, "args": args, "id": call, "type": "tool_call"},
    WORDS,
    st.dictionaries(WORDS, PLAIN, max_size=3),
    st.none() | WORDS,
)
CONTENT = WORDS | st.lists(st.builds(lambda text: {"type": "text", "text": text}, WORDS), max_size=2)
IDS = st.none() | st.uuids().map(str)
MESSAGES = st.one_of(
    st.builds(HumanMessage, content=CONTENT, id=IDS, name=st.none() | WORDS),
    st.builds(
        AIMessage,
        content=CONTENT,
        id=IDS,
        tool_calls=st.lists(CALLS, max_size=2),
        response_metadata=st.dictionaries(WORDS, PLAIN, max_size=2),
    ),
    st.builds(SystemMessage, content=CONTENT, id=IDS, additional_kwargs=st.dictionaries(WORDS, PLAIN, max_size=2)),
    st.builds(ToolMessage, content=CONTENT, id=IDS, tool_call_id=WORDS, artifact=VALUES),
)
DOCUMENTS = st.dictionaries(WORDS, VALUES, max_size=4)
TREES = st.builds(
    lambda tree, lines: {**tree, "page0": {f"line{n}": [n, f"text {n}" * 5][n % 2] for n in range(lines)}},
    st.dictionaries(WORDS, st.dictionaries(WORDS, st.lists(PLAIN, max_size=4) | WORDS, max_size=4), max_size=3),
    st.integers(20, 200),
)
ODD = st.dictionaries(HASHABLE | st.binary(max_size=3) | st.floats(allow_nan=False), VALUES, max_size=5)

LISTS: dict[str, st.SearchStrategy[Any]] = {"messages": MESSAGES, "documents": DOCUMENTS, "scalars": SCALARS}
DICTS = {"tree": PLAIN, "odd": VALUES}
WHOLE = {"text": WORDS.map(lambda word: word * 9), "number": SCALARS, "misc": VALUES}
CHANNELS = st.fixed_dictionaries(
    {name: st.lists(items, max_size=6) for name, items in LISTS.items()} | {"tree": TREES, "odd": ODD} | WHOLE
)

# -- edits of lists ----------------------------------------------------------------------------------------------------


def _grow(target: list[Any], at: int, new: Any) -> None:
    # More than the 32 items of a packed row, with equal elements among them.
    target.extend(_varied(new, number) for number in range(8 + at % 40))


def _varied(value: Any, number: int) -> Any:
    if isinstance(value, BaseMessage):
        return value.model_copy(update={"id": str(number // 2)})
    return {**value, "n": number // 2} if type(value) is dict else value


def _replace(target: list[Any], at: int, new: Any) -> None:
    if target:
        target[at % len(target)] = new


def _retype(target: list[Any], at: int, new: Any) -> None:
    if target:
        target[at % len(target)] = _retyped(target[at % len(target)], at)


def _remove(target: list[Any], at: int, new: Any) -> None:
    if target:
        del target[at % len(target)]


def _trim(target: list[Any], at: int, new: Any) -> None:
    del target[: at % (len(target) + 1)]


def _cut(target: list[Any], at: int, new: Any) -> None:
    del target[at % (len(target) + 1) :]


def _rotate(target: list[Any], at: int, new: Any) -> None:
    at %= len(target) + 1
    target[:] = target[at:] + target[:at]


def _repeat(target: list[Any], at: int, new: Any) -> None:
    if target:
        target.append(target[at % len(target)])


def _summarise(target: list[Any], at: int, new: Any) -> None:
    target[:] = [new, *target[at % (len(target) + 1) :]]


def _mutate(target: list[Any], at: int, new: Any) -> None:
    """Change an element in place, as a node may do that returns no update."""
    if target:
        _touch(target[at % len(target)], at, new)


LIST_EDITS: dict[str, Callable[[list[Any], int, Any], None]] = {
    "append": lambda target, at, new: target.append(new),
    "insert": lambda target, at, new: target.insert(at % (len(target) + 1), new),
    "reverse": lambda target, at, new: target.reverse(),
    "clear": lambda target, at, new: target.clear(),
    "grow": _grow,
    "replace": _replace,
    "retype": _retype,
    "remove": _remove,
    "trim": _trim,
    "cut": _cut,
    "rotate": _rotate,
    "repeat": _repeat,
    "summarise": _summarise,
    "mutate": _mutate,
}

# -- edits in place ----------------------------------------------------------------------------------------------------


def _retyped(value: Any, at: int) -> Any:
    """Return a value of another type that equals `value`, if there is one, else `at`."""
    if type(value) is bool or (type(value) is float and value.is_integer()):
        return int(value)
    if type(value) is int and abs(value) < 1 << 50:
        return bool(value) if value in (0, 1) else float(value)
    return at


def _touch(value: Any, at: int, new: Any) -> None:
    """Make the smallest change inside `value`: a type, an order, a key or an element."""
    if isinstance(value, BaseMessage):
        _touch_message(value, at)
    elif type(value) is dict and value:
        _touch_dict(value, at, new)
    elif type(value) is list:
        value.append(at)
    elif isinstance(value, Note):
        value.parts.append(at)
    elif type(value) is set:
        value.symmetric_difference_update({at})


def _touch_message(message: BaseMessage, at: int) -> None:
    kwargs = message.additional_kwargs
    changes: list[Callable[[], object]] = [
        lambda: setattr(message, "content", f"{message.content}!"),
        lambda: setattr(message, "id", f"{message.id}-{at}"),
        lambda: kwargs.update(n=_retyped(kwargs.get("n"), at)),
        lambda: kwargs.update({"z": kwargs.pop("n", 1), "n": 1}),
        lambda: message.response_metadata.setdefault("deep", []).append(at),
        lambda: message.tool_calls.reverse() if isinstance(message, AIMessage) else None,
        lambda: setattr(message, "name", None if message.name else "n"),
    ]
    changes[at % len(changes)]()


def _touch_dict(target: dict[Any, Any], at: int, new: Any) -> None:
    key = list(target)[at % len(target)]
    changes = [_set_key, _number_key, _drop_key, _move_key, _enter_key, _enter_key, _enter_key]
    changes[at % len(changes)](target, key, at // 7, new)


def _set_key(target: dict[Any, Any], key: Any, at: int, new: Any) -> None:
    target[key] = new


def _number_key(target: dict[Any, Any], key: Any, at: int, new: Any) -> None:
    target[key] = _retyped(target[key], at)


def _drop_key(target: dict[Any, Any], key: Any, at: int, new: Any) -> None:
    del target[key]


def _move_key(target: dict[Any, Any], key: Any, at: int, new: Any) -> None:
    target[key] = target.pop(key)


def _enter_key(target: dict[Any, Any], key: Any, at: int, new: Any) -> None:
    _touch(target[key], at, new)


def _page(target: dict[Any, Any], at: int) -> dict[Any, Any]:
    pages = [part for part in target.values() if type(part) is dict and part] or [target]
    return pages[at % len(pages)]


def _drop_inside(target: dict[Any, Any], at: int) -> None:
    if target:
        del target[list(target)[at % len(target)]]


def _retype_inside(target: dict[Any, Any], at: int, new: Any) -> None:
    page = _page(target, at)
    numbers = [key for key, part in page.items() if type(part) in (int, float, bool)]
    if numbers:
        key = numbers[at % len(numbers)]
        page[key] = _retyped(page[key], at)


def _add_key(target: dict[Any, Any], at: int, new: Any) -> None:
    target[f"new{at % 50}"] = new


def _shuffle_keys(target: dict[Any, Any], at: int, new: Any) -> None:
    items = sorted(target.items(), key=lambda item: crc32(f"{item[0]!r}{at}".encode(errors="replace")))
    target.clear()
    target.update(items)


def _inflate(target: dict[Any, Any], at: int, new: Any) -> None:
    target[f"page{at % 5}"] = {str(line): line if line % 2 else f"{at}:{line}" * 4 for line in range(at % 90)}


DICT_EDITS: dict[str, Callable[[dict[Any, Any], int, Any], None]] = {
    "touch": _touch,
    "touch inside": lambda target, at, new: _touch(_page(target, at), at, new),
    "retype": _retype_inside,
    "drop": lambda target, at, new: _drop_inside(target, at),
    "drop inside": lambda target, at, new: _drop_inside(_page(target, at), at),
    "add": _add_key,
    "shuffle": _shuffle_keys,
    "inflate": _inflate,
    "clear": lambda target, at, new: target.clear(),
}

AT = st.integers(0, 500)


def _edits(name: str, verbs: Collection[str], new: st.SearchStrategy[Any]) -> st.SearchStrategy[Edit]:
    return st.tuples(st.just(name), st.sampled_from(sorted(verbs)), AT, new)


LIST_STEPS = st.one_of(*(_edits(name, LIST_EDITS, new) for name, new in LISTS.items()))
DICT_STEPS = st.one_of(
    _edits("tree", DICT_EDITS, PLAIN), _edits("tree", DICT_EDITS, PLAIN), _edits("odd", DICT_EDITS, VALUES)
)
OTHER_STEPS = st.one_of(
    *(_edits(name, ["set", "retype"], new) for name, new in WHOLE.items()),
    _edits("misc", ["touch"], VALUES),
    *(_edits(name, ["set", "drop"], VALUES) for name in (*LISTS, *DICTS)),
)
EDITS: st.SearchStrategy[list[Edit]] = st.one_of(
    st.lists(LIST_STEPS, min_size=1, max_size=6),
    st.lists(DICT_STEPS, min_size=1, max_size=6),
    st.lists(LIST_STEPS | DICT_STEPS | OTHER_STEPS, min_size=1, max_size=6),
)
# A single change must be detected too, however small it is.
LONE_EDITS: st.SearchStrategy[list[Edit]] = st.one_of(LIST_STEPS, DICT_STEPS, OTHER_STEPS).map(lambda edit: [edit])
RETYPES: st.SearchStrategy[list[Edit]] = st.one_of(
    *(_edits(name, ["retype"], st.none()) for name in ("scalars", "tree", "odd", "number", "misc")),
    _edits("tree", ["shuffle", "drop inside", "add"], SCALARS),
).map(lambda edit: [edit])


def apply(state: State, edit: Edit) -> None:
    """Apply one edit to the live objects of a state."""
    channel, verb, at, new = edit
    value = state.get(channel)
    if verb == "set":
        state[channel] = new
    elif verb == "retype" and channel in WHOLE:
        state[channel] = _retyped(value, at)
    elif verb == "drop":
        state.pop(channel, None)
    elif type(value) is list and verb in LIST_EDITS:
        LIST_EDITS[verb](value, at, new)
    elif type(value) is dict and verb in DICT_EDITS:
        DICT_EDITS[verb](value, at, new)
    elif verb == "touch":
        _touch(value, at, new)
    else:
        state[channel] = [new] if channel in LISTS else {"was": new}
