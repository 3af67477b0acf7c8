"""How prunes, sweeps and policies look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.cli.show import table_of
from langgraph_keel.core.policies import Retention
from langgraph_keel.core.pruned import PruneReport, SweepReport, ThreadPruned
from langgraph_keel.timeline.columns import counted, size
from langgraph_keel.timeline.safe import plain

_MOST = 50
"""Threads that a table shows."""


def pruned_page(report: PruneReport) -> RenderableType:
    """Return what `keel prune` and `keel sweep` answer."""
    changed = [each for each in report.threads if each.is_changed]
    table = table_of("thread", "removed", "kept", *["bytes"] * report.dry_run)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in changed[:_MOST]:
        table.add_row(Text(plain(each.thread_id), "bold", overflow="fold"), *_cells(each, report.dry_run))
    shown: list[RenderableType] = [table] if changed else []
    if len(changed) > _MOST:
        shown.append(Text(f"… and {len(changed) - _MOST:,} more threads (--json shows all)", "dim"))
    if isinstance(report, SweepReport):
        for name, why in report.failed.items():
            shown.append(Text(f"{plain(name)} could not be read: {plain(why)}", "red"))
    return Group(*shown, Text(total_line(report), "yellow" if report.dry_run else "green"))


def _cells(each: ThreadPruned, dry_run: bool) -> list[str]:
    removed = "all of it" if each.deleted else f"{each.removed:,}"
    return [removed, f"{each.kept:,}", *([size(each.bytes or 0)] if dry_run else [])]


def total_line(report: PruneReport) -> str:
    """Return what goes in all, in one line."""
    if isinstance(report, SweepReport) and not report.has_policies:
        return "No policies are stored: nothing was pruned (`keel retention set` makes one)."
    what = [counted(report.removed, "checkpoint")] if report.removed or not report.deleted else []
    what += [counted(report.deleted, "whole thread")] if report.deleted else []
    back = f", {size(report.bytes)}" if report.bytes else ""
    looked = f" Looked at {counted(report.looked, 'thread')}." if isinstance(report, SweepReport) else ""
    return f"{'Would remove' if report.dry_run else 'Removed'} {' and '.join(what)}{back}.{looked}"


def policies_page(policies: Sequence[Retention]) -> RenderableType:
    """Return what `keel retention show` answers."""
    if not policies:
        return Text("No policies: everything stays (`keel retention set` makes one)", "dim")
    return Group(*(Text(plain(str(policy)), overflow="fold") for policy in policies))
