"""The commands that look into a store: `threads`, `history` and `show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel.cli import threads as checkpoints
from langgraph_keel.cli import threads as render
from langgraph_keel.cli.history import EVERY_NS, config_of, named, no_thread
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    AsJson,
    Full,
    Imports,
    Model,
    Thread,
    Url,
    console,
    print_json,
    reading,
)
from langgraph_keel.errors import CorruptStore, ValueRefused
from langgraph_keel.provenance.records import ModelCall

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
Ns = Annotated[str, typer.Option("--ns", metavar="NS", help="A subgraph's namespace; `*` for all of them.")]
Checkpoint = Annotated[
    str | None,
    typer.Argument(metavar="CHECKPOINT", help="Its id, or the start or end of it; the latest if left out."),
]


def threads(url: Url = DEFAULT_URL, limit: Limit = 50, model: Model = None, json: AsJson = False) -> None:
    """List the threads in a store, the one last active first.

    Example: `keel threads --url sqlite:///agent.db`
    """
    with reading(url) as saver:
        found = list(saver.threads(limit=limit + 1, model=model))
        others = sum(1 for _ in saver.threads()) if model is not None and not found else 0
    if json:
        print_json(render.threads_json(found[:limit], more=len(found) > limit))
    elif others:
        console().print(render.no_threads_of(str(model), others))
    else:
        console().print(render.threads_table(found[:limit], url, more=len(found) > limit))


def history(
    thread: Thread,
    url: Url = DEFAULT_URL,
    limit: Limit = 50,
    ns: Ns = "",
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List a thread's checkpoints, newest first: what ran, what comes next, what waits, where it branched.

    Example: `keel history my-thread --limit 10`
    """
    with reading(url, imports) as saver:
        found = list(saver.list(config_of(thread, None if ns == EVERY_NS else ns), limit=limit + 1))
        if not found:
            raise no_thread(saver, thread, ns)
        rows = checkpoints.rows(found, saver, _calls(saver, thread))[:limit]
    more = len(found) > limit
    if json:
        print_json(render.history_json(thread, rows, more=more))
    else:
        console().print(render.history_table(thread, rows, more=more, full=full, every_ns=ns == EVERY_NS))


def show(
    thread: Thread,
    checkpoint: Checkpoint = None,
    url: Url = DEFAULT_URL,
    ns: Ns = "",
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Show the state at a checkpoint: messages and other channels, metadata, pending writes, open questions.

    Example: `keel show my-thread`, or with an id from `keel history`:
    `keel show my-thread 5f0c2a91`
    """
    with reading(url, imports) as saver:
        found = _latest(saver, thread, ns) if checkpoint is None else named(saver, thread, ns, checkpoint)
    if json:
        print_json(render.checkpoint_json(found))
    else:
        console().print(render.checkpoint_page(found, full=full))


def _calls(saver: Any, thread: str) -> Sequence[ModelCall]:
    """Return the calls of models; none if something of the thread is damaged, which need not be what is shown."""
    try:
        return cast(Sequence[ModelCall], saver.provenance(config_of(thread, None)))
    except (CorruptStore, ValueRefused):
        return ()


def _latest(saver: Any, thread: str, ns: str) -> CheckpointTuple:
    for found in saver.list(config_of(thread, None if ns == EVERY_NS else ns), limit=1):
        return cast(CheckpointTuple, found)
    raise no_thread(saver, thread, ns)
