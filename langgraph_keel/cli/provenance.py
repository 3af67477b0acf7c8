"""The commands `keel provenance` and `keel export`."""

from __future__ import annotations

import json as lines
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from secrets import token_hex
from threading import current_thread, main_thread
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli.history import MOMENT, check_thread, config_of, moment_of, open_timeline
from langgraph_keel.cli.moving import These, export_to_langgraph
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    AsJson,
    Full,
    Imports,
    Model,
    Thread,
    Url,
    advise_import,
    open_to_read,
    tell_unread,
)
from langgraph_keel.cli.output import Rows, Tell, bar, console, error_line, local_time, print_json
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import count_of, format_money, format_seconds, plain
from langgraph_keel.engine.serde.serializer import find_unread
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.errors import InvalidInput, KeelError, NotFound, RefusedType
from langgraph_keel.provenance.reading import DriftMark
from langgraph_keel.provenance.records import ModelCall

OneMoment = Annotated[
    str | None,
    typer.Argument(metavar="MOMENT", help=f"Only the calls of the step that led to this checkpoint: {MOMENT}."),
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", "-c", metavar="MOMENT", help="The checkpoint, given as an option.")
]
_GONE = Text("The list is incomplete: early checkpoints were removed, and their model calls with them.", "yellow")

_UNSAID = (None, False, None, None, None, None, "messages", None)

_SAID = {"filtered": "by the filters", "no messages": "without messages", "unknown cost": "with unknown cost"}


def provenance(
    thread: Thread,
    moment: OneMoment = None,
    checkpoint: Checkpoint = None,
    url: Url = DEFAULT_URL,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List the model calls of a thread: models, settings, and their changes.

    Example: `keel provenance my-thread`, or for its latest checkpoint only: `keel provenance my-thread -1`
    """
    if moment is not None and checkpoint is not None:
        raise InvalidInput(f"give one checkpoint: {moment!r}, or --checkpoint {checkpoint!r}")
    wanted = moment if checkpoint is None else checkpoint
    with open_to_read(url, imports) as saver:
        calls, marks = saver.provenance.read(config_of(thread, None)), saver.provenance.drifts(thread)
        if wanted is not None:
            found = moment_of(open_timeline(saver, thread), wanted)
            at = found.namespace, found.id
            calls = [call for call in calls if (call.checkpoint_ns, call.checkpoint_id) == at]
            marks = [mark for mark in marks if ("", mark.checkpoint_id) == at]
        elif not calls:
            check_thread(saver, thread)
        is_cut = wanted is None and not json and _is_cut(saver, thread)
        places = {} if json else {each.id: each.position for each in saver.timeline(thread)[:]}
    if json:
        print_json({"thread_id": thread, "calls": as_json(calls), "drift": as_json(marks)})
    else:
        console().print(calls_page(thread, calls, marks, places, full=full))
    if is_cut:
        console().print(_GONE)


def _is_cut(saver: Any, thread: str) -> bool:
    """Return whether model calls were removed; `False` if that is unknown."""
    return any(line["usage"] is None for line in saver.provenance.trajectories([thread], on_skip=lambda *_: None))


def calls_page(
    thread: str, calls: Sequence[ModelCall], marks: Sequence[DriftMark], places: Mapping[str, int], *, full: bool
) -> RenderableType:
    """Return the page of `keel provenance`; `places` maps checkpoint ids to positions."""
    if not calls and not marks:
        return Text(f"No model calls recorded for thread {plain(thread)}", "dim")
    shown: list[RenderableType] = [_title(thread, calls)]
    parts: list[ModelCall | DriftMark] = []  # each mark before the first call after the change
    for call in calls:
        parts += [*(mark for mark in marks if mark.call_id == call.id), call]
    known = {call.id for call in calls}
    parts += (mark for mark in marks if mark.call_id not in known)
    if full:
        shown += [_mark(part, places) if isinstance(part, DriftMark) else _whole(part, places) for part in parts]
    else:
        rows = [_mark(part, places) if isinstance(part, DriftMark) else _cells(part, places) for part in parts]
        shown.append(Rows((">#", "node", "model → served", "with", "tokens", "time"), rows, heads=2, at=70))
    return Group(*shown)


def _title(thread: str, calls: Sequence[ModelCall]) -> Text:
    tokens = [sum(_count(call, name) for call in calls) for name in ("input_tokens", "output_tokens")]
    costs = [call.cost for call in calls if call.cost is not None]
    is_known = all(call.cost is not None for call in calls if call.error is None)
    text = f" · {count_of(len(calls), 'call')} of models"
    text += f" · {tokens[0]:,} → {tokens[1]:,} tokens" if any(tokens) else ""
    text += f" · cost {'' if is_known else 'at least '}{format_money(sum(costs))}" if costs else ""
    return Text.assemble("thread ", (plain(thread), "bold"), (text, "dim"))


def _mark(mark: DriftMark, places: Mapping[str, int]) -> Text:
    """Return the changes, one per line."""
    at = f"drift at #{places[mark.checkpoint_id]}: " if mark.checkpoint_id in places else ""
    text = Text(style="yellow", overflow="fold")
    for number, change in enumerate(mark.changes):
        text.append(("\n" if number else "") + f"! {at}{plain(change)}")
    return text


def _cells(call: ModelCall, places: Mapping[str, int]) -> list[Text]:
    node = [(plain(call.path or call.node), "bold"), (f"attempt {call.attempt}" * (call.attempt > 1), "dim")]
    model = [
        (plain(call.model or "unnamed model"), "cyan"),
        (f"→ {plain(call.served_model)}" if call.served_model not in (None, call.model) else "", ""),
        (f"→ failed: {plain(call.error)}" if call.error else "", "red"),
        ("from the cache" if call.cached else "", "dim"),
    ]
    settings = {"seed": call.seed, "temp": call.temperature, "top_p": call.top_p, "max": call.max_tokens}
    given = [(f"{name} {value}", "") for name, value in settings.items() if value is not None]
    tokens = f"{_count(call, 'input_tokens'):,} → {_count(call, 'output_tokens'):,}" if call.usage else ""
    cost = "" if call.cost is None else format_money(call.cost)
    took = "" if call.seconds is None else format_seconds(call.seconds)
    spent, time = [(tokens, ""), (cost, "dim")], [(local_time(call.started_at), ""), (took, "dim")]
    columns = [[(_place(call, places), "")], node, model, given, spent, time]
    return [Text("\n", overflow="fold").join(Text(*part) for part in parts if part[0]) for parts in columns]


def _place(call: ModelCall, places: Mapping[str, int]) -> str:
    """Return the position of the moment that a call led to; empty if it was removed."""
    return str(places.get(call.checkpoint_id or "", ""))


def _count(call: ModelCall, name: str) -> int:
    """Return a token count; 0 if the provider stored something other than a number."""
    count = call.usage.get(name)
    return count if isinstance(count, int) else 0


def _whole(call: ModelCall, places: Mapping[str, int]) -> RenderableType:
    heading = Text.assemble("\n#", _place(call, places), " ", (plain(call.path or call.node), "bold"))
    grid = Table.grid(padding=(0, 2))
    for name in (each.name for each in fields(call)):
        if (value := getattr(call, name)) not in (None, "", (), {}, False):
            shown = value if isinstance(value, str) else str(as_json(value))
            grid.add_row(Text(f"  {name}", "dim"), Text(plain(shown), overflow="fold"))
    return Group(heading, grid)


Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write to this file, device or FIFO; to standard output if left out."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
Channel = Annotated[str, typer.Option("--channel", metavar="NAME", help="The channel that contains the messages.")]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="TEXT",
        help="Only threads whose latest `label` or `outcome` in the metadata is this. `keel label` sets neither.",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Write at most this many.")]
MinCost = Annotated[float | None, typer.Option(metavar="AMOUNT", min=0, help="Only threads that cost at least this.")]
ToLangGraph = Annotated[
    str | None,
    typer.Option(
        "--to-langgraph",
        metavar="TARGET",
        help="Write the threads to LangGraph's own saver at `sqlite:///new.db`, or `postgresql://...`.",
    ),
]
MaxCost = Annotated[float | None, typer.Option(metavar="AMOUNT", min=0, help="Only threads that cost at most this.")]


@dataclass(slots=True)
class Report:
    """Errors by thread, skipped threads by reason, and written placeholders."""

    tell: Tell
    total: int | None
    quiet: bool
    errors: dict[str, KeelError] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    written: int = 0
    unread: list[Unread] = field(default_factory=list)

    def skip(self, thread_id: str, why: str | KeelError) -> None:
        """Count a skipped thread; print its error if it could not be read."""
        if isinstance(why, KeelError):
            error = advise_import(why) if isinstance(why, RefusedType) else why
            self.errors[thread_id] = error
            console(stderr=True, quiet=self.quiet).print(error_line(error), soft_wrap=True)
        else:
            self.skipped[why] = self.skipped.get(why, 0) + 1
        self._tell_done()

    def take(self, unread: Iterable[Unread]) -> None:
        """Count a written line, and remember its placeholders."""
        self.written += 1
        self.unread += unread
        self._tell_done()

    def _tell_done(self) -> None:
        self.tell(self.written + len(self.errors) + sum(self.skipped.values()), self.total)


def export(
    url: Url = DEFAULT_URL,
    output: Output = None,
    overwrite: Overwrite = False,
    threads: These = None,
    model: Model = None,
    label: Label = None,
    min_cost: MinCost = None,
    max_cost: MaxCost = None,
    channel: Channel = "messages",
    limit: Limit = None,
    to_langgraph: ToLangGraph = None,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Export threads as JSON Lines: messages, tool and model calls, usage, cost.

    One thread per line, one in memory at a time. Threads that cannot be read are reported on standard error, the others
    are written, and the exit status is 1. With --json and a file, a report is printed to standard output. With
    --to-langgraph, the complete threads are written to the store of one of LangGraph's own savers, to continue there.

    Example: `keel export --label good --output good.jsonl`
    """
    if to_langgraph is not None:
        if (output, overwrite, model, label, min_cost, max_cost, channel, limit) != _UNSAID:
            raise InvalidInput(
                "--to-langgraph writes whole threads: it can be combined with --thread, --import and --json only"
            )
        export_to_langgraph(url, to_langgraph, threads, imports, json)
        return
    try:
        if output is not None and os.path.samestat(output.stat(), os.fstat(sys.stdout.fileno())):
            output = None  # such as `/dev/stdout`
    except (OSError, ValueError):  # it does not exist, or standard output is not a file
        pass
    if json and output is None:
        raise InvalidInput("--json prints a report about the written file: give --output FILE")
    wanted = {"model": model, "label": label, "min_cost": min_cost, "max_cost": max_cost, "channel": channel}
    store = open_to_read(url, imports)
    then = "" if output is None or _is_stream(output) else f"{output} was not written."
    quiet = json or (output is None and sys.stdout.isatty())
    with open_output(output, overwrite) as file, store as saver, bar("Reading threads", quiet=quiet, then=then) as tell:
        is_shown = console(stderr=True).is_terminal and not quiet
        total = len(threads) if threads else sum(1 for _ in saver.threads()) if is_shown else None
        report = Report(tell, total, quiet=json)
        for line in saver.provenance.trajectories(threads or None, limit=limit, on_skip=report.skip, **wanted):
            # ASCII, so that no character of a text can be read as a line break.
            file.write(lines.dumps(as_json(line), allow_nan=False) + "\n")
            report.take(find_unread(line))
    _print_report(report, output, as_report=json)
    tell_unread(report.unread, imports)
    if report.errors:
        raise typer.Exit(1)


@contextmanager
def open_output(path: Path | None, overwrite: bool) -> Iterator[TextIO]:
    """Open the output. A file gets its name only when it is completely on disk."""
    if path is None:
        yield sys.stdout
        return
    try:
        with _open_text(path) if _is_stream(path) else _replace_file(path, overwrite) as file:
            yield file
    except KeelError:
        raise  # some are also an OSError
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error


def _open_text(path: Path, mode: str = "w") -> TextIO:
    return cast(TextIO, path.open(mode, encoding="ascii", newline="\n"))


@contextmanager
def _replace_file(path: Path, overwrite: bool) -> Iterator[TextIO]:
    check_free(path, overwrite)
    target = Path(os.path.realpath(path))  # a symbolic link is kept
    part = target.with_name(f".{target.name}.{token_hex(4)}.part")
    with _exit_on_signals():
        try:
            with _open_text(part, "x") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            check_free(path, overwrite)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Make signals that end the process raise `SystemExit`, so that it cleans up."""
    if current_thread() is not main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _is_stream(path: Path) -> bool:
    """Return whether the path is a FIFO or a device, which is written to directly."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_free(path: Path, overwrite: bool) -> None:
    """Raise an error if the file must not be written."""
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} exists and is not a file")
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path} already exists: --overwrite replaces it")


def _print_report(report: Report, output: Path | None, *, as_report: bool) -> None:
    if as_report:
        damaged = {thread: {"code": error.code, "message": str(error)} for thread, error in report.errors.items()}
        print_json({"output": str(output), "written": report.written, "skipped": report.skipped, "errors": damaged})
        return
    counts = [f"{count:,} {_SAID[why]}" for why, count in report.skipped.items() if why in _SAID]
    unread = sum(not isinstance(error, NotFound) for error in report.errors.values())
    counts += [f"{unread:,} that cannot be read"] if unread else []
    if report.errors and not (report.written or counts or output):
        return  # the missing threads have been reported
    passed = f"; skipped: {', '.join(counts)}" if counts else ""
    where = f" to {plain(str(output))}" if output else ""
    text = f"Wrote {count_of(report.written, 'thread')}{where}{passed}."
    console(stderr=True).print(Text(text, "dim"), soft_wrap=True)
