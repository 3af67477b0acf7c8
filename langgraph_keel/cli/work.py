"""`keel work`: a worker that continues threads that no process runs any more."""

from __future__ import annotations

import asyncio
import json as json_of
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from threading import Event
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.backends.registry import url_of
from langgraph_keel.cli.commands import TENANT
from langgraph_keel.cli.graphs import Graph, find_upgrades, load_graph
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, check_store, open_store
from langgraph_keel.cli.output import console, print_answer, print_lines
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.engine.runs import ask_to_end
from langgraph_keel.errors import InvalidInput
from langgraph_keel.opening import import_classes

Store = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The store for a graph without a saver. Default: KEEL_URL."),
]
Attempts = Annotated[
    int,
    typer.Option(
        "--attempts", min=1, metavar="N", help="Maximum number of attempts to continue a thread from one checkpoint."
    ),
]
Match = Annotated[
    str | None, typer.Option("--match", metavar="PATTERN", help="Only threads whose id matches: `orders/*`.")
]
Once = Annotated[bool, typer.Option("--once", help="Continue each thread once, and stop.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; list the threads that would be continued.")]
_ABOUT = ("thread_id", "checkpoint_id", "attempt")


def work(
    graph: Graph,
    url: Store = None,
    attempts: Attempts = 3,
    match: Match = None,
    once: Once = False,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Run a worker that continues threads whose process died or was stopped.

    It also runs input that `saver.accept` has stored. Any number of workers may run. The graph uses the saver that it
    was compiled with, which needs `recoverable=True`; a graph without a saver gets one for --url. SIGTERM and Ctrl-C
    stop the worker after the current step, and another worker continues the thread. Without a terminal, it logs one
    JSON object per line to standard error. With --json, it prints one JSON object per thread to standard output. With
    --once, the exit status is 1 if a thread failed.

    Example: `keel work shop.app:graph --once --dry-run`
    """
    with _open(graph, url, read_only=dry_run) as (saver, compiled):
        if dry_run:
            _show(saver, compiled, attempts, match, json)
            return
        with _log_lines():
            done, failed = asyncio.run(_work(saver, compiled, attempts, match, once, json))
    if not json:
        failures = f", {failed:,} failed" if failed else ""
        print_lines([Text(f"{count_of(done, 'thread')} continued{failures}.")])
    if once and failed:
        raise typer.Exit(1)


@contextmanager
def _open(name: str, url: str | None, *, read_only: bool) -> Iterator[tuple[Any, Any]]:
    """Yield a graph and its saver, or a new saver if it has none."""
    where = url_of(url or os.environ.get("KEEL_URL") or DEFAULT_URL)
    with ExitStack() as stack:
        is_ours = False

        def open_here(module: ModuleType) -> Any:
            nonlocal is_ours
            is_ours = True
            check_store(where)
            options: dict[str, Any] = {"types": import_classes(module.__name__, "graph"), "read_only": read_only}
            options["upgrades"] = find_upgrades(module, None)
            return stack.enter_context(open_store(where, recoverable=True, **options))

        module, compiled = load_graph(name, open_here)
        saver = compiled.checkpointer
        if saver is None:
            saver = open_here(module)
            compiled = compiled.copy({"checkpointer": saver})
        elif engine_of(saver) is None:
            raise InvalidInput(f"{name} was compiled with a {type(saver).__name__}, which is not a saver of Keel")
        elif url is not None and not is_ours:
            raise InvalidInput(f"{name} was compiled with {saver!r}: leave --url out")
        elif not is_ours and (tenant := TENANT.get()):
            saver = saver.for_tenant(tenant)
            compiled = compiled.copy({"checkpointer": saver})
        yield saver, compiled


def _show(saver: Any, compiled: Any, attempts: int, match: str | None, as_json: bool) -> None:
    """Print which threads a worker would continue."""
    from langgraph_keel.recovery.recover import Look, Recovery, check_graph
    from langgraph_keel.runs.worker import RetryList

    check_graph(saver.engine, compiled)
    found = Recovery(saver.engine.session, compiled, {}, attempts, match, RetryList(1.0))
    looks, rows, lines = list[Look](), [], list[str]()
    while (page := saver.engine.run(found.look())) is not None:
        looks += page
    for look in looks:
        status, due = look.status, look.due
        row = {"thread_id": status.thread_id, "state": status.state, "next": list(status.next), "takes": bool(due)}
        rows.append({**row, "why": look.why or ("" if due else str(status))})
        if due:
            lines.append(f"continue {status.thread_id!r} before {', '.join(status.next)}: attempt {due.count + 1}")
        else:
            thread = f"{status.thread_id!r}"
            lines.append(f"leave {thread}: {look.why or str(status).removeprefix(f'thread {thread} ')}")
    page = Text("\n".join(map(plain, lines)) or "No thread has anything left to do.")
    print_answer({"threads": rows, "done": False}, page, as_json=as_json)


async def _work(
    saver: Any, compiled: Any, attempts: int, match: str | None, once: bool, as_json: bool
) -> tuple[int, int]:
    """Continue threads; return the numbers of continued threads and failures."""
    stop, done, failed, loop = Event(), 0, 0, asyncio.get_running_loop()
    errors, hint = console(stderr=True), "Ctrl-C stops it after the current step."
    shown = errors.status(hint) if errors.is_terminal and not as_json else nullcontext()

    def end(number: int) -> None:
        loop.remove_signal_handler(number)  # a second signal ends the process immediately
        stop.set()
        drain = saver.stack.drain
        drain.reason = signal.Signals(number).name
        ask_to_end(drain)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, partial(end, each))
    options: dict[str, Any] = {"attempts": attempts, "match": match, "timeout": 0 if once else None, "stop": stop}
    with shown as line:
        async for resumed in saver.arecover(compiled, **options):
            done, failed = done + (resumed.error is None), failed + (resumed.error is not None)
            error = None if resumed.error is None else repr(resumed.error)
            if as_json:
                row = {"thread_id": resumed.thread_id, "attempts": resumed.attempts, "error": error}
                print(json_of.dumps(row), flush=True)
            elif line is not None:
                said = f"has failed: {error}" if error else "was continued"
                if not error or logging.getLogger().handlers:  # else the log prints failures here, too
                    errors.print(Text(plain(f"{resumed.thread_id!r} {said} (attempt {resumed.attempts})")))
                line.update(f"{done:,} continued, {failed:,} failed. {hint}")
    return done, failed


class _JsonLine(logging.Formatter):
    """Formats a log record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        about = {name: getattr(record, name) for name in _ABOUT if hasattr(record, name)}
        return json_of.dumps({"time": record.created, "level": record.levelname, "said": record.getMessage(), **about})


@contextmanager
def _log_lines() -> Iterator[None]:
    """Log to standard error, unless it is a terminal or logging is configured."""
    if sys.stderr.isatty() or logging.getLogger().handlers:
        yield
        return
    log, handler = logging.getLogger("langgraph_keel"), logging.StreamHandler()
    handler.setFormatter(_JsonLine())
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
