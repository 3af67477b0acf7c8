"""Data classes of an application that only its own processes import.

These are `support.shop.application`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from langchain_core.messages import HumanMessage
from pydantic import BaseModel


class Status(Enum):
    OPEN = "open"
    PAID = "paid"


@dataclass
class Order:
    items: list[str]
    status: Status = Status.OPEN


@dataclass
class Basket:
    """Large enough to be stored as a snapshot and edits (`trees`)."""

    note: str
    orders: dict[str, Order] = field(default_factory=dict)
    total: int = 0


class Customer(BaseModel):
    name: str
    orders: list[Order] = []


class Memo(HumanMessage):
    """A message of the application's own class."""

    order: str = ""
