"""`keel doctor`: check the threads of a store against the code of a graph. `keel upgrade`: upgrade them to it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any
from xml.etree.ElementTree import Element, SubElement, tostring

import typer
from rich.text import Text

from langgraph_keel import MemorySaver
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, check_store, open_store
from langgraph_keel.cli.output import bar, print_answer, print_failures, with_bar
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.errors import InvalidInput
from langgraph_keel.upgrades.chain import Upgrade
from langgraph_keel.upgrades.hook import UpgradeHook

Graph = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:GRAPH",
        help="The graph to be deployed, or a function that returns it: shop.app:graph, or ./agent.py:graph.",
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Open at most so many threads of each kind (status and next nodes), not all."
    ),
]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report in JUnit's XML, for CI.")]
From = Annotated[
    str | None,
    typer.Option(
        "--upgrades",
        metavar="MODULE[:LIST]",
        help="Where the upgrades are; else those of the graph's saver, or those in its module.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")]

_SAID = {
    "present": "have the present version already",
    "waits": "wait for something that is due, and are upgraded when they go on",
    "busy": "went on meanwhile",
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
    """Open the threads of a store with the code of a graph, and say which would break. Changes nothing.

    The exit status is 1 if one would.

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
    """Carry all threads over to the present version of an application, and say which could not be.

    A thread in which something is due stays as it is, and is carried over when it goes on. Safe while runs write, and
    to begin again: what was done is passed over. The exit status is 1 if a thread could not be.

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
            raise InvalidInput(f"there is nothing to upgrade with: {where}; name them with --upgrades MODULE")
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
    """Open a store with the serializer and the upgrades of a program; yield the saver and the graph."""
    from langgraph.graph import StateGraph
    from langgraph.pregel import Pregel

    module, compiled = _load(graph, "MODULE:GRAPH or FILE:GRAPH, such as shop.app:graph or ./agent.py:graph")
    if callable(compiled) and not isinstance(compiled, Pregel | StateGraph):
        compiled = _call_factory(graph, compiled)
    if isinstance(compiled, StateGraph):
        compiled = compiled.compile()
    if not isinstance(compiled, Pregel):
        what = f"{graph} is a {type(compiled).__name__}, not a graph"
        raise InvalidInput(f"{what}: name a graph, or a function that returns one")
    engine = engine_of(getattr(compiled, "checkpointer", None))
    options: dict[str, Any] = {"upgrades": _find_upgrades(module, engine, upgrades)}
    if engine is not None:
        options["serde"] = engine.session.codec.serde
    with open_store(url, read_only=read_only, **options) as saver:
        yield saver, compiled


def _call_factory(name: str, factory: Any) -> Any:
    """Return the graph that a function makes; its one required argument is a config, or else a saver."""
    parameters = inspect.signature(factory).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [each for each in parameters if each.default is each.empty and each.kind not in variadic]
    if len(required) > 1:
        names = ", ".join(each.name for each in required)
        raise InvalidInput(
            f"{name} requires the arguments {names}: name a function that requires none, or one, which is passed a "
            "saver (or a config, if it is called so)"
        )
    given: dict[str, Any] = {
        each.name: {"configurable": {}} if each.name == "config" else MemorySaver() for each in required
    }
    is_positional = all(each.kind is each.POSITIONAL_ONLY for each in required)
    with _name_errors(name):
        made = factory(*given.values()) if is_positional else factory(**given)
        return asyncio.run(made) if inspect.iscoroutine(made) else made


@contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Report an error of the program in one line, with its place."""
    try:
        yield
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidInput(
            f"{name} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def _load(name: str, form: str) -> tuple[ModuleType, Any]:
    module, mark, attribute = name.rpartition(":")
    if not (module and mark and attribute):
        raise InvalidInput(f"{name!r} is not of the form {form}")
    loaded = _import(module)
    found: Any = loaded
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InvalidInput(f"module {module} has no {attribute}")
    return loaded, found


def _import(module: str) -> ModuleType:
    """Import a module by its name, from here, or by its file, as langgraph.json names it."""
    place = ""
    if module.endswith(".py") or "/" in module:
        file = Path(module).resolve()
        if not file.is_file():
            raise InvalidInput(f"there is no file {module}")
        parts, folder = [file.stem], file.parent  # its name as the program imports it, by which values name classes
        while (folder / "__init__.py").exists():
            parts.insert(0, folder.name)
            folder = folder.parent
        place, module = str(folder), ".".join(parts)
    sys.path.insert(0, place)
    try:
        with _name_errors(module):
            return importlib.import_module(module)
    finally:
        sys.path.remove(place)


def _find_upgrades(module: ModuleType, engine: Any, named: str | None) -> Any:
    if named is not None and ":" in named:
        found = _load(named, "MODULE:LIST")[1]
        return [found] if isinstance(found, Upgrade) else found
    if named is not None:
        return _load(f"{named}:__name__", "MODULE")[0]
    hook = engine.session.hooks.find(UpgradeHook) if engine is not None else None
    if hook is not None:
        return list(hook.chain.steps)
    return [each for each in vars(module).values() if isinstance(each, Upgrade)]


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
    """Return a test suite with a case for each thread that breaks, and one for all others."""
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
