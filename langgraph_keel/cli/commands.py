"""The list of commands, with the summaries that `keel --help` shows.

A module is imported only when one of its commands is called, so `keel --help` is fast.

The summary of a command is the first paragraph of its docstring; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from inspect import getdoc
from keyword import iskeyword
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

TENANT: ContextVar[str | None] = ContextVar("keel_tenant", default=None)
"""The value of `keel --tenant`."""

PANELS: Mapping[str, Mapping[str, str]] = {
    "Getting started": {"demo": "Kill an agent mid-run and watch another process finish it."},
    "Inspect": {
        "threads": "List the threads of a store, most recently active first.",
        "status": "Show the remaining work of a thread, and the safe next step.",
        "usage": "Report usage by owner, tenant, status, day or thread.",
        "history": "List a thread's checkpoints, newest first: nodes, questions, branches.",
        "show": ("Show the state at a checkpoint: channels, metadata, writes, questions."),
        "timeline": ("Draw a thread as a tree of checkpoints: nodes, changes, branches, labels."),
        "tail": "Print checkpoints and status changes of one thread, or of all threads.",
        "diff": "Show the changes between two checkpoints: messages by word, values by path.",
        "archive": "List or show messages that were removed from a thread's state and archived.",
    },
    "Recover": {
        "work": "Run a worker that continues threads whose process died or was stopped.",
    },
    "Time travel": {
        "rewind": "Make an earlier checkpoint the latest of its thread.",
        "fork": "Branch off at a checkpoint, to a new thread or within the same thread.",
        "label": "Label a checkpoint; commands accept the label, and pruning keeps it.",
        "unlabel": "Remove a label.",
    },
    "Hand over": {
        "handoff": "Summarize a thread for the next session: goal, work, decisions, next step.",
        "journal": "Show a daily journal of a thread, or of all threads of an owner.",
        "note": "Attach a note to a thread: a decision, a finding, a goal or the next step.",
        "outcome": "Record the outcome of an earlier decision.",
        "notes": "List the notes of a thread, or of all threads, oldest first.",
    },
    "Files": {"workspace": "List, compare and restore files that were saved with checkpoints."},
    "Memory": {"store": "List, search and change the items that all threads share (long-term memory)."},
    "Approvals": {
        "web": "Serve a web page for deciding requests and inspecting threads, until stopped.",
        "approvals": "List requests that wait for a person's decision, in all threads, oldest first.",
        "approval": "Show a request: action, facts and their changes, reviewers and history.",
        "approve": "Approve a request: the agent acts as it asked.",
        "reject": "Reject a request: the agent does not act, and receives the reason.",
        "edit": "Approve a request with other arguments. Shows the difference first.",
        "answer": "Answer a question: the agent's `interrupt()` returns the value.",
        "revise": "Withdraw a decision that the agent cannot act on, to decide again.",
        "audit": "Show the audit trail of approvals, or verify that it is unchanged.",
    },
    "Tools": {
        "tools": "List the tool calls of a thread, or all calls with an unknown outcome.",
        "settle": "Settle a tool call whose outcome is unknown, so that its thread can continue.",
        "cache": "Show statistics of stored tool results, or clear them.",
    },
    "Models": {
        "provenance": "List the model calls of a thread: models, settings, and their changes.",
    },
    "Import and export": {
        "import": "Import threads from one of LangGraph's own savers, and compare them.",
        "copy": "Copy threads between stores of any backend, and compare every value.",
        "export": "Export threads as JSON Lines: messages, tool and model calls, usage, cost.",
    },
    "Retention and space": {
        "stats": "Chart storage by kind, channel and thread, and estimate possible savings.",
        "prune": "Remove old checkpoints of threads. Without options, all except the latest.",
        "delete": "Delete threads and everything that belongs to them.",
        "erase": "Erase a person's threads, items, or both, and report the result.",
        "hold": "Place a hold on a person, whose data is then kept; release or list holds.",
        "retention": "Show and change the policies by which `keel sweep` prunes and deletes threads.",
        "sweep": "Apply retention policies; expire and close approval requests.",
        "reclaim": "Reclaim the space of deleted data.",
    },
    "Store administration": {
        "tenants": "List the tenants that have data in a store.",
        "info": "Show a store's backend, format, durability, size, threads and open requests.",
        "check": "Read all stored data and report damage. Changes nothing.",
        "repair": "Repair a store of files (files:DIRECTORY); keep all records that can be read.",
        "schema": "Create the tables of a store, or print the SQL that creates them.",
        "doctor": "Check before a deployment which threads would break with a graph's code.",
        "upgrade": "Upgrade the states of all threads to the version of a graph's code.",
        "keys": "Manage the keys of an encrypted store: create, show, rotate, renew, migrate.",
    },
}
"""The summary of each command or group, by panel of `keel --help`, in order."""

COMMANDS = {name: summary for panel in PANELS.values() for name, summary in panel.items()}

_NAMES = {
    "demo": ("demo",),
    "threads": ("threads", "usage", "status"),
    "show": ("show",),
    "history": ("history", "timeline", "diff", "rewind", "fork", "label", "unlabel"),
    "notes": ("note", "outcome", "notes", "handoff", "journal"),
    "provenance": ("provenance", "export"),
    "archive": ("archive",),
    "copy": ("copy", "stats"),
    "tools": ("tools", "settle", "cache"),
    "approvals": ("approvals", "approval", "approve", "reject", "edit", "answer", "revise", "sweep"),
    "audit": ("audit",),
    "retention": ("prune", "delete", "erase", "hold", "reclaim", "retention"),
    "admin": ("tenants", "info", "check", "repair", "schema"),
    "keys": ("keys",),
    "moving": ("import",),
    "upgrades": ("doctor", "upgrade"),
    "tail": ("tail",),
    "work": ("work",),
    "workspace": ("workspace",),
    "store": ("store",),
    "web": ("web",),
}
_MODULES = {name: f"langgraph_keel.cli.{module}" for module, names in _NAMES.items() for name in names}
_NEGATIVE = re.compile("-[0-9]+")


def find_command(name: str) -> Any:
    """Return the function behind a command, or the `Typer` of a group of commands."""
    return getattr(import_module(_MODULES[name]), f"{name}_" if iskeyword(name) else name)


def load_command(name: str) -> Any:
    """Return a command as Click runs it; its example becomes the epilog."""
    found, holder = find_command(name), typer.Typer(rich_markup_mode="markdown")
    if isinstance(found, typer.Typer):
        for info in found.registered_commands:
            info.help, info.epilog = _split_example(info.callback)
        holder.add_typer(found, name=name)
    else:
        summary, example = _split_example(found)
        holder.command(name, cls=_Command, help=summary, epilog=example)(found)
    command = get_group(holder).commands[name]
    for each in (command, *getattr(command, "commands", {}).values()):
        hide_types(each)
    return command


class _Command(TyperCommand):
    """A command that accepts negative numbers as arguments, such as `-1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Only then: a command that ignores unknown options cannot suggest corrections of misspelled ones.
        ctx.ignore_unknown_options = any(map(_NEGATIVE.fullmatch, args))
        return super().parse_args(ctx, args)


def hide_types(command: Any) -> None:
    """Hide types such as `<bool>` that new versions of Typer show in the help."""

    def get_help_option(ctx: Any) -> Any:
        # Runs when all options exist: Typer adds some to the top command, and the help option is created here.
        option = find_help(ctx)
        for each in (*command.params, option):
            if getattr(each, "is_flag", False):
                each.metavar = ""
            elif getattr(each, "param_type_name", "") == "argument":
                each.display_type_rich = lambda **_: None  # its metavar is its name
        return option

    find_help = command.get_help_option
    command.get_help_option = get_help_option


def _split_example(function: Any) -> tuple[str, str]:
    summary, mark, example = (getdoc(function) or "").rpartition("\n\nExample: ")
    return summary, f"Example: {example}" if mark else ""
