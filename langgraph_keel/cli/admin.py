"""The commands for stores: `tenants`, `info`, `check`, `repair`, `schema`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from langgraph_keel.backends.registry import url_of
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, Yes, confirm, open_store, open_to_change, open_to_read
from langgraph_keel.cli.output import bar, console, print_answer, print_json
from langgraph_keel.cli.threads import usage_of, usage_table
from langgraph_keel.display.text import count_of, format_size, plain
from langgraph_keel.errors import InvalidInput
from langgraph_keel.tenants.deletion import TenantReceipt

StoreUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="KEEL_URL", metavar="URL", callback=url_of, help="The store, such as files:./threads."
    ),
]
_STYLE = {"harmless": "dim", "repairable": "yellow", "decide": "bold magenta", "lost": "bold red"}
_MARK = {"harmless": "·", "repairable": "!", "decide": "?", "lost": "✗"}


Act = Annotated[Literal["delete"] | None, typer.Argument(metavar="delete", help="Delete all data of a tenant.")]
TenantName = Annotated[str | None, typer.Argument(metavar="NAME", help="The tenant to delete.")]
TenantDryRun = Annotated[bool, typer.Option("--dry-run", help="With delete: only report how much would be deleted.")]
WithUsage = Annotated[bool, typer.Option("--usage", help="Report the usage of each tenant: threads, tokens, cost.")]


def tenants(
    act: Act = None,
    name: TenantName = None,
    usage: WithUsage = False,
    dry_run: TenantDryRun = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """List the tenants that have data in a store.

    `keel tenants delete NAME` deletes all data of a tenant: threads, approvals and their audit trail, policies, its
    key. It shows how much would be deleted, and asks. Stop the tenant's runs first. If it is interrupted, run it again.

    Example: `for name in $(keel tenants); do keel --tenant "$name" sweep; done`
    """
    if act is not None:
        _delete_tenant(name, url, dry_run=dry_run, yes=yes, json=json)
        return
    with open_to_read(url) as saver:
        names = list(saver.tenants.list())
        taken = usage_of(saver, "tenant", quiet=json) if usage else {}
    if json:
        shown = {"usage": {name: each.to_dict() for name, each in taken.items()}} if usage else {}
        print_json({"tenants": names, **shown})
    elif taken:
        console().print(usage_table("tenant", taken))
    else:
        print(
            "\n".join(names) if names else "No tenant has data in this store.", file=sys.stdout if names else sys.stderr
        )


def _delete_tenant(name: str | None, url: str, *, dry_run: bool, yes: bool, json: bool) -> None:
    if not name:
        raise InvalidInput("name the tenant: keel tenants delete NAME")
    if not (yes or dry_run) and (json or not sys.stdin.isatty()):
        raise InvalidInput("nothing was deleted: confirmation is required. Look with --dry-run, then add --yes")
    if dry_run or not yes:
        with open_to_change(url) as saver, bar("Looking at threads", quiet=json) as tell:
            found: TenantReceipt = saver.tenants.delete(name, dry_run=True, on_progress=tell)
        _print_receipt(found, json=json)
        if dry_run or not found.left:
            return
        confirm("Delete?", "Nothing was deleted.")
    with open_to_change(url) as saver, bar("Deleting", quiet=json, keeps=True) as tell:
        receipt: TenantReceipt = saver.tenants.delete(name, on_progress=tell)
    _print_receipt(receipt, json=json)
    raise typer.Exit(0 if receipt.complete else 1)


def _print_receipt(receipt: TenantReceipt, *, json: bool) -> None:
    print_answer(receipt.to_dict(), Text(plain(str(receipt), keep="\n")), as_json=json)


def info(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show a store's backend, format, durability, size, threads and open requests.

    Example: `keel info --url sqlite:///agent.db`
    """
    with open_to_read(url) as saver:
        found = saver.info()
    facts = {
        "backend": found.backend,
        "place": found.place,
        "format": "" if found.format is None else str(found.format),
        "a completed write is": found.durability,
        "size": "" if found.size is None else format_size(found.size),
        "threads": f"{found.threads:,} with {count_of(found.checkpoints, 'checkpoint')}",
        "waiting for a person": count_of(found.waiting, "request"),
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value:
            grid.add_row(Text(name, "dim"), Text(plain(value), overflow="fold"))
    print_answer(asdict(found), grid, as_json=json)


def check(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Read all stored data and report damage. Changes nothing.

    Checks rows, checksums, indexes and counts; in a store of files also every line of each log, leftovers and git
    conflicts. Programs may write concurrently. Exit status 1 if data is damaged, or if you have to repair or decide
    something: the output lists what to do.

    Example: `keel check --url sqlite:///agent.db`
    """
    with open_to_read(url) as saver, bar("Checking threads", quiet=json) as tell:
        found = list(saver.check(on_progress=tell))
        read = saver.info() if not (found or json) else None
    is_clean = all(each.kind == "harmless" for each in found)
    if read is not None:
        counts = f"{count_of(read.threads, 'thread')}, {count_of(read.checkpoints, 'checkpoint')} read, no damage"
        console().print(Text(f"OK: {counts}.", "green"))
    else:
        answer = {"findings": [finding_json(each) for each in found], "clean": is_clean}
        print_answer(answer, page(found), as_json=json)
    if not is_clean:
        raise typer.Exit(1)


def repair(url: StoreUrl, yes: Yes = False, json: AsJson = False) -> None:
    """Repair a store of files (files:DIRECTORY); keep all records that can be read.

    Records are lost only if they are damaged, or need a damaged record. Damaged files are moved aside, and their new
    paths are printed.

    Example: `keel repair --url files:./threads --yes`
    """
    with open_repairable(url, read_only=not yes) as saver:
        found = list(saver.repair() if yes else saver.check())
    print_answer({"findings": [finding_json(each) for each in found], "done": yes}, page(found), as_json=json)
    if json or yes or all(each.kind != "repairable" for each in found):
        return
    if sys.stdin.isatty():
        confirm("Repair the findings marked with !?", "Nothing was changed.")
        with open_repairable(url, read_only=False) as saver:
            console().print(page(list(saver.repair())), soft_wrap=True)
    else:
        console().print(Text("Nothing was changed. --yes repairs the findings marked with !", "bold"))


@contextmanager
def open_repairable(url: str, *, read_only: bool) -> Iterator[Any]:
    """Open a store that can be repaired, whose saver has `repair`."""
    with open_store(url, read_only=read_only) as saver:
        if not hasattr(saver, "repair"):
            raise InvalidInput(f"only a store of files (files:DIRECTORY) can be repaired, not {url.split(':')[0]}:")
        yield saver


def finding_json(finding: Any) -> dict[str, Any]:
    """Return a finding as `--json` prints it."""
    names = ("kind", "thread_id", "path", "offset", "message", "advice")
    return {name: getattr(finding, name) for name in names}


def page(found: Sequence[Any]) -> Text:
    """Return the findings as text. Some lines are commands to copy."""
    texts = [] if found else [Text("No damage found.", "green")]
    for finding in found:
        where = plain(finding.path) if finding.offset is None else f"{plain(finding.path)}, byte {finding.offset:,}"
        whose = f" · thread {plain(finding.thread_id)}" if finding.thread_id else ""
        text = Text.assemble((f"{_MARK[finding.kind]} ", _STYLE[finding.kind]), (where, "bold"), (whose, "dim"))
        texts.append(text.append(_indent(finding.message)).append(_indent(finding.advice), "cyan"))
    return Text("\n\n").join(texts)


def _indent(text: str) -> str:
    return "".join(f"\n  {plain(line)}" for line in text.splitlines())


Print = Annotated[
    bool, typer.Option("--print", help="Print the SQL and run nothing. Connects to the server only with --upgrade.")
]
Partitions = Annotated[
    int | None,
    typer.Option(metavar="N", min=2, max=1024, help="PostgreSQL: partition the tables by a hash of the thread id."),
]
GrantTo = Annotated[
    str | None,
    typer.Option(metavar="ROLE", help="PostgreSQL, with --print: also grant this role access to the tables."),
]
Upgrade = Annotated[
    bool, typer.Option("--upgrade", help="Upgrade a store of an older format; with --print, only print the migrations.")
]


def schema(
    url: Url = DEFAULT_URL,
    only_print: Print = False,
    upgrade: Upgrade = False,
    partitions: Partitions = None,
    grant_to: GrantTo = None,
    json: AsJson = False,
) -> None:
    """Create the tables of a store, or print the SQL that creates them.

    A newer version of Keel may need a newer format: `keel schema --upgrade` upgrades a store of any backend to it.

    Example: `keel schema --url postgresql://localhost/agents --print | psql agents`
    """
    if upgrade:
        if partitions or grant_to:
            raise InvalidInput(
                "--upgrade can be combined with --print only: existing tables keep their partitions and roles"
            )
        _upgrade(url, only_print=only_print, json=json)
        return
    if partitions and not url.startswith("postgres"):
        raise InvalidInput("--partitions is for PostgreSQL")
    if grant_to and not only_print:
        raise InvalidInput("--grant-to needs --print: the owner of the tables must run the printed SQL")
    options: dict[str, Any] = {"partitions": partitions} if partitions else {}
    with open_store(url, **options) as saver:
        if not saver.ddl:
            raise InvalidInput(f"a store at {url.partition(':')[0]}: has no tables to create")
        grants = saver.grants(grant_to) if grant_to else ""
        if grant_to and not grants:
            raise InvalidInput("--grant-to is for PostgreSQL")
        ddl = "\n".join(filter(None, [saver.ddl, grants]))
        if not only_print:
            saver.setup()
    if json:
        print_json({"ddl": ddl, "done": not only_print})
    elif only_print:
        print(ddl)
    else:
        console().print("The tables exist.")


def _upgrade(url: str, *, only_print: bool, json: bool) -> None:
    # The timeout applies to each answer of the server: a migration is one answer, and may take a day.
    options: dict[str, Any] = {"timeout": 86_400.0} if url.startswith("postgres") else {}
    with open_store(url, read_only=only_print, **options) as saver:
        due: list[str] = saver.migrations()
        if not only_print:
            saver.setup()
    if json:
        print_json({"ddl": "\n".join(due), "done": not only_print})
    elif not due:
        console(stderr=True).print("The store has the current format: there is nothing to do.")
    elif only_print:
        print("\n".join(due))
    else:
        console().print(f"{count_of(len(due), 'migration')} done: the store has the current format.")
