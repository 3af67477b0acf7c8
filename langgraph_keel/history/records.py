"""Plain data of moments and diffs, which `Moment` and `StateDiff` extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from langgraph_keel.engine.config import Address
from langgraph_keel.history.edits import Edit

if TYPE_CHECKING:
    from langgraph.types import Interrupt
else:
    Interrupt = Any  # for `get_type_hints`: a thread without questions is shown without this import


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one channel in a step.

    Attributes:
        text: A short description.
        new: The elements that were added to a list, in order. Elements that may not be revived here are `Unread`.
    """

    channel: str
    text: str
    new: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool whose result a step has stored.

    Attributes:
        is_replayed: Whether the result came from a `ToolCache`, so the tool did not run.
    """

    name: str
    is_replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentRecord:
    """The data of one checkpoint; for the fields see `Moment`."""

    address: Address
    position: int
    parent: str | None = None
    step: int | None = None
    source: str = ""
    time: datetime | None = None
    nodes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    summary: str = ""
    labels: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    asked: tuple[Interrupt, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    errors: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    tokens: tuple[int, int] = (0, 0)
    cost: float | None = None
    bytes: int = 0
    state_bytes: int | None = None
    is_head: bool = False
    is_leaf: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same checkpoint."""
        return self.address == other.address if isinstance(other, MomentRecord) else NotImplemented

    def __hash__(self) -> int:
        """Hash the checkpoint's address."""
        return hash(self.address)

    @property
    def id(self) -> str:
        """The checkpoint's id."""
        return str(self.address.checkpoint_id)

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self.address.thread_id

    @property
    def namespace(self) -> str:
        """The namespace; empty for the root graph."""
        return self.address.checkpoint_ns


@dataclass(frozen=True, slots=True)
class DiffRecord:
    """The changes between two checkpoints; for the fields see `StateDiff`."""

    before: Address
    after: Address
    edits: Sequence[Edit]
    deltas: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.edits or self.deltas)

    def __len__(self) -> int:
        """Count the edits."""
        return len(self.edits)

    def __iter__(self) -> Iterator[Edit]:
        """Yield the edits."""
        return iter(self.edits)

    @property
    def channels(self) -> list[str]:
        """The channels that changed."""
        return list(dict.fromkeys([*(str(edit.path[0]) for edit in self.edits), *self.deltas]))
