"""`FileSaver(root, git=True)`: one commit a run.

A commit is a convenience, never a condition: the put it follows is on disk already, and whatever git says, the put has
worked. What git refuses is logged once (a warning of `warnings` could be turned into an error, and fail the put).

A run is committed by a thread of its own, 0.2 seconds after the last thing that was stored of it: LangGraph stores in
many threads, and the writes of a run's last tasks often arrive after its last checkpoint. What is still being stored
then (a disk may take a second) is waited for. If the next run begins sooner, it waits for the commit. Measured
(git 2.39): 10 ms; 20 ms for a log of 1 MB; 120 ms for one of 7 MB; 400 ms in a repository of 10,000 files.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

from langgraph_keel.core.records import Address
from langgraph_keel.files.names import directory_of
from langgraph_keel.files.repository import Repository

# Both fit the store's root, its directory of threads, and that of shared cells.
_ATTRIBUTES = """\
# Keel: the bytes of these files carry checksums, so git must not change any (line ends, filters, keywords). A log is
# shown as text, but never merged line by line: two branches that both continued one thread are a conflict to decide.
log.jsonl -text -filter -ident !working-tree-encoding diff -merge
*.json -text -filter -ident !working-tree-encoding diff -merge
**/blobs/** -text -filter -ident !working-tree-encoding -diff -merge
"""
_IGNORE = """\
# Keel: files and threads in the making or on their way out.
*.tmp
.new-*/
.gone-*/
"""
SETTINGS = {".gitattributes": _ATTRIBUTES, ".gitignore": _IGNORE}
"""Files by name."""

_QUIET = 0.2
"""Seconds without news after which a run that has stopped is taken to be complete."""
_PATIENCE = 30.0
"""Seconds that a commit which is due waits for what is being stored: in a forked child nobody may be storing it."""
_STOPS = {"__interrupt__": "interrupt", "__error__": "error"}

_log = logging.getLogger(__name__)


def ends_run(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return whether nothing is left to run after a root graph's checkpoint, as LangGraph's channels tell it.

    True for the last checkpoint of a run, and for an edit (`update_state`), complete by itself. A run that stops at a
    breakpoint or the recursion limit, or is killed, looks as if it went on. A bare `Pregel` starts its nodes by
    channels of any name: each of its steps looks like an end.
    """
    if metadata.get("source") != "loop":
        return metadata.get("source") == "update"
    values: Mapping[str, Any] = checkpoint["channel_values"]
    return not any(_starts_a_node(name, values[name]) for name in values)


def _starts_a_node(channel: str, value: Any) -> bool:
    if channel.startswith("join:"):  # "join:a+b:c": the names it has seen of a and b
        return isinstance(value, set) and value >= set(channel.split(":")[1].split("+"))
    if channel == "__pregel_tasks":  # Sends; an empty list once they have run
        return bool(value)
    return channel == "__start__" or channel.startswith("branch:to:")


@dataclass(slots=True)
class _Run:
    """What this process has stored of a thread since a run of it was over.

    Attributes:
        stopped_at: The checkpoint of which a task asked or failed; it may be put after that.
        stopped_by: Which of both.
        due: When to commit it, on the clock of `monotonic`; `None` while it runs, or is committed.
    """

    checkpoint_id: str = ""
    step: Any = None
    source: str = ""
    run_id: str = ""
    is_over: bool = False
    stopped_at: str | None = None
    stopped_by: str = ""
    is_committed: bool = True
    due: float | None = None

    def put(self, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.checkpoint_id = str(checkpoint["id"])
        self.step, self.source = metadata.get("step"), str(metadata.get("source", ""))
        self.run_id = str(metadata.get("run_id") or "")
        self.is_over = ends_run(checkpoint, metadata)

    @property
    def has_stopped(self) -> bool:
        return self.is_over or self.stopped_at == self.checkpoint_id

    def is_answered(self, checkpoint_id: str | None, channels: Sequence[str]) -> bool:
        """Return whether writes resume this run. The last ones of a resumed task say so too, but of its checkpoint."""
        return "__resume__" in channels and checkpoint_id == self.stopped_at == self.checkpoint_id

    def message(self, thread_id: str) -> str:
        how = self.stopped_by if self.stopped_at == self.checkpoint_id else self.source
        what = "run" if self.step is None else f"step {self.step} ({how})"
        return _message(thread_id, what, {"Run-Id": self.run_id, "Checkpoint-Id": self.checkpoint_id})


def _message(thread_id: str, what: str, trailers: Mapping[str, str]) -> str:
    lines = (f"{name}: {_one_line(value)}" for name, value in trailers.items() if value)
    return "\n".join((f"thread {_one_line(thread_id)}: {_one_line(what)}", "", *lines)).strip() + "\n"


def _one_line(text: str) -> str:
    """Return `text` with what would break a line of a message, or is no text, spelled out; the start of a long one."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return shown if len(shown) <= 200 else shown[:199] + "…"


class Commits:
    """Commits each run of each thread: when it is over, when it asks (an interrupt), when it fails.

    A run of which nothing says that it stopped (see `ends_run`) is committed before the thread's next input, with the
    next run's end, or at `close`. Only the files of its thread are committed, and what threads share, whatever else is
    staged or changed.

    Any thread may call. What git does or refuses is never raised. `commit`, `changed` and `close` wait for git; the
    others do not.

    Args:
        root: The store's directory.

    Raises:
        InvalidInput: git is not installed, or `root` is not in a working tree.
    """

    def __init__(self, root: Path) -> None:
        self._repository = Repository(root)
        self._runs: dict[str, _Run] = {}
        self._worker: Thread | None = None
        self._busy_with: _Run | None = None
        self._storing: Counter[str] = Counter()  # what is being stored of each thread
        self._notes = Lock()  # of these four; never held while git runs
        self._complained = False
        self._is_closing = False
        self._turn = Lock()  # of git; taken before the other

    def must_commit_before_put(self, address: Address, metadata: Mapping[str, Any]) -> bool:
        """Return whether `commit` must come before a checkpoint is put: it begins a run, and the last left some."""
        with self._notes:
            run = self._runs.get(address.thread_id)
            if run is None or not run.checkpoint_id or address.checkpoint_ns:
                return False
            # What came after the commit of a run (a last task's writes) is left for the next one's.
            begins = run.has_stopped or metadata.get("source") == "input"
            return begins and self._is_left(run)

    def must_commit_before_writes(self, address: Address, channels: Sequence[str]) -> bool:
        """Return whether `commit` must come before a task's writes are put: they answer a question, which is left."""
        with self._notes:
            run = self._runs.get(address.thread_id)
            if run is None or address.checkpoint_ns:
                return False
            return run.is_answered(address.checkpoint_id, channels) and self._is_left(run)

    def begin_writes(self, address: Address, channels: Sequence[str]) -> None:
        """Note that a task's writes are being put: if they answer a question, its run goes on from now on.

        The next checkpoint of the run may be there before they are stored.
        """
        with self._notes:
            run = self._runs.get(address.thread_id)
            if run and not address.checkpoint_ns and run.is_answered(address.checkpoint_id, channels):
                run.stopped_at = None

    def _is_left(self, run: _Run) -> bool:
        return not run.is_committed or self._busy_with is run

    @contextmanager
    def storing(self, thread_id: str) -> Iterator[None]:
        """Note that something of a thread is being stored: no commit is planned to come between."""
        with self._notes:
            self._storing[thread_id] += 1
        try:
            yield
        finally:
            with self._notes:
                self._storing -= Counter([thread_id])

    def commit(self, thread_id: str, *, if_due: bool = False) -> bool:
        """Commit what is new of a thread, or only if its time has come; return whether git had nothing against it."""
        with self._turn:
            with self._notes:
                run = self._runs.get(thread_id)
                if run is None or run.is_committed or (if_due and run.due is None):
                    return True
                if not run.checkpoint_id and not self._is_closing:
                    return True
                run.is_committed, run.due, self._busy_with = True, None, run
                message = run.message(thread_id)
            done = self._commit(thread_id, message)
            with self._notes:
                self._busy_with = None
                run.is_committed = run.is_committed and done
                if run.is_over and run.is_committed:
                    del self._runs[thread_id]
                elif run.is_over and done:
                    # Writes of its last task came meanwhile: no run, and no commit, of their own.
                    self._runs[thread_id] = _Run(is_committed=False)
            return done

    def put(self, address: Address, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Note a checkpoint that was put, and plan a commit if its run has stopped."""
        with self._notes:
            run = self._run_of(address.thread_id)
            if not address.checkpoint_ns:
                run.put(checkpoint, metadata)
            self._plan(run)

    def put_writes(self, address: Address, channels: Sequence[str]) -> None:
        """Note what a task has written, and plan a commit if it asks or has failed."""
        stops = [] if address.checkpoint_ns else [_STOPS[channel] for channel in channels if channel in _STOPS]
        with self._notes:
            run = self._run_of(address.thread_id)
            if stops:
                run.stopped_at, run.stopped_by = address.checkpoint_id, stops[0]
            self._plan(run)

    def changed(self, thread_id: str, what: str) -> None:
        """Commit a thread that another verb has changed; `what` is the verb's past, such as "deleted"."""
        with self._turn:
            self._commit(thread_id, _message(thread_id, what, {}))

    def close(self) -> None:
        """Commit what is left, unless git refuses."""
        self._is_closing = True
        all(self.commit(thread_id) for thread_id in list(self._runs))

    def _run_of(self, thread_id: str) -> _Run:
        run = self._runs.setdefault(thread_id, _Run())
        run.is_committed = False
        return run

    def _plan(self, run: _Run) -> None:
        run.due = monotonic() + _QUIET if run.has_stopped else None
        # After a fork, the parent's worker is there by name, but not alive.
        if run.due and not (self._worker and self._worker.is_alive()):
            self._worker = Thread(target=self._work, name="keel-git")  # not a daemon: the end of the program waits
            with suppress(RuntimeError):  # ... and when it has come, no thread can be started: `close` is left
                self._worker.start()

    def _work(self) -> None:
        """Commit runs as they are due, until none is left."""
        while (planned := self._first()) is not None:
            thread_id, due = planned
            wait = due - monotonic()
            if thread_id in self._storing and wait > -_PATIENCE:
                wait = max(wait, _QUIET)
            if wait > 0:
                sleep(wait)  # and look again: the next run may have begun
            else:
                self.commit(thread_id, if_due=True)

    def _first(self) -> tuple[str, float] | None:
        with self._notes:
            planned = [(run.due, thread_id) for thread_id, run in self._runs.items() if run.due]
            if planned:
                return min(planned)[1], min(planned)[0]
            self._worker = None
            return None

    def _commit(self, thread_id: str, message: str) -> bool:
        refusal = self._repository.commit(f"threads/{directory_of(thread_id)}", message)
        if refusal and not self._complained:
            _log.warning("git did not commit (what is stored is unharmed): %s", refusal)
        self._complained = bool(refusal)
        return not refusal
