"""The commands for the notes, the hand-off and the journal of threads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli.history import MOMENT, check_thread, moment_of, open_timeline
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Imports, Since, Thread, Url, open_to_change, open_to_read
from langgraph_keel.cli.output import Indented, console, local_time, print_answer, print_json
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.handoff import Handoff

Words = Annotated[str, typer.Argument(metavar="TEXT", help="The decision, finding, goal or next step.")]
NoteId = Annotated[str, typer.Argument(metavar="NOTE", help="The note's id, or its beginning or end.")]
Outcome = Annotated[str, typer.Argument(metavar="OUTCOME", help="The outcome of the decision.")]
Kind = Annotated[str, typer.Option("--kind", metavar="KIND", help="`decision`, `finding`, `goal` or `next`.")]
Because = Annotated[str, typer.Option("--because", metavar="TEXT", help="The reason.")]
Ended = Annotated[
    str | None, typer.Option("--outcome", metavar="TEXT", help="The outcome of a decision, if it is known.")
]
OneThread = Annotated[str | None, typer.Argument(metavar="THREAD", help="The thread's id; without it, all threads.")]
Open = Annotated[bool, typer.Option("--open", help="Only decisions without an outcome.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead.")]
Tokens = Annotated[
    int, typer.Option("--tokens", metavar="N", help="Maximum length in tokens, of four characters each.")
]
AtMoment = Annotated[str | None, typer.Option("--at", metavar="MOMENT", help=f"An earlier checkpoint: {MOMENT}.")]
Owner = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="All threads of this owner instead.")]


def note(
    thread: Thread,
    text: Words,
    url: Url = DEFAULT_URL,
    kind: Kind = "decision",
    because: Because = "",
    outcome: Ended = None,
    json: AsJson = False,
) -> None:
    """Attach a note to a thread: a decision, a finding, a goal or the next step.

    Example: `keel note my-thread "migrate the table" --because "the tests pass"`
    """
    with open_to_change(url) as saver:
        check_thread(saver, thread)
        made = saver.history.note(thread, text, kind, because=because, outcome=outcome)
    print_answer(asdict(made), Text(f"noted as {made.id}"), as_json=json)


def outcome(note: NoteId, outcome: Outcome, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Record the outcome of an earlier decision.

    Example: `keel outcome 4f1c2a "migrated 1,200 rows"`
    """
    with open_to_change(url) as saver:
        made = saver.history.set_outcome(note, outcome)
    print_answer(asdict(made), Text(f"outcome of note {made.id} recorded"), as_json=json)


def notes(thread: OneThread = None, url: Url = DEFAULT_URL, open: Open = False, json: AsJson = False) -> None:
    """List the notes of a thread, or of all threads, oldest first.

    Example: `keel notes --open`
    """
    with open_to_read(url) as saver:
        found = saver.history.notes(thread, open=open)
    if json:
        print_json({"notes": [asdict(each) for each in found]})
        return
    for each in found:
        head = Text.assemble((each.kind, "bold"), f"  {plain(each.text)}")
        if each.is_open:
            head.append("  no outcome", "yellow")
        console().print(head)
        about = [f"because: {each.because}"] if each.because else []
        about += [f"outcome: {each.outcome}"] if each.outcome else []
        for line in (*about, f"thread {each.thread_id} · {local_time(each.at)} · {each.id}"):
            console().print(Indented(Text(plain(line), "dim")))
    if not found:
        console().print("Every decision has an outcome." if open else "There are no notes.")


def handoff(
    thread: Thread,
    url: Url = DEFAULT_URL,
    out: Out = None,
    tokens: Tokens = 1500,
    at: AtMoment = None,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Summarize a thread for the next session: goal, work, decisions, next step.

    Example: `keel handoff my-thread --out HANDOFF.md`
    """
    with open_to_read(url, imports) as saver:
        config = None if at is None else moment_of(open_timeline(saver, thread), at).config
        found: Handoff = saver.history.handoff(thread, tokens, at=config)
    if json or out is None:
        return print_answer(found.as_json(), Text(str(found).rstrip("\n")), as_json=json)
    try:
        out.write_text(str(found), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--out {str(out)!r} cannot be written: {error.strerror}") from error
    lines = count_of(sum(map(len, found.sections.values())), "line")
    console().print(Text(f"{lines} written to {plain(str(out))}, {found.cut:,} cut"), soft_wrap=True)


def journal(
    thread: OneThread = None, url: Url = DEFAULT_URL, owner: Owner = None, since: Since = None, json: AsJson = False
) -> None:
    """Show a daily journal of a thread, or of all threads of an owner.

    Example: `keel journal my-thread --since 7d`
    """
    times: Any = since
    with open_to_read(url) as saver:
        found = saver.history.journal(thread, owner=owner, since=times)
    print_answer({"journal": found}, Text(found.rstrip("\n")), as_json=json)
