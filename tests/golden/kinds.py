"""Classes whose values are in the golden stores.

Module and names are stored, so never move or rename them.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from ipaddress import IPv4Address, IPv6Network
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
from langchain_core.documents import Document
from langgraph.types import Interrupt, Send
from pydantic import BaseModel


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Access(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Point:
    x: int
    y: float
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fare:
    amount: Decimal
    colour: Colour


class Leg(BaseModel):
    number: str
    fare: Fare
    seats: set[int] = set()
    at: datetime | None = None


class Pair(NamedTuple):
    left: Any
    right: Any


class Names(dict[str, Any]):
    pass


class Cancelled(Exception):
    def __init__(self, reason: str, *, code: int) -> None:
        super().__init__(f"cancelled: {reason}")
        self.code = code


TYPES = (Colour, Level, Access, Point, Fare, Leg, Pair, Names, Cancelled)


def plain() -> dict[str, Any]:
    """Return values of the standard library, of all kinds that Keel stores."""
    return {
        "tuple": (1, ("two", [3.0, None])),
        "set": {3, 1, 2},
        "frozen": frozenset({"a", "b"}),
        "bytes": b"\x00\xff",
        "array": bytearray(b"ab"),
        "big": 2**90,
        "complex": 1 - 2j,
        "nan": float("inf"),
        "keys": {1: "one", (2, 3): "pair", None: "none"},
        "deque": deque([1, 2], maxlen=3),
        "ordered": OrderedDict(b=1, a=2),
        "default": defaultdict(list, {"a": [1]}),
        "counter": Counter("abca"),
        "range": range(1, 9, 3),
        "aware": datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        "naive": datetime(2026, 1, 2, 3, 4, 5, 6),
        "utc": datetime(2026, 1, 2, tzinfo=UTC),
        "named": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2), "there")),
        "date": date(2026, 1, 2),
        "time": time(1, 2, 3, fold=1),
        "delta": timedelta(days=-1, microseconds=5),
        "uuid": UUID(int=7),
        "decimal": Decimal("1.20"),
        "path": PurePosixPath("a/b"),
        "ip": [IPv4Address("10.0.0.1"), IPv6Network("2001:db8::/32")],
        "pattern": re.compile("a.b", re.IGNORECASE),
        "errors": [
            KeyError("gone"),
            FileNotFoundError(2, "gone", "a/b"),
            ExceptionGroup("two", [ValueError(1)]),
        ],
        "surrogate": "\ud800 end",
        "numbers": np.arange(6, dtype="int32").reshape(2, 3),
        "number": np.float64(1.5),
    }


def own() -> dict[str, Any]:
    """Return values of the classes above, and of LangChain and LangGraph."""
    leg = Leg(
        number="LH 1", fare=Fare(Decimal("99.50"), Colour.BLUE), seats={1, 2}, at=datetime(2026, 5, 1, tzinfo=UTC)
    )
    return {
        "enum": [Colour.RED, Level.HIGH, Access.READ | Access.WRITE],
        "dataclass": Point(1, 2.5, ["near"]),
        "frozen": {leg.fare.colour: leg.fare},
        "model": leg,
        "namedtuple": Pair(Pair(1, 2), {"deep": leg}),
        "extension": Names(a=Point(0, 0)),
        "error": Cancelled("fog", code=7),
        "document": Document("text", metadata={"page": 3}),
        "send": Send("node", {"leg": leg}),
        "interrupt": Interrupt(value={"question": "really?"}, id="0" * 32),
    }


def large(turn: int) -> str:
    """Return a text of 60 kB that compresses well, and differs at each turn."""
    return "".join(f"line {number} of turn {turn}: all is well and nothing is lost\n" for number in range(1000))
