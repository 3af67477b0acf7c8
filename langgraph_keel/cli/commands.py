"""The list of commands. A module is imported when one of its commands is called, so `keel --help` answers at once.

The summary of a command is the first sentence of its docstring; a test compares them.
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
    "Begin": {"demo": "Kill an agent in the middle of its work and see another process finish it. No key, no network."},
    "Look": {
        "threads": "List the threads in a store, the one last active first.",
        "status": "Say what a thread has left to do, and what is safe to do next.",
        "usage": (
            "Say what threads have taken: tokens, cost, checkpoints, bytes; by owner, tenant, status, day or thread."
        ),
        "history": (
            "List a thread's checkpoints, newest first: what ran, what comes next, what waits, where it branched."
        ),
        "show": (
            "Show the state at a checkpoint: messages and other channels, metadata, pending writes, open questions."
        ),
        "timeline": (
            "Draw a thread as a tree of moments: what ran, what changed, branches, subgraphs, labels, questions."
        ),
        "tail": (
            "Print the checkpoints and changes of status of a thread, or of all, in the order in which they are seen."
        ),
        "diff": "Show what changed between two moments: messages word by word, other values by their paths.",
        "archive": "List what was taken out of a thread's messages, oldest first; or show messages of it.",
    },
    "Recover": {
        "work": (
            "Continue threads whose process has died, and those that were drained or accepted, until it is stopped."
        ),
    },
    "Travel": {
        "rewind": "Make a moment the latest of its thread again; nothing is deleted. The next run goes on from there.",
        "fork": "Begin another way from a moment: a new thread that has its history, or a branch in the same one.",
        "label": "Give a moment a name, by which every command finds it; it is kept when the thread is pruned.",
        "unlabel": "Take a name back.",
    },
    "Hand over": {
        "handoff": ("Show what the next session needs to continue a thread: goal, done, failed, decided, next step."),
        "journal": (
            "Show by day what happened in a thread, or in all threads of an owner: runs, tools, notes, decisions."
        ),
        "note": "Write a note beside a thread: a decision before the act, a finding, a goal or the next step.",
        "outcome": "Write the outcome of a decision that was noted before.",
        "notes": "List notes of a thread, or of all threads, the oldest first.",
    },
    "Files": {"workspace": "The files that were saved with checkpoints."},
    "Memory": {"store": "The items that all threads share: what agents remember."},
    "Decide": {
        "web": "Serve a page on which people decide what waits, and look at threads, until it is stopped.",
        "approvals": "List what waits for a person's decision, over all threads, the oldest first.",
        "approval": (
            "Show a request: what will happen, the facts and how they have changed, who may decide, what happened "
            "to it."
        ),
        "approve": "Let the agent act as it has asked. Shown first, and asked once more in a terminal.",
        "reject": "Do not let the agent act; it is told the reason.",
        "edit": "Let the agent act with other arguments. How they differ is shown first.",
        "answer": "Answer a question: the value is what the agent's `interrupt()` returns.",
        "revise": (
            "Take a decision back that the agent cannot act on, so that it can be made again. The audit trail says who "
            "did it."
        ),
        "audit": "The audit trail of approvals: what it says, and whether it was changed.",
    },
    "Tools": {
        "tools": "List the tool calls of a thread, or those in doubt of all: what ran, and how it ended.",
        "settle": "Say what became of a tool call that was cut off, so that its thread can go on.",
        "cache": "The cache of tool results: what it holds and saves, and clearing it.",
    },
    "Models": {
        "provenance": (
            "List the calls of models that wrote a thread: which model answered, with what, and where that changed."
        )
    },
    "Move": {
        "import": (
            "Move threads in from the store of one of LangGraph's own savers, each compared with what it was there."
        ),
        "copy": (
            "Copy threads from one store to another, of any backend, and compare all that was copied. Nothing is "
            "deleted."
        ),
        "export": (
            "Write threads as JSON Lines: messages in chat format, calls of tools and models, usage, cost, outcome."
        ),
    },
    "Keep it small": {
        "stats": (
            "Draw where the bytes are: by kind of record, channel and thread; what is never read again; "
            "what would save some."
        ),
        "prune": "Remove old checkpoints of threads; without options all but the latest.",
        "delete": "Delete threads, with all that is theirs.",
        "erase": "Delete the threads of a person, their items, or both, and say what went and what did not.",
        "hold": "Put a person on hold, so that nothing of theirs is removed; release them, or list all holds.",
        "retention": "The policies by which `keel sweep` prunes and deletes threads.",
        "sweep": (
            "Look after all threads: prune and delete as `keel retention` says, expire requests, close what is moot."
        ),
        "reclaim": (
            "Give back the space of what was deleted. `--full` locks the tables, or the file, for as long as it takes."
        ),
    },
    "The store": {
        "tenants": "List the tenants that have something in a store.",
        "info": "Show what a store is and holds: backend, format, durability, size, threads, what waits.",
        "check": "Read all that is stored, and say what is not as it was written. Changes nothing.",
        "repair": "Make the damaged logs of a store of files readable again, up to the damage.",
        "schema": "Create the tables of a store, or print the SQL that would.",
        "doctor": "Open the threads of a store with the code of a graph, and say which would break. Changes nothing.",
        "upgrade": "Carry all threads over to the present version of an application, and say which could not be.",
        "keys": "The keys of an encrypted store: make one, see which is needed, rotate, renew, migrate.",
    },
}
"""The summary of each command, or group of commands, in the panels of `keel --help`, as they are listed there."""

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
    """Return a command as Click runs it. The example at the end of its docstring is its epilog."""
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
    """A command. A negative number, as `-1` for the last moment, is no option of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Not always: who ignores unknown options cannot say what one may be a misspelling of.
        ctx.ignore_unknown_options = any(map(_NEGATIVE.fullmatch, args))
        return super().parse_args(ctx, args)


def hide_types(command: Any) -> None:
    """Have the help of a command show names without types: new Typers write `<bool>` and `<str>` beside them."""

    def get_help_option(ctx: Any) -> Any:
        # Asked for when all options are known: Typer adds some to the top command, and the one for help is made here.
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
