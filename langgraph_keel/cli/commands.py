"""Which commands there are, and where each stands. A module of commands is imported when one of them is called.

So `keel --help` and `keel --version` answer at once. What the list of commands says of each is what stands first in its
docstring; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.main import get_group

COMMANDS: Mapping[str, str] = {
    "demo": "Kill an agent in the middle of its work and see another process finish it. No key, no network.",
    "threads": "List the threads in a store, the one last active first.",
    "history": "List a thread's checkpoints, newest first: what ran, what comes next, what waits, where it branched.",
    "show": "Show the state at a checkpoint: messages and other channels, metadata, pending writes, open questions.",
    "timeline": "Draw a thread as a tree of moments: what ran, what changed, branches, subgraphs, labels, questions.",
    "diff": "Show what changed between two moments: messages word by word, other values by their paths.",
    "rewind": "Make a moment the latest of its thread again; nothing is deleted. The next run goes on from there.",
    "fork": "Begin another way from a moment: a new thread that has its history, or a branch in the same one.",
    "label": "Give a moment a name, by which every command finds it; it is kept when the thread is pruned.",
    "unlabel": "Take a name back.",
    "provenance": (
        "List the calls of models that wrote a thread: which model answered, with what, and where that changed."
    ),
    "archive": "List what was taken out of a thread's messages, oldest first; or show messages of it.",
    "export": "Write threads as JSON Lines: messages in chat format, calls of tools and models, usage, cost, outcome.",
    "schema": "Create the tables of a store, or print the SQL that would.",
    "tools": "List the tool calls of a thread: what ran, how it ended, what was answered from the ledger since.",
    "settle": "Say what became of a tool call that was cut off, so that its thread can go on.",
    "approvals": "List what waits for a person's decision, over all threads, the oldest first.",
    "approval": (
        "Show a request: what will happen, the facts and how they have changed, who may decide, what happened to it."
    ),
    "approve": "Let the agent act as it has asked. Shown first, and asked once more in a terminal.",
    "reject": "Do not let the agent act; it is told the reason.",
    "edit": "Let the agent act with other arguments. How they differ is shown first.",
    "answer": "Answer a question: the value is what the agent's `interrupt()` returns.",
    "sweep": "Look after all threads: prune and delete as `keel retention` says, expire requests, close what is moot.",
    "prune": "Remove old checkpoints of threads; without options all but the latest.",
    "erase": "Delete all that is stored of a person, and say what went and what did not.",
    "reclaim": (
        "Give back the space of what was deleted. `--full` locks the tables, or the file, for as long as it takes."
    ),
    "check": (
        "Read every log of a store of files, and say what is not as it was written: damage, leftovers, "
        "conflicts of git."
    ),
    "repair": "Make the damaged logs of a store of files readable again, up to the damage.",
    "cache": "The cache of tool results: what it holds and saves, and clearing it.",
    "audit": "The audit trail of approvals: what it says, and whether it was changed.",
    "retention": "The policies by which `keel sweep` prunes and deletes threads.",
}
"""The summary of each command, or group of commands, in the order in which they are listed."""

_NAMES = {
    "demo": ("demo",),
    "threads": ("threads",),
    "show": ("show",),
    "history": ("history", "timeline", "diff", "rewind", "fork", "label", "unlabel"),
    "provenance": ("provenance", "export"),
    "archive": ("archive",),
    "tools": ("tools", "settle", "cache"),
    "approvals": ("approvals", "approval", "approve", "reject", "edit", "answer", "sweep"),
    "audit": ("audit",),
    "retention": ("prune", "erase", "reclaim", "retention"),
    "admin": ("schema", "check", "repair"),
}
_MODULES = {name: f"langgraph_keel.cli.{module}" for module, names in _NAMES.items() for name in names}
_WITH_MOMENTS = {"diff", "rewind", "fork", "label"}
"""Those that take moments: `-1`, the last one, is no option."""


def find_command(name: str) -> Any:
    """Return the function behind a command, or the `Typer` of a group of commands."""
    return getattr(import_module(_MODULES[name]), name)


def load_command(name: str) -> Any:
    """Return a command as Click runs it."""
    found, holder = find_command(name), typer.Typer(rich_markup_mode="markdown")
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(context_settings={"ignore_unknown_options": name in _WITH_MOMENTS})(found)
    return get_group(holder).commands[name]
