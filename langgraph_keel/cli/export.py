"""`keel export`: threads as JSON Lines, one thread a line, to train or to test with."""

from __future__ import annotations

import json as lines
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import current_thread, main_thread
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Imports, Model, Url, advised, reading
from langgraph_keel.cli.terminal import console, error_line, print_json
from langgraph_keel.errors import InvalidInput, KeelError, NotFound, RefusedType
from langgraph_keel.timeline.plain import as_json
from langgraph_keel.timeline.safe import plain

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write to this file, device or FIFO; to standard output if left out."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")]
Channel = Annotated[str, typer.Option("--channel", metavar="NAME", help="The channel that holds the messages.")]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="TEXT", help="Only threads whose last label or outcome is this."),
]
Threads = Annotated[list[str] | None, typer.Option("--thread", "-t", metavar="THREAD", help="This one. Repeatable.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Write at most this many.")]
MinCost = Annotated[float | None, typer.Option(metavar="AMOUNT", min=0, help="Only threads that cost at least this.")]
MaxCost = Annotated[float | None, typer.Option(metavar="AMOUNT", min=0, help="Only threads that cost at most this.")]


@dataclass(slots=True)
class Report:
    """What became of the threads.

    Attributes:
        bar: Moved by one for each thread.
        task: Its task.
        errors: Per damaged thread what is wrong with it.
        skipped: How many threads were passed over, by reason.
        written: How many lines were written.
    """

    bar: Progress
    task: TaskID
    errors: dict[str, KeelError] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    written: int = 0

    def skip(self, thread_id: str, why: str | KeelError) -> None:
        """Note a thread that is passed over; name it if it cannot be read."""
        self.bar.advance(self.task)
        if isinstance(why, KeelError):
            error = advised(why) if isinstance(why, RefusedType) else why
            self.errors[thread_id] = error
            self.bar.console.print(error_line(error), soft_wrap=True)
        else:
            self.skipped[why] = self.skipped.get(why, 0) + 1

    def take(self) -> None:
        """Note a line."""
        self.bar.advance(self.task)
        self.written += 1


def export(
    url: Url = DEFAULT_URL,
    output: Output = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
    model: Model = None,
    label: Label = None,
    min_cost: MinCost = None,
    max_cost: MaxCost = None,
    channel: Channel = "messages",
    limit: Limit = None,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Write threads as JSON Lines: messages in chat format, calls of tools and models, usage, cost, outcome.

    One thread a line, one in memory at a time. What cannot be read is named on standard error, the rest is written,
    and the status is 1. With --json and a file, a report goes to standard output.

    Example: `keel export --label good --output good.jsonl`
    """
    output = None if output is not None and _is_stdout(output) else output
    if json and output is None:
        raise InvalidInput("--json prints a report of what was written to a file: give --output FILE")
    wanted = {"model": model, "label": label, "min_cost": min_cost, "max_cost": max_cost, "channel": channel}
    with written_to(output, overwrite) as file, reading(url, imports) as saver, progress(output, quiet=json) as bar:
        report = Report(bar, bar.add_task("Reading threads", total=_total(saver, bar, threads)))
        for line in saver.trajectories(threads or None, limit=limit, on_skip=report.skip, **wanted):
            file.write(line_of(line))
            report.take()
    _tell(report, output, as_report=json)
    if report.errors:
        raise typer.Exit(1)


def line_of(trajectory: dict[str, Any]) -> str:
    """Return a trajectory as a line, in ASCII: no character of a text can be taken for the end of the line."""
    return lines.dumps(as_json(trajectory), allow_nan=False) + "\n"


@contextmanager
def written_to(path: Path | None, overwrite: bool) -> Iterator[TextIO]:
    """Open what lines go to. A file gets its name when all of it is on disk; until then, and after an error, not."""
    if path is None:
        yield sys.stdout
        return
    try:
        with _opened(path) if _is_stream(path) else _replacing(path, overwrite) as file:
            yield file
    except KeelError:
        raise  # some are errors of the system too
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error


def _opened(path: Path, mode: str = "w") -> TextIO:
    return cast(TextIO, path.open(mode, encoding="ascii", newline="\n"))


@contextmanager
def _replacing(path: Path, overwrite: bool) -> Iterator[TextIO]:
    check_free(path, overwrite)
    target = Path(os.path.realpath(path))  # a link stays one
    part = target.with_name(f".{target.name}.{token_hex(4)}.part")
    with _ended_by_signals():
        try:
            with _opened(part, "x") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            check_free(path, overwrite)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have signals that end a process raise `SystemExit` with a shell's status: what is half done is cleaned up."""
    if current_thread() is not main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler == signal.SIG_DFL}
    try:
        for number in before:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_stream(path: Path) -> bool:
    """Tell whether something is there that is written to as it is: a FIFO or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _is_stdout(path: Path) -> bool:
    """Tell whether a path, such as `/dev/stdout`, is where standard output goes."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # it is not there; or standard output is no file
        return False


def check_free(path: Path, overwrite: bool) -> None:
    """See that a file may be written.

    Raises:
        InvalidInput: It is there, and shall not be replaced, or it is a directory.
    """
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} is there, and is no file")
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path} is there already: --overwrite replaces it")


def progress(output: Path | None, *, quiet: bool) -> Progress:
    """Return a bar on standard error, shown where that is a terminal on which no lines are written."""
    shown: Console = console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    mixed = output is None and sys.stdout.isatty()
    return Progress(*columns, console=shown, transient=True, disable=quiet or mixed or not shown.is_terminal)


def _total(saver: Any, bar: Progress, threads: list[str] | None) -> int | None:
    """Return how many threads there are to read, if it matters and can be told."""
    if threads:
        return len(threads)
    try:
        return None if bar.disable else sum(1 for _ in saver.threads())
    except KeelError:
        return None


def _tell(report: Report, output: Path | None, *, as_report: bool) -> None:
    if as_report:
        damaged = {thread: {"code": error.code, "message": str(error)} for thread, error in report.errors.items()}
        told = {"output": str(output), "written": report.written, "skipped": report.skipped, "errors": damaged}
        print_json(told)
        return
    counts = [f"{count:,} {_SAID[why]}" for why, count in report.skipped.items() if why in _SAID]
    unread = sum(not isinstance(error, NotFound) for error in report.errors.values())
    counts += [f"{unread:,} that cannot be read"] if unread else []
    if report.errors and not (report.written or counts or output):
        return  # of threads that are not there, all has been said
    passed = f"; passed over: {', '.join(counts)}" if counts else ""
    where = f" to {plain(str(output))}" if output else ""
    text = f"Wrote {report.written:,} thread{'s' * (report.written != 1)}{where}{passed}."
    console(stderr=True).print(Text(text, "dim"), soft_wrap=True)


_SAID = {"filtered": "by the filters", "no messages": "without messages", "unknown cost": "of unknown cost"}
