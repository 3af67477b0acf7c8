"""The commands that go through a thread's history: `timeline`, `rewind`, `fork`, `label` and `unlabel`.

What people name on the command line: threads, and checkpoints in them.

`keel diff`: what changed between two moments.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from rich.text import Text

from langgraph_keel.cli import threads as checkpoints
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    AsJson,
    Full,
    Imports,
    Thread,
    Url,
    changing,
    console,
    print_json,
    reading,
    shell_word,
    url_to_name,
)
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import plain
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.diff import DiffPage
from langgraph_keel.history.timeline import Timeline

EVERY_NS = "*"
"""All namespaces of a thread."""


def config_of(thread: str, ns: str | None, checkpoint: str | None = None) -> Any:
    """Return the config that names a thread, and what else is given."""
    given = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}
    return {"configurable": {key: value for key, value in given.items() if value is not None}}


def named(saver: Any, thread: str, ns: str, wanted: str) -> CheckpointTuple:
    """Return the checkpoint with this position, label or id, or whose id starts or ends so."""
    if ns != EVERY_NS and (exact := saver.get_tuple(config_of(thread, ns, wanted))):
        return cast(CheckpointTuple, exact)
    if moment := _called(saver, thread, wanted):
        return cast(CheckpointTuple, saver.get_tuple(moment.config))
    every: list[CheckpointTuple] = list(saver.list(config_of(thread, None if ns == EVERY_NS else ns)))
    if not every:
        raise no_thread(saver, thread, ns)
    found = [item for item in every if _matches(checkpoints.id_of(item), wanted)]
    if len(found) == 1:
        return found[0]
    raise _no_checkpoint(thread, wanted) if not found else _ambiguous(wanted, found)


def _matches(checkpoint: str, wanted: str) -> bool:
    return bool(wanted) and (checkpoint.startswith(wanted) or checkpoint.endswith(wanted))


def _ambiguous(wanted: str, found: list[CheckpointTuple]) -> InvalidInput:
    ids = ", ".join(checkpoints.id_of(item) for item in found[:3])
    return InvalidInput(f"{wanted!r} fits {len(found)} checkpoints ({ids}{', …' * (len(found) > 3)}): give more of it")


def _no_checkpoint(thread: str, wanted: str) -> NotFound:
    return NotFound(f"thread {thread!r} has no checkpoint {wanted!r}: `keel history` lists its checkpoints")


def no_thread(saver: Any, thread: str, ns: str) -> NotFound:
    """Return the error for a thread, or a namespace in it, that is not there."""
    if ns and next(iter(saver.list(config_of(thread, None), limit=1)), None):
        return NotFound(f"thread {thread!r} has nothing in namespace {ns!r}: --ns '*' shows all of them")
    known = [info.thread_id for info in itertools.islice(saver.threads(), 1000)]
    close = difflib.get_close_matches(thread, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`keel threads` lists those there are"
    return NotFound(f"there is no thread {thread!r}: {hint}")


def opened(saver: Any, thread: str) -> Timeline:
    """Return the timeline of a thread.

    Raises:
        NotFound: There is no such thread.
    """
    found: Timeline = saver.timeline(thread)
    if not found:
        raise no_thread(saver, thread, "")
    return found


def moment_of(found: Timeline, at: str) -> Moment:
    """Return the moment that a word of the command line names.

    Raises:
        NotFound: There is none.
        InvalidInput: It is the end of several ids, a position that the thread has not, or a misspelt option.
    """
    if at.startswith("--"):
        raise InvalidInput(f"no such option: {at}")
    try:
        return found.moment(int(at) if _is_position(at) else at)
    except IndexError as error:
        raise InvalidInput(str(error)) from None


def _is_position(at: str) -> bool:
    return at.removeprefix("-").isdecimal() and len(at) < 8  # longer ones are ends of ids


def _called(saver: Any, thread: str, at: str) -> Moment | None:
    """Return the moment that has this position or label; `None` if it is neither."""
    is_named = _is_position(at) or at in {label.name for label in saver.labels(thread)}
    found: Timeline = saver.timeline(thread)
    return moment_of(found, at) if is_named and found else None


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


Before = Annotated[
    str, typer.Argument(metavar="A", help="A moment: its position in `keel timeline`, its label, its id or its end.")
]
After = Annotated[str | None, typer.Argument(metavar="[B]", help="Another one; the latest if left out.")]
Other = Annotated[str | None, typer.Option("--other", metavar="THREAD", help="The thread of B, if it is another one.")]
AsPatch = Annotated[bool, typer.Option("--patch", help="Print a JSON Patch (RFC 6902), which makes B of A as JSON.")]


def diff(
    thread: Thread,
    before: Before,
    after: After = None,
    url: Url = DEFAULT_URL,
    other: Other = None,
    patch: AsPatch = False,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Show what changed between two moments: messages word by word, other values by their paths.

    Example: `keel diff my-thread 5f0c2a91 9be01c22`
    """
    with reading(url, imports) as saver:
        found = saver.diff(resolve(saver, thread, before), resolve(saver, other or thread, after))
    if patch or json:
        print_json(found.to_patch() if patch else found.plain())
    else:
        console().print(DiffPage(found, full))


def resolve(saver: Any, thread_id: str, text: str | None) -> RunnableConfig:
    """Return the config of the moment that a person means; of the latest if they do not say.

    Raises:
        NotFound: There is no such thread, or no such moment.
        InvalidInput: Several moments fit.
    """
    found = opened(saver, thread_id)
    config: RunnableConfig = config_of(thread_id, "") if text is None else moment_of(found, text).config
    return config
