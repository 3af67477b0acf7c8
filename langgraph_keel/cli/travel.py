"""The commands that go through a thread's history: `timeline`, `rewind`, `fork`, `label` and `unlabel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli.naming import moment_of, opened
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Imports, Thread, Url, changing, reading, url_to_name
from langgraph_keel.cli.terminal import console, print_json, shell_word
from langgraph_keel.timeline.moment import Moment
from langgraph_keel.timeline.plain import as_json
from langgraph_keel.timeline.safe import plain

MOMENTS = {"ignore_unknown_options": True}
"""For commands that take moments: `-1`, the last one, is no option."""
At = Annotated[
    str,
    typer.Argument(metavar="MOMENT", help="Its position in `keel timeline`, its label, its id or the end of that."),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many, the newest.")]
Every = Annotated[bool, typer.Option("--all", help="Show all of the thread.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The label: any text that is no number.")]
NewThread = Annotated[
    str | None,
    typer.Argument(metavar="NEW", help="The new thread's id. Without it, a branch in the same thread."),
]


def timeline(
    thread: Thread,
    url: Url = DEFAULT_URL,
    limit: Limit = 20,
    every: Every = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Draw a thread as a tree of moments: what ran, what changed, branches, subgraphs, labels, questions.

    Example: `keel timeline my-thread`
    """
    with reading(url, imports) as saver:
        found = opened(saver, thread)
        moments = found[:] if every else found.latest(limit)
        if json:
            print_json({"thread_id": thread, "moments": [_json(each) for each in moments], "older": moments.older})
        else:
            console().print(moments)


def _json(moment: Moment) -> dict[str, Any]:
    return {
        "position": moment.position,
        "checkpoint_id": moment.id,
        "checkpoint_ns": moment.namespace,
        "parent_checkpoint_id": moment.parent,
        "step": as_json(moment.step),
        "source": moment.source,
        "ts": moment.time.isoformat() if moment.time else None,
        "ran": list(moment.nodes),
        "next": list(moment.next),
        "changes": {change.channel: change.text for change in moment.changes},
        "labels": list(moment.labels),
        "models": list(moment.models),
        "tools": [{"name": tool.name, "is_replayed": tool.is_replayed} for tool in moment.tools],
        "interrupts": [{"id": asked.id, "value": as_json(asked.value)} for asked in moment.interrupts],
        "errors": list(moment.errors),
        "pending_writes": list(moment.pending),
        "not_read": list(moment.unread),
        "drift": list(moment.drift),
        "tokens": list(moment.tokens),
        "cost": moment.cost,
        "bytes": moment.bytes,
        "head": moment.is_head,
        "leaf": moment.is_leaf,
    }


def rewind(thread: Thread, at: At, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Make a moment the latest of its thread again; nothing is deleted. The next run goes on from there.

    Example: `keel rewind my-thread 14`
    """
    with changing(url) as saver:
        found = opened(saver, thread)
        moment = moment_of(found, at)
        found.rewind(moment)
        now = found[-1]
    if json:
        print_json({"thread_id": thread, "rewound_to": moment.id, "checkpoint_id": now.id})
        return
    console().print(_told("rewound ", thread, f" to moment {moment.position}, step {plain(str(moment.step))}"))
    _hint(["timeline", thread], url, "shows it")


def fork(thread: Thread, at: At, new: NewThread = None, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Begin another way from a moment: a new thread that has its history, or a branch in the same one.

    Example: `keel fork my-thread 14 what-if`
    """
    with changing(url) as saver:
        found = opened(saver, thread)
        moment = moment_of(found, at)
        config = found.fork(moment, new)["configurable"]
    if json:
        print_json({"thread_id": config["thread_id"], "checkpoint_id": config.get("checkpoint_id", moment.id)})
    elif new is None:
        branch = plain(config["checkpoint_id"])
        console().print(_told("a branch of ", thread, f" at moment {moment.position}: checkpoint {branch}"))
    else:
        console().print(_told("forked ", thread, f" at moment {moment.position} to thread {plain(new)}"))
        _hint(["timeline", new], url, "shows it")


def label(thread: Thread, at: At, name: Name, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Give a moment a name, by which every command finds it; it is kept when the thread is pruned.

    Example: `keel label my-thread 14 "before migration"`
    """
    with changing(url) as saver:
        found = opened(saver, thread)
        moment = moment_of(found, at)
        moment.label(name)
    _done(thread, name, f"moment {moment.position} is now", json, moment.id)


def unlabel(thread: Thread, name: Name, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Take a name back.

    Example: `keel unlabel my-thread "before migration"`
    """
    with changing(url) as saver:
        saver.unlabel(thread, name)
    _done(thread, name, "no moment is any more", json, None)


def _done(thread: str, name: str, what: str, json: bool, checkpoint: str | None) -> None:
    if json:
        print_json({"thread_id": thread, "label": name, "checkpoint_id": checkpoint})
    else:
        console().print(_told("", thread, f": {what} {plain(repr(name))}"))


def _told(before: str, thread: str, after: str) -> Text:
    return Text.assemble(before, (plain(thread), "bold"), after)


def _hint(words: Sequence[str], url: str, what: str) -> None:
    name = url_to_name(url)
    line = " ".join(["keel", *map(shell_word, words), *(["--url", shell_word(name)] if name else [])])
    console().print(Text(f"{line}  {what}", "dim"))
