"""The commands `keel doctor` and `keel upgrade`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from xml.etree.ElementTree import Element, SubElement, tostring

import typer
from rich.text import Text

from langgraph_keel import MemorySaver
from langgraph_keel.cli.graphs import Graph, find_upgrades, load_graph
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, check_store, open_store
from langgraph_keel.cli.output import bar, print_answer, print_failures, with_bar
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.errors import InvalidInput
from langgraph_keel.upgrades.hook import UpgradeHook

Sample = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Open at most this many threads of each kind (status and next nodes)."),
]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML report to this file, for CI.")]
From = Annotated[
    str | None,
    typer.Option(
        "--upgrades",
        metavar="MODULE[:LIST]",
        help="The module with the upgrades of the state, or a list in it. Default: those of the graph's saver, or of "
        "the graph's module.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show a preview.")]

_SAID = {
    "present": "have the present version already",
    "waits": "have steps or questions left, and are upgraded when they continue",
    "busy": "continued during the upgrade",
    "failed": "cannot be upgraded",
}


def doctor(
    graph: Graph,
    url: Url = DEFAULT_URL,
    sample: Sample = None,
    upgrades: From = None,
    junit: Junit = None,
    json: AsJson = False,
) -> None:
    """Check before a deployment which threads would break with a graph's code.

    Opens each thread, runs no node, and changes nothing. The exit status is 1 if a thread would break.

    Example: `keel doctor shop.app:graph --url postgresql://localhost/agents`
    """
    from langgraph_keel.upgrades.doctor import Doctor

    check_store(url)
    with _open(graph, url, upgrades, read_only=True) as (saver, compiled):
        found = Doctor(saver, compiled)
        seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for info in with_bar(saver.threads(), "Opening threads", quiet=json):
            seen[info.status, info.next] += 1
            if sample is None or seen[info.status, info.next] <= sample:
                found.examine(info.thread_id)
        diagnosis = found.conclude()
    if junit is not None:
        junit.write_bytes(_junit(diagnosis))
    print_answer(diagnosis.to_json(), _page(diagnosis), as_json=json)
    if not diagnosis.is_sound:
        raise typer.Exit(1)


def upgrade(
    graph: Graph, url: Url = DEFAULT_URL, upgrades: From = None, dry_run: DryRun = False, json: AsJson = False
) -> None:
    """Upgrade the states of all threads to the version of a graph's code.

    A thread with steps or questions left is not changed now; it is upgraded when it continues. Safe while runs write,
    and safe to repeat: upgraded threads are skipped. Failures are reported, and the exit status is then 1.

    Example: `keel upgrade shop.app:graph --url sqlite:///agent.db --dry-run`
    """
    from langgraph_keel.upgrades.bulk import upgrade_threads

    check_store(url)
    with (
        _open(graph, url, upgrades, read_only=dry_run) as (saver, _),
        bar("Looking at threads" if dry_run else "Upgrading threads", quiet=json, keeps=not dry_run) as tell,
    ):
        if saver.engine.session.hooks.find(UpgradeHook) is None:
            module = graph.partition(":")[0]
            where = f"neither the graph's saver nor the module {module} has any"
            raise InvalidInput(f"no upgrades were found: {where}. Name them with --upgrades MODULE")
        threads = (info.thread_id for info in saver.threads())
        report = upgrade_threads(saver, threads, dry_run=dry_run, on_progress=tell)
    counts = {name: report.counts[name] for name in ("upgraded", *_SAID)}
    lines = [f"{count_of(counts['upgraded'], 'thread')} {'would be upgraded' if dry_run else 'upgraded'}."]
    lines += [f"{counts[name]:,} {words}." for name, words in _SAID.items() if counts[name]]
    answer = {"counts": counts, "failed": report.failed, "done": not dry_run}
    print_answer(answer, Text("\n".join(lines)), as_json=json)
    print_failures({} if json else report.failed)
    if report.failed:
        raise typer.Exit(1)


@contextmanager
def _open(graph: str, url: str, upgrades: str | None, *, read_only: bool) -> Iterator[tuple[Any, Any]]:
    """Open a store with a program's serializer and upgrades; yield saver and graph."""
    module, compiled = load_graph(graph, lambda _: MemorySaver())
    engine = engine_of(getattr(compiled, "checkpointer", None))
    options: dict[str, Any] = {"upgrades": find_upgrades(module, engine, upgrades)}
    if engine is not None:
        options["serde"] = engine.session.codec.serde
    with open_store(url, read_only=read_only, **options) as saver:
        yield saver, compiled


def _page(diagnosis: Any) -> Text:
    opened = f"{count_of(diagnosis.threads, 'thread')} opened"
    if diagnosis.is_sound:
        return Text(f"{opened}: all of them run with this code.", "green")
    kinds: dict[tuple[str, str, str, str], list[Any]] = {}
    for each in diagnosis.breaks:
        kinds.setdefault((each.kind, each.path, each.expected, each.found), []).append(each)
    text = Text.assemble((f"{opened}: {count_of(len(kinds), 'thing')} would break.", "bold red"))
    for (kind, path, expected, found), those in kinds.items():
        first = those[0]
        text.append(f"\n\n{plain(kind)} {plain(path)}".rstrip(), "bold")
        text.append(f"\n  in thread {plain(first.thread_id)}", "dim")
        text.append(f" and {count_of(len(those) - 1, 'other')}" if len(those) > 1 else "", "dim")
        text.append(f"\n  expected: {plain(expected)}\n  found:    {plain(found)}")
        text.append(f"\n  {plain(first.reason)}", "cyan")
    return text


def _junit(diagnosis: Any) -> bytes:
    """Return a JUnit test suite: a case per broken thread, and one for the others."""
    suite, cases = Element("testsuite", name="keel doctor"), dict[str, Element]()
    for each in diagnosis.breaks:  # `plain`, as XML has no control characters
        if each.thread_id not in cases:
            about = {"classname": "keel doctor", "name": plain(each.thread_id)}
            cases[each.thread_id] = SubElement(suite, "testcase", about)
        failure = {"type": plain(each.kind), "message": plain(f"{each.path}: {each.reason}")}
        SubElement(cases[each.thread_id], "failure", failure)
    suite.attrib |= {"tests": str(len(cases) + 1), "failures": str(len(cases))}
    others = f"{diagnosis.threads - len(cases)} other threads"
    SubElement(suite, "testcase", {"classname": "keel doctor", "name": others})
    report: bytes = tostring(suite, "UTF-8", xml_declaration=True)
    return report
