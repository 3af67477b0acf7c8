"""Fuzz the structure of packed samples: marks, classes, fields, numbers, lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import ormsgpack
from support.engine.samples import VALUES

from fuzz.trials import Trial
from langgraph_keel import KeelSerializer
from langgraph_keel.engine.encoding.bodies import array_header, raw_frame
from langgraph_keel.engine.serde.serializer import LEAST_BYTES, Codec
from langgraph_keel.engine.serde.types import Leaf, Record


class Part(NamedTuple):
    """An Ext of msgpack: a leaf with its payload, or the mark of a record."""

    code: int
    data: bytes


class Spot(NamedTuple):
    """A place in a tree: its container, and its index or name."""

    holder: Any
    key: Any


PAYLOADS = (
    b"", b"0", b"-1", b"\xff" * 9, b"9" * 5000, b"1e999999999", b"nan", b"|", b"0|x", b"a|b", b"UTC", b"PosixPath|a\0b",
    b"24:00:00f", b"2024-02-30", b"99999999999999999999", b"IPv4Network|1.2.3.4/33", b"\xed\xa0\x80", bytes(16),
)  # fmt: skip
NAMES = (
    "builtins", "os", "object", "system", "ValueError", "SystemExit", "support.engine.samples", "Plain", "Point",
    "Colour", "Right", "Bag", "Rows", "Model", "OldModel", "Failed", "langgraph.types", "Send", "Item",
    "langgraph_keel",
)  # fmt: skip
EDGES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, float("nan"), "", "x", "\0", "9" * 5000, b"",
    b"\xff", [], {}, [[]], {"": {}}, ["a", "a"], "<U1", "|O", "<f8", "|V0", ["f", "<i4"], *NAMES,
)  # fmt: skip


_MOST_SPOTS = 20_000
"""Maximum places of a tree that is changed further."""


def tree_of(packed: bytes) -> Any:
    """Unpack an element into lists, dicts, plain values and `Part`s."""
    return ormsgpack.unpackb(packed, ext_hook=Part)


def packed_tree(tree: Any) -> bytes:
    """Pack a tree again."""
    return ormsgpack.packb(tree, lambda part: ormsgpack.Ext(part.code, part.data), ormsgpack.OPT_PASSTHROUGH_TUPLE)


def spots_in(tree: list[Any]) -> list[Spot]:
    """Return all places of a tree."""
    spots: list[Spot] = []
    level: list[Any] = [tree]
    for holder in level:  # grows while it runs
        if len(spots) >= _MOST_SPOTS:
            break
        for key, part in list(enumerate(holder) if isinstance(holder, list) else holder.items()):
            spots.append(Spot(holder, key))
            if isinstance(part, (list, dict)):
                level.append(part)
    return spots


def change_tree(tree: list[Any], others: list[bytes], random: Random) -> None:
    """Change a few places of a tree.

    Args:
        tree: A list that contains it.
        others: Packed values of which parts may be taken.
        random: Chooses.
    """
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        spots = spots_in(tree)
        if not 0 < len(spots) < _MOST_SPOTS:
            return
        spot = random.choice(spots)
        random.choice(CHANGES)(spot, others, random)


def _replace(spot: Spot, others: list[bytes], random: Random) -> None:
    spot.holder[spot.key] = random.choice(EDGES)


def _take_other(spot: Spot, others: list[bytes], random: Random) -> None:
    taken = random.choice(spots_in([tree_of(random.choice(others))]))
    spot.holder[spot.key] = taken.holder[taken.key]


def _change_part(spot: Spot, others: list[bytes], random: Random) -> None:
    part = spot.holder[spot.key]
    if isinstance(part, Part) and random.random() < 0.5:
        payload = change_bytes(part.data, random) if part.data and random.random() < 0.5 else random.choice(PAYLOADS)
        spot.holder[spot.key] = Part(part.code, payload)
    elif isinstance(part, Part) and not part.data:
        spot.holder[spot.key] = Part(int(random.choice([*Record])), b"")
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        spot.holder[spot.key] = random.choice((-part, part + 1, part * 2, 2**63 - 1, 2**64 - 1, -1))
    else:
        spot.holder[spot.key] = Part(random.randrange(-1, 60), random.choice(PAYLOADS))


def _make_record(spot: Spot, others: list[bytes], random: Random) -> None:
    spot.holder[spot.key] = [
        Part(int(random.choice([*Record])), b""),
        spot.holder[spot.key],
        *random.choices(EDGES, k=3),
    ]


def _make_leaf(spot: Spot, others: list[bytes], random: Random) -> None:
    spot.holder[spot.key] = Part(int(random.choice([*Leaf])), random.choice(PAYLOADS))


def _repeat(spot: Spot, others: list[bytes], random: Random) -> None:
    part = spot.holder[spot.key]
    if isinstance(part, (str, bytes)) and len(part) < 10_000:
        spot.holder[spot.key] = part * random.choice((2, 50, 2000))
    elif isinstance(part, list) and 0 < len(part) < 1000:
        spot.holder[spot.key] = [*part, *part[1:] * random.choice((1, 2, 300))]
    elif not isinstance(part, (list, dict, str, bytes)):
        spot.holder[spot.key] = [part] * random.choice((1, 2, 3000))


def _remove(spot: Spot, others: list[bytes], random: Random) -> None:
    del spot.holder[spot.key]


def _exchange(spot: Spot, others: list[bytes], random: Random) -> None:
    other = random.choice(spots_in([spot.holder]))
    if other.holder is spot.holder:
        spot.holder[spot.key], spot.holder[other.key] = spot.holder[other.key], spot.holder[spot.key]


def _rename(spot: Spot, others: list[bytes], random: Random) -> None:
    if isinstance(spot.holder, dict):
        spot.holder[random.choice((*NAMES, "", "\0", "__class__", "args", "errno"))] = spot.holder.pop(spot.key)
    else:
        spot.holder.insert(spot.key, random.choice(EDGES))


CHANGES: tuple[Callable[[Spot, list[bytes], Random], None], ...] = (
    _replace, _replace, _take_other, _take_other, _change_part, _change_part, _change_part, _make_record, _make_leaf,
    _repeat, _remove, _exchange, _rename,
)  # fmt: skip


def change_bytes(data: bytes, random: Random) -> bytes:
    """Flip bits, cut, repeat or insert bytes."""
    at = random.randrange(len(data) + 1)
    turned = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        if turned:
            turned[random.randrange(len(turned))] ^= 1 << random.randrange(8)
    return random.choice(
        (
            bytes(turned),
            bytes(turned),
            data[:at],
            data[:at] + random.randbytes(3) + data[at:],
            data[:at] + data[at // 2 :],
        )
    )


@contextmanager
def opened() -> Iterator[Trial]:
    """Open the fuzzer of the serializer."""
    writes = KeelSerializer(max_bytes=LEAST_BYTES)
    samples = [writes.pack(value) for value in VALUES]
    readers = [
        writes,
        KeelSerializer(strict=True, max_bytes=LEAST_BYTES),
        writes.with_placeholders(),
        KeelSerializer(strict=True, max_bytes=LEAST_BYTES).with_placeholders(),
    ]

    def trial(random: Random) -> None:
        packed = [hostile(samples, random) for _ in range(random.choice((1, 1, 2)))]
        reader = random.choice(readers)
        if random.random() < 0.3:
            items = b"".join(b"\x92\x00" + each for each in packed)
            if random.random() < 0.2:
                items = change_bytes(items, random)
            found: Any = Codec(reader).decode(raw_frame(array_header(len(packed)) + items))
        else:
            found = reader.unpack(packed[0])
        writes.pack(found)

    yield trial


def hostile(samples: list[bytes], random: Random) -> bytes:
    """Return a packed value that was changed."""
    at = random.randrange(len(samples))
    if random.random() < 0.2:
        return change_bytes(samples[at], random)
    tree = [tree_of(samples[at])]
    change_tree(tree, samples, random)
    try:
        packed = packed_tree(tree[0] if tree else None)
    except TypeError:  # deeper than ormsgpack packs
        packed = samples[at]
    return change_bytes(packed, random) if random.random() < 0.05 else packed
