"""The commands `keel copy` and `keel stats`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.bar import Bar
from rich.text import Text

from langgraph_keel import Keyring, open_saver
from langgraph_keel.backends.registry import url_of
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Since, Until, Url, check_store, open_store, open_to_read
from langgraph_keel.cli.output import bar, console, print_json, table_of
from langgraph_keel.cli.threads import LabelIs, Match, Owner, StatusIs
from langgraph_keel.display.text import count_of, format_size, plain
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.moving.stats import KIND_NAMES
from langgraph_keel.tools.ledger import SECRETS

_SHOWN = 20  # maximum number of names listed of each kind

From = Annotated[str, typer.Argument(metavar="SOURCE", callback=url_of, help="The store to copy from.")]
To = Annotated[str, typer.Argument(metavar="TARGET", callback=url_of, help="The store to copy to.")]
Threads = Annotated[
    list[str] | None, typer.Option("--thread", metavar="THREAD", help="Only this thread. Repeatable; default: all.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show a preview.")]
Verify = Annotated[bool, typer.Option("--verify", help="Write nothing; compare the two stores, value by value.")]
WithShared = Annotated[
    bool,
    typer.Option(
        "--with-shared",
        help="Also copy data that threads share: retention policies, cached results, and the secret that identifies "
        "tool calls. If all threads are copied, also the items of the store, the audit trail and all tenants. Only "
        "from a source that you trust.",
    ),
]
SourceKeys = Annotated[
    str | None,
    typer.Option(
        "--source-keys",
        metavar="FILE",
        help="The key file of the source, or the word `none`. Default for both stores: KEEL_KEYS_FILE or KEEL_KEYS.",
    ),
]
TargetKeys = Annotated[
    str | None, typer.Option("--target-keys", metavar="FILE", help="The key file of the target, or the word `none`.")
]

SourceBlobs = Annotated[
    str | None,
    typer.Option(
        "--source-blobs",
        metavar="PLACE",
        help="Where the source keeps large values: s3://bucket/prefix, file:DIRECTORY, or the word `none`. Default for "
        "both stores: KEEL_BLOBS.",
    ),
]
TargetBlobs = Annotated[
    str | None,
    typer.Option("--target-blobs", metavar="PLACE", help="Where the target keeps large values, or the word `none`."),
]


def copy(
    source: From,
    target: To,
    threads: Threads = None,
    match: Match = None,
    owner: Owner = None,
    since: Since = None,
    until: Until = None,
    status: StatusIs = None,
    label: LabelIs = None,
    dry_run: DryRun = False,
    verify: Verify = False,
    shared: WithShared = False,
    source_keys: SourceKeys = None,
    target_keys: TargetKeys = None,
    source_blobs: SourceBlobs = None,
    target_blobs: TargetBlobs = None,
    json: AsJson = False,
) -> None:
    """Copy threads between stores of any backend, and compare every value.

    Nothing is deleted, and runs may continue. After an interruption, run it again; run it later to copy new data.
    Exit status 1 if something was not copied. The source need not be trusted, unless --with-shared is given.

    Example: `keel copy sqlite:///agent.db sqlite:///one.db --thread ada`
    """
    if source == target:
        raise InvalidInput("the source and the target are the same store: nothing was copied")
    if dry_run and verify:
        raise InvalidInput("--dry-run and --verify both write nothing: give one of them")
    check_store(source, **_options(source_keys, source_blobs))  # before the target is made
    mode = "look" if dry_run else "verify" if verify else "copy"
    wanted: dict[str, Any] = {"match": match, "owner": owner, "since": since, "until": until}
    wanted |= {"status": status, "label": label}
    what = "Copying and comparing" if mode == "copy" else "Comparing"
    with (
        open_to_read(source, **_options(source_keys, source_blobs)) as theirs,
        _open_target(target, mode, _options(target_keys, target_blobs)) as ours,
        bar(what, quiet=json, speed=True, keeps=mode == "copy") as tell,
    ):
        report = theirs.moving.copy_to(ours, threads or None, mode=mode, shared=shared, on_progress=tell, **wanted)
    if json:
        print_json(report.to_dict())
    else:
        _show(report, shared)
    if not report.is_done and mode != "look":
        raise typer.Exit(1)


@contextmanager
def _open_target(url: str, mode: str, options: Mapping[str, Any]) -> Iterator[Any]:
    if mode == "copy":
        with open_store(url, **options) as saver:
            yield saver
        return
    try:
        check_store(url, **options)
    except NotFound:
        yield open_saver("memory:")  # the target does not exist yet
        return
    with open_to_read(url, **options) as saver:
        yield saver


def _options(keys: str | None, blobs: str | None) -> Mapping[str, Any]:
    """Return the options given for one store; others come from the environment."""
    options: dict[str, Any] = {}
    if keys is not None:
        options["encryption"] = None if keys == "none" else Keyring.from_file(keys, hide_names=None)
    if blobs is not None:
        options["blobs"] = None if blobs == "none" else blobs
    return options


def _show(report: Any, shared: bool) -> None:
    console().print(Text(str(report), "green" if report.is_done else ""), soft_wrap=True)
    differs = {name: f"{f'thread {name!r}: ' if name else ''}{why}" for name, why in report.differs.items()}
    for found in (report.exists, report.failed, differs):
        _print_first([plain(why) for why in found.values()], "red")
    for names, what in (
        (report.changing, "changed during every attempt: copy it again when nothing writes to it"),
        (report.kept, "kept as it is: the target has a different one"),
        (report.gone, "no longer in the source"),
    ):
        _print_first([f"{plain(name) or 'shared data'}: {what}" for name in names], "yellow")
    if report.left:
        names = plain(", ".join(report.left))
        lines = [f"not copied, because threads share it: {names}. If you trust the source, use --with-shared"]
        if report.mode == "verify":
            lines = [f"not compared, because threads share it: {names}. Use --with-shared to compare it, too"]
        elif shared:
            lines = [f"not copied, because it belongs to no thread: {names}. Copy all threads to include it"]
        elif SECRETS.kind in report.left:
            lines.append(
                "without the secret, the ledger of the target does not recognize the tool calls of the copied threads: "
                "a run that repeats one executes it again"
            )
        _print_first(lines, "yellow")


def _print_first(lines: Sequence[str], style: str) -> None:
    out = console()
    for line in lines[:_SHOWN]:
        out.print(Text(f"  {line}", style), soft_wrap=True)
    if len(lines) > _SHOWN:
        out.print(Text(f"  … and {len(lines) - _SHOWN:,} more: --json lists all", "dim"))


def stats(
    match: Match = None,
    owner: Owner = None,
    since: Since = None,
    until: Until = None,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Chart storage by kind, channel and thread, and estimate possible savings.

    Reads the whole store.

    Example: `keel stats --owner ada`
    """
    with open_to_read(url) as saver, bar("Measuring threads", quiet=json) as tell:
        found = saver.stats(on_progress=tell, match=match, owner=owner, since=since, until=until)
    if json:
        print_json(found.to_dict())
        return
    table = table_of("", ">bytes", "")
    table.columns[2].min_width = 10
    kinds = {KIND_NAMES.get(kind, kind): size for kind, size in found.kinds.items()}
    for title, sizes in (("kind of record", kinds), ("channel", found.channels), ("thread", found.largest)):
        table.add_row(Text(title, "dim"), "", "")
        for name, size in [*sizes.items()][:_SHOWN]:
            bar_of = Bar(max(1, found.nbytes), 0, size)
            table.add_row(Text(f"  {plain(name) or '(none)'}", "bold", overflow="fold"), format_size(size), bar_of)
    out = console()
    out.print(table)
    lines = [f"{count_of(found.threads, 'thread')}, {format_size(found.nbytes)}.", *found.describe()]
    out.print(Text("\n".join(lines)))
    _print_first([plain(why) for why in found.failed.values()], "red")
