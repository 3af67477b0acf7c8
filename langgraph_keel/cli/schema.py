"""The command for whoever may create tables where the agent may not."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from langgraph_keel import open_saver
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url
from langgraph_keel.cli.terminal import console, print_json
from langgraph_keel.errors import InvalidInput

Print = Annotated[bool, typer.Option("--print", help="Print the SQL and run nothing; no server is asked.")]
Partitions = Annotated[
    int | None,
    typer.Option(metavar="N", min=2, max=1024, help="PostgreSQL: divide the tables by a hash of the thread."),
]


def schema(
    url: Url = DEFAULT_URL, only_print: Print = False, partitions: Partitions = None, json: AsJson = False
) -> None:
    """Create the tables of a store, or print the SQL that would.

    Example: `keel schema --url postgresql://localhost/agents --print | psql agents`
    """
    if partitions and not url.startswith("postgres"):
        raise InvalidInput("--partitions is for PostgreSQL")
    options: dict[str, Any] = {"partitions": partitions} if partitions else {}
    with open_saver(url, **options) as saver:
        if not saver.ddl:
            raise InvalidInput(f"a store at {url.partition(':')[0]}: has no tables to create")
        if not only_print:
            saver.setup()
    if json:
        print_json({"ddl": saver.ddl, "done": not only_print})
    elif only_print:
        print(saver.ddl)
    else:
        console().print("The tables are there.")
