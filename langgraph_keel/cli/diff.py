"""`keel diff`: what changed between two moments."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from langchain_core.runnables import RunnableConfig

from langgraph_keel.cli.naming import config_of, moment_of, opened
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Imports, Thread, Url, reading
from langgraph_keel.cli.terminal import console, print_json
from langgraph_keel.timeline.diff_text import as_rich

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
        console().print(as_rich(found, full=full))


def resolve(saver: Any, thread_id: str, text: str | None) -> RunnableConfig:
    """Return the config of the moment that a person means; of the latest if they do not say.

    Raises:
        NotFound: There is no such thread, or no such moment.
        InvalidInput: Several moments fit.
    """
    found = opened(saver, thread_id)
    config: RunnableConfig = config_of(thread_id, "") if text is None else moment_of(found, text).config
    return config
