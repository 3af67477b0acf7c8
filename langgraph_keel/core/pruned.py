"""What a prune or a sweep has done, or would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NO_POLICIES = "no policies are stored: nothing was pruned (see set_retention)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPruned:
    """What went of one thread, or would go.

    Attributes:
        thread_id: The thread.
        removed: How many of its checkpoints, over all namespaces; `None` if the whole thread goes: nobody counts then.
        kept: How many stay; if none was there, there is no such thread.
        deleted: Whether the whole thread goes, with all that belongs to it.
        rows: How many rows of values; `None` if the whole thread goes.
        bytes: How many bytes come back, of headers, writes and rows as they are stored; `None` unless it was a dry run,
            which looks. It may be more: what the database needs besides, and in a store of files single values out of
            what is read as one row, are not counted.
    """

    thread_id: str
    removed: int | None = 0
    kept: int = 0
    deleted: bool = False
    rows: int | None = 0
    bytes: int | None = None

    @property
    def is_changed(self) -> bool:
        """Whether anything goes."""
        return self.deleted or bool(self.removed) or bool(self.rows)

    def __str__(self) -> str:
        """Say it in one line."""
        name, is_dry = _printable(self.thread_id), self.bytes is not None
        size = f", {many(self.bytes, 'byte')}" if self.bytes is not None else ""
        if self.deleted:
            return f"{name}: {'would be deleted' if is_dry else 'deleted'}{size}"
        count = (self.removed or 0) + self.kept
        if not count:
            return f"{name}: no such thread"
        rows = f", and {many(self.rows, 'row')} that none of them shows" if self.rows and not self.removed else ""
        done = "would remove" if is_dry else "removed"
        return f"{name}: {done} {self.removed:,} of {many(count, 'checkpoint')}{rows}{size}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PruneReport:
    """What a prune has removed, or would remove.

    Attributes:
        threads: Thread by thread, in the order they were given.
        dry_run: Whether nothing was removed: this is what would go.
    """

    threads: Sequence[ThreadPruned] = ()
    dry_run: bool = False

    @property
    def removed(self) -> int:
        """Checkpoints, without those of threads that go as a whole."""
        return sum(each.removed or 0 for each in self.threads)

    @property
    def kept(self) -> int:
        """Checkpoints that stay."""
        return sum(each.kept for each in self.threads)

    @property
    def deleted(self) -> int:
        """Whole threads."""
        return sum(each.deleted for each in self.threads)

    @property
    def bytes(self) -> int | None:
        """Bytes; `None` if they were not counted."""
        return _sum([each.bytes for each in self.threads])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        totals = {"removed": self.removed, "kept": self.kept, "deleted": self.deleted, "bytes": self.bytes}
        return {"dry_run": self.dry_run, **totals, "threads": [asdict(each) for each in self.threads]}

    def __str__(self) -> str:
        """Say what went, thread by thread, and in all."""
        return "\n".join([*map(str, self.threads), _total(self)])

    def __repr__(self) -> str:
        """As `str`: what a notebook shows of it."""
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepReport(PruneReport):
    """What a sweep has done, or would do. `threads` are those of which something goes.

    Attributes:
        looked: How many threads it has looked at.
        failed: The threads that could not be read, and why; they are as they were.
        reminders: The requests for approval that a reminder is due for.
        has_policies: Whether there was any policy to sweep by.
    """

    looked: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    reminders: Sequence[Any] = ()
    has_policies: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without the reminders."""
        return {**PruneReport.to_dict(self), "looked": self.looked, "failed": dict(self.failed)}

    def __str__(self) -> str:
        """Say what went, thread by thread, and in all."""
        if not self.has_policies:
            return NO_POLICIES
        failed = [_printable(f"{name}: failed: {why}") for name, why in self.failed.items()]
        return "\n".join(
            [*map(str, self.threads), *failed, f"{_total(self)} ({many(self.looked, 'thread')} looked at)"]
        )


def _sum(sizes: Sequence[int | None]) -> int | None:
    counted = [size for size in sizes if size is not None]
    return sum(counted) if len(counted) == len(sizes) else None


def _total(report: PruneReport) -> str:
    what = [many(report.removed, "checkpoint")] if report.removed or not report.deleted else []
    what += [many(report.deleted, "whole thread")] if report.deleted else []
    what += [] if report.bytes is None else [many(report.bytes, "byte")]
    stay = f"{many(report.kept, 'checkpoint')} {'stays' if report.kept == 1 else 'stay'}"
    return f"{'would remove' if report.dry_run else 'removed'} {', '.join(what)}; {stay}"


def _printable(text: str) -> str:
    """Return text with all that could steer a terminal spelled out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def many(count: int, noun: str) -> str:
    """Return how many there are of something, in words."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
