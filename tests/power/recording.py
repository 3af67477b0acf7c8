"""A run in a child process, recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .disk import Disk, Tree
from .events import Acknowledged, Event
from .parsing import CALLS, OPTIONS, parsed
from .tracing import Traced


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run.

    Attributes:
        events: The changes to its files, and its acknowledgements.
        told: The errors that it met: name and message.
        injected: The number of calls that strace let fail.
        code: Its exit code.
    """

    events: list[Event]
    told: list[tuple[str, str]]
    injected: int
    code: int | None

    @property
    def acknowledged(self) -> int:
        """The number of the last acknowledged step."""
        return next((event.step for event in reversed(self.events) if isinstance(event, Acknowledged)), 0)


def recorded(
    run: Callable[..., object],
    *args: Any,
    directory: Path,
    ignored: tuple[str, ...] = (),
    faults: Sequence[str] = (),
    before: Sequence[Event] = (),
) -> Recording:
    """Record the changes of `run(*args, pipe)` below `directory`.

    Args:
        run: Sends "ready", waits for "go", works, sends the errors that it met, then "done", and waits for "end". Lines
            `ack ...` that it writes anywhere else are recorded too.
        *args: Its arguments; picklable.
        directory: The directory of its files.
        ignored: Endings of files that do not count, such as memory that processes share.
        faults: In the format of strace's `inject`.
        before: Earlier events, since the directory was empty.
    """
    log = directory.with_name(f"{directory.name}.strace")
    options = [*OPTIONS, "-o", str(log), "-e", f"trace={','.join(CALLS)}", *(f"--inject={fault}" for fault in faults)]
    traced = Traced(run, *args, options=options)
    try:
        traced.tell("go")
        told = [one for one in traced.hear_all() if isinstance(one, tuple)]
        if traced.told[-1] == "done":
            traced.detach()
        code = traced.end()
        traced.strace.wait(30)
    finally:
        traced.kill()
    lines = log.read_text().splitlines()
    events = checked([*before, *parsed(lines, str(directory), ignored)], tree_of(directory, ignored))
    return Recording(events, told, sum("(INJECTED)" in line for line in lines), code)


def checked(events: list[Event], tree: Tree) -> list[Event]:
    """Return `events`, after checking that replaying them yields `tree`."""
    disk = Disk()
    for event in events:
        disk.do(event)
    assert disk.tree() == tree
    return events


def tree_of(directory: Path, ignored: tuple[str, ...] = ()) -> Tree:
    """Return the files below a directory."""
    return {
        str(path.relative_to(directory)): None if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
        if not path.name.endswith(ignored)
    }
