"""What the demo proved: claims computed from the journal, the ledger and the store, never from the script."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from langgraph_keel.cli.demo_model import CUSTOMER
from langgraph_keel.cli.demo_run import Event, Snapshot, Stage
from langgraph_keel.cli.demo_tools import LEDGER, REPORT, ledger


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, and whether it is true."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the claims are computed from.

    Attributes:
        before: What the killed process wrote in the journal.
        after: What the process that resumed wrote.
        kept: The store right after the kill.
        final: The store at the end.
        booked: The amounts in the ledger.
        report: The text of the report; empty if there is none.
        status: The exit status of the killed process.
    """

    before: list[Event]
    after: list[Event]
    kept: Snapshot
    final: Snapshot
    booked: list[str]
    report: str
    status: int

    def paid(self, events: Iterable[Event]) -> list[int]:
        """Return the turns of the model calls that were begun, hence paid."""
        return [event["turn"] for event in events if event["event"] == "model_paid"]

    def calls(self, events: Iterable[Event], moment: str) -> dict[str, str]:
        """Return the tool calls that `began`, `ended` or were `replayed`: id and tool name."""
        return {event["call"]: event["name"] for event in events if event["event"] == f"tool_{moment}"}

    @property
    def finished(self) -> dict[str, str]:
        """The tool calls that had ended before the kill."""
        return self.calls(self.before, "ended")

    @property
    def cut(self) -> dict[str, str]:
        """The tool calls that were at work when the kill came."""
        return {call: name for call, name in self.calls(self.before, "began").items() if call not in self.finished}

    @property
    def interrupted(self) -> dict[str, str]:
        """The tool calls that had ended before the kill, beside the one that was at work: their step had not."""
        turns = {event["turn"] for event in self.before if event.get("call") in self.cut}
        return self.calls((event for event in self.before if event["turn"] in turns), "ended")

    @property
    def answered(self) -> dict[str, str]:
        """The tool calls that were answered from the ledger after the kill."""
        return self.calls(self.after, "replayed")

    @property
    def repeated(self) -> dict[str, str]:
        """The tool calls that began more than once."""
        both = [*self.before, *self.after]
        times = Counter(event["call"] for event in both if event["event"] == "tool_began")
        return {call: name for call, name in self.calls(both, "began").items() if times[call] > 1}


def gather(stage: Stage, kept: Snapshot, final: Snapshot, killed: int, status: int) -> Evidence:
    """Read the journal and the files; `killed` is the process id of the one that was killed."""
    events = stage.journal()
    report = stage.folder / REPORT
    return Evidence(
        before=[event for event in events if event["pid"] == killed],
        after=[event for event in events if event["pid"] != killed],
        kept=kept,
        final=final,
        booked=ledger(stage.folder, CUSTOMER),
        report=report.read_text(encoding="utf-8") if report.exists() else "",
        status=status,
    )


def claims(found: Evidence) -> list[Claim]:
    """Return what the demo set out to show, each sentence with its truth."""
    return [_killed(found), _restored(found), _models(found), _finished(found), _answered(found),
            _cut(found), _money(found), _history(found), _done(found)]  # fmt: skip


def _killed(found: Evidence) -> Claim:
    really = found.status != 0 if os.name == "nt" else found.status == -signal.SIGKILL
    return Claim(f"The first process was killed at work: exit status {found.status}.", really)


def _restored(found: Evidence) -> Claim:
    count = len(found.kept.messages)
    same = bool(count) and found.final.messages[:count] == found.kept.messages
    read = next((event["read"] for event in found.after if event["event"] == "model_paid"), 0)
    return Claim(
        "The second process was given the thread id and no task; "
        f"it went on from step {found.kept.step} with all {count} messages.",
        same and read == count + len(found.cut) + len(found.answered),
    )


def _models(found: Evidence) -> Claim:
    before, after = found.paid(found.before), found.paid(found.after)
    once = sorted(before + after) == list(range(1, len(before + after) + 1))
    return Claim(
        f"No model call was paid twice: {len(before)} before the kill, {len(after)} after.",
        once and bool(before),
    )


def _finished(found: Evidence) -> Claim:
    again = found.finished.keys() & found.calls(found.after, "began").keys()
    return Claim(
        f"No finished tool call ran again: {len(found.finished)} were finished, {len(again)} ran twice.",
        not again and bool(found.finished),
    )


def _answered(found: Evidence) -> Claim:
    answered, once = found.answered, dict.fromkeys(found.answered, 1)
    calls = "call of the interrupted step was" if len(answered) == 1 else "calls of the interrupted step were"
    which = f": {listed(answered.values())}" if found.interrupted else "; it had none"
    return Claim(
        f"{len(answered)} finished tool {calls} answered from the ledger, not run again{which}.",
        answered == found.interrupted and found.final.hits == once and not answered.keys() & found.repeated.keys(),
    )


def _cut(found: Evidence) -> Claim:
    ended = Counter(event["call"] for event in [*found.before, *found.after] if event["event"] == "tool_ended")
    names = listed(found.cut.values())
    return Claim(
        f"Only what was cut in the middle began again: {names}.",
        found.repeated == found.cut and bool(found.cut) and set(ended.values()) == {1},
    )


def _money(found: Evidence) -> Claim:
    times = {0: "not there", 1: "there once"}.get(len(found.booked), f"there {len(found.booked)} times")
    amount = found.booked[0] if found.booked else "0.00"
    return Claim(f"The credit of {amount} EUR is in {LEDGER}: {times}.", len(found.booked) == 1)


def _history(found: Evidence) -> Claim:
    kept, final = [row.id for row in found.kept.rows], [row.id for row in found.final.rows]
    whole = len(final) > len(kept) and final[-len(kept) :] == kept and all(row.follows for row in found.final.rows)
    return Claim(
        f"The history is one chain of {len(final)} checkpoints; the {len(kept)} from before the kill are all in it.",
        whole,
    )


def _done(found: Evidence) -> Claim:
    told = bool(found.booked) and f"{found.booked[0]} EUR" in found.report
    return Claim("The task is finished: nothing runs next, and the report names the booked amount.",
                 told and not found.final.next)  # fmt: skip


def closing(found: Evidence) -> str:
    """Return the paragraph that says what all this means, given that every claim holds."""
    paid, done = len(found.paid(found.before)), found.finished
    saved = f"{paid} paid model calls and {len(done)} finished tool calls"
    twice = " and booked the credit a second time" if "book_credit" in done.values() else ""
    alone = listed(found.answered.values())
    again = f" Resumed without the ledger of tool calls, it would have run {alone} again." if found.answered else ""
    return (
        f"A process died without warning after {saved}, and none of them was lost or repeated. "
        "Another process took the thread up by its id alone and finished it; the price of the crash was "
        f"{listed(found.cut.values())}, which began again. "
        f"Starting over would have paid {paid} model calls again{twice}.{again} "
        "(A tool cut after its effect but before its result is stored runs again. Here this does no harm: book_credit "
        "gets the same idempotency key again and books nothing twice; the others only read, or write a file anew.)"
    )


def hits(found: Evidence) -> str:
    """Return the line that says how many answers came from the ledger of tool calls."""
    count = sum(found.final.hits.values())
    every, rate = count + len(found.final.calls), found.final.hit_rate
    return f"{count} of {every} answers to tool calls came from the ledger of tool calls: hit rate {rate:.0%}."


def listed(names: Iterable[str]) -> str:
    """Return tool names with how often each occurs."""
    counts = Counter(names)
    return ", ".join(name if times == 1 else f"{name} ×{times}" for name, times in counts.items()) or "nothing"
