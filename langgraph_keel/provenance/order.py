"""What is to be replayed, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph_keel.core.address import address_of, texts_of
from langgraph_keel.errors import InvalidInput

_ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be replayed, and how; see `KeelSaver.replay`."""

    source: str
    start: str | None
    config: Mapping[str, Any]
    configurable: Mapping[str, Any]
    inputs: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    bind: bool = False
    allow_tools: Collection[str] = ()
    ignore: Collection[str] = ()
    limit: int = 100
    keep: bool = False
    on_step: Callable[[int], object] | None = None


def ordered(
    config: Mapping[str, Any],
    configurable: Mapping[str, Any] | None,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    bind: bool,
    allow_tools: Collection[str],
    ignore: Collection[str],
    limit: int,
    keep: bool,
    on_step: Callable[[int], object] | None,
) -> Order:
    """Return what a caller wants, checked.

    Raises:
        InvalidInput: It cannot be meant so.
        InvalidConfig: The config names no usable thread.
    """
    address = address_of(config)
    if address.checkpoint_ns:
        raise InvalidInput(f"a root graph is replayed, with its subgraphs; not {address.checkpoint_ns!r} alone")
    if not isinstance(limit, int) or limit < 1:
        raise InvalidInput(f"limit={limit!r}: use a whole number above 0")
    if isinstance(inputs, (str, Mapping)):
        raise InvalidInput("inputs is a list: what each run was given")
    wanted = {name: value for name, value in config["configurable"].items() if name not in _ADDRESS}
    return Order(
        source=address.thread_id,
        start=address.checkpoint_id,
        config={name: value for name, value in config.items() if name not in ("configurable", "run_id")},
        configurable={**wanted, **(configurable or {})},
        inputs=inputs,
        options=options,
        bind=bind,
        allow_tools=texts_of(allow_tools, "tool"),
        ignore=texts_of(ignore, "channel"),
        limit=limit,
        keep=keep,
        on_step=on_step,
    )
