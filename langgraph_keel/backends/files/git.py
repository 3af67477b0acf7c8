"""`FileSaver(root, git=True)`: one commit for each run.

Errors of git are logged and fail no write. A background thread commits a run 0.2 seconds after its last record was
stored: LangGraph stores from many threads, and the writes of a run's last tasks often arrive after its last checkpoint.
The next run waits for the commit.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from random import uniform
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

from langgraph.constants import START

from langgraph_keel._langgraph import BRANCH_TO, ERROR, INTERRUPT, JOIN, RESUME, TASKS
from langgraph_keel.backends.files.cells import SHARED
from langgraph_keel.backends.files.disk import MODE, directory_of, lock, unlock
from langgraph_keel.backends.files.log import Records, read_committed
from langgraph_keel.backends.files.store import FileStore, Work
from langgraph_keel.backends.files.thread import CELLS, LOG
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.events import Copy, Put, Travel, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan, StorePlan
from langgraph_keel.engine.records import Graph, Run, Stamp
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, InvalidInput, StoreBusy
from langgraph_keel.git import LONGEST, NO_HOOKS, GitResult, find_git, run_git

_SETTINGS = ("keel.json", "threads/.gitattributes", "threads/.gitignore")
_LOCK_SECONDS = 2.0
"""Seconds to wait for git's locks; 0 after a failure, until a commit succeeds."""
_LOCK = "keel.lock"

# Both fit the store's root, its directory of threads, and that of shared cells.
_ATTRIBUTES = """\
# Keel: the bytes of these files carry checksums, so git must not change any (line ends, filters, keywords). A log is
# shown as text, but never merged line by line: two branches that both continued one thread are a conflict to decide.
log.jsonl -text -filter -ident !working-tree-encoding diff -merge
*.json -text -filter -ident !working-tree-encoding diff -merge
**/blobs/** -text -filter -ident !working-tree-encoding -diff -merge
"""
_IGNORE = """\
# Keel: files and threads in the making or on their way out, and the index of threads.
.index
.changed
*.tmp
.new-*/
.gone-*/
"""
SETTINGS = {".gitattributes": _ATTRIBUTES, ".gitignore": _IGNORE}
"""Content of git's settings files, by name."""

QUIET = 0.2
"""Seconds without new records after which a stopped run counts as complete."""
_MOST_DELAY = 30.0
"""Maximum seconds that a due commit waits for unfinished writes.

A forked child may never finish them.
"""
_STOPS = {INTERRUPT: "interrupt", ERROR: "error"}

_log = logging.getLogger(__name__)


class Repository:
    """Commits paths of a store, one call at a time.

    The constructor calls `find`, which waits for git. With `later`, the caller must call it, outside of a running loop.
    """

    def __init__(self, root: Path, later: bool = False) -> None:
        self._root, self._git = root, ""
        self._lock_seconds = _LOCK_SECONDS
        self._new_settings: tuple[str, ...] | None = None
        if not later:
            self.find(root)

    def find(self, root: Path) -> None:
        """Find git and the working tree around the store, once."""
        if self._git:
            return
        self._root, git = root, find_git("git=True")
        existing = next(path for path in (self._root, *self._root.absolute().parents) if path.is_dir())
        found = run_git([git, "rev-parse", "--is-inside-work-tree", "--git-path", _LOCK], existing)
        is_inside, _, path = os.fsdecode(found.output).partition("\n")
        if is_inside != "true":
            reason = found.errors or "it is inside a repository's own directory"
            where = f"a git repository around {str(self._root)!r} (`git init` makes one)"
            raise InvalidInput(f"git=True needs {where}: {reason}")
        self._lock_path = (existing / path.removesuffix("\n")).absolute()
        self._git = git

    def commit(self, path: str, message: str) -> str:
        """Commit the changes below a path and in shared cells, and nothing else.

        Return the error of git, or an empty text.
        """
        try:
            file = None
            if self._lock_path.parent.exists():  # otherwise git reports the problem with its repository
                file = FileIO(os.open(self._lock_path, os.O_RDWR | os.O_CREAT, MODE), "r+")
            try:
                if file is not None:
                    # Git's own locks are not enough (2.39): a commit of some paths reads the index before it locks it,
                    # and writes it back without the files that another process has added in between. That happened
                    # to the first commits of 2 threads in 80.
                    lock(file.fileno(), monotonic() + LONGEST, self._lock_path)
                refusal = self._commit_paths(path, message)
            finally:
                if file is not None:
                    unlock(file)
        except (OSError, StoreBusy) as error:
            refusal = str(error)
        self._lock_seconds = 0.0 if refusal else _LOCK_SECONDS
        return refusal

    def _commit_paths(self, path: str, message: str) -> str:
        paths = [path]
        if (self._root / SHARED / ".gitattributes").exists():
            ignored = run_git([self._git, "check-ignore", "--quiet", "--", SHARED], self._root)
            paths += [SHARED] if ignored.status else []  # if git ignores them, they are only a cache
        if self._new_settings is None:  # changes to settings that git already tracks are the user's to commit
            known = run_git([self._git, "ls-files", "--", *_SETTINGS], self._root).output.decode().splitlines()
            there = [name for name in _SETTINGS if (self._root / name).exists()]
            self._new_settings = tuple(name for name in there if name not in known)
        paths += self._new_settings
        done = self._run_git("add", "--all", "--", *paths)
        if done.status == 0:
            # A signature might ask for a passphrase.
            options = ("--quiet", "--only", "--no-gpg-sign", "--cleanup=verbatim", "--file=-")
            done = self._run_git("commit", *options, "--", *paths, stdin=message)
            if done.status == 0:
                self._new_settings = ()
        # There is nothing to commit if everything is committed, or was removed before git tracked it.
        is_unknown = "did not match any file" in done.errors
        return "" if done.status == 0 or is_unknown else done.errors

    def _run_git(self, *arguments: str, stdin: str = "") -> GitResult:
        """Run git, and repeat it while another git process holds a lock."""
        give_up = monotonic() + self._lock_seconds
        while True:
            done = run_git([self._git, *NO_HOOKS, *arguments], self._root, stdin.encode(errors="backslashreplace"))
            if done.status == 0 or "lock" not in done.errors or monotonic() >= give_up:
                return done
            sleep(uniform(0.01, 0.05))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file that both branches have changed and git has left unmerged."""

    path: str  # from the store's root
    ours: bytes | None  # on the branch that is checked out; `None` if the file was deleted
    theirs: bytes | None  # on the other branch


def conflicts(root: Path) -> list[Conflict]:
    """Return the files of a store that git holds in conflict; none without git."""
    git = shutil.which("git")
    if git is None or not root.is_dir():
        return []
    listed = run_git([git, "ls-files", "--unmerged", "-z", "--", "."], root).output.decode(errors="surrogateescape")
    sides: dict[str, dict[str, str]] = {}
    for line in listed.split("\0")[:-1]:  # "<mode> <object> <stage>\t<path>"; stages: 1 base, 2 ours, 3 theirs
        fields, _, path = line.partition("\t")
        _, name, stage = fields.split(" ")
        sides.setdefault(path, {})[stage] = name

    def read_blob(name: str | None) -> bytes | None:
        return None if name is None else run_git([git, "cat-file", "blob", name], root).output

    return [Conflict(path, read_blob(each.get("2")), read_blob(each.get("3"))) for path, each in sides.items()]


def ends_run(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return whether a root graph's checkpoint leaves nothing to run.

    This depends on LangGraph's channels. A run that stops at a breakpoint or the recursion limit, or is killed, looks
    unfinished. A bare `Pregel` starts its nodes by channels of any name, so each of its steps looks like an end.
    """
    if metadata.get("source") != "loop":
        return metadata.get("source") == "update"  # an edit (`update_state`) is complete by itself
    for channel, value in checkpoint["channel_values"].items():
        if channel.startswith(JOIN):  # "join:a+b:c": those of a and b that have finished
            starts_a_node = isinstance(value, set) and value >= set(channel.split(":")[1].split("+"))
        elif channel == TASKS:  # Sends; an empty list after they have run
            starts_a_node = bool(value)
        else:
            starts_a_node = channel == START or channel.startswith(BRANCH_TO)
        if starts_a_node:
            return False
    return True


@dataclass(slots=True)
class _RunState:
    """A thread's run, from the records stored since the last run ended."""

    checkpoint_id: str = ""
    step: Any = None
    source: str = ""
    run_id: str = ""
    is_over: bool = False
    # The checkpoint at which a task asked or failed; it may be stored after the writes of that task.
    stopped_at: str | None = None
    stopped_by: str = ""
    due: float | None = None  # on the clock of `monotonic`; `None` while the run continues, or once it is committed
    news: int = 0  # number of stored records
    committed: int = 0  # number of records in the last commit, also while git runs

    @property
    def is_committed(self) -> bool:
        return self.committed >= self.news

    def put(self, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.checkpoint_id = str(checkpoint["id"])
        self.step, self.source = metadata.get("step"), str(metadata.get("source", ""))
        self.run_id = str(metadata.get("run_id") or "")
        self.is_over = ends_run(checkpoint, metadata)

    @property
    def has_stopped(self) -> bool:
        return self.is_over or self.stopped_at == self.checkpoint_id

    def is_answered(self, checkpoint_id: str | None, channels: Sequence[str]) -> bool:
        """Return whether writes resume this run.

        A resumed task may do so again later, at another checkpoint.
        """
        return RESUME in channels and checkpoint_id == self.stopped_at == self.checkpoint_id

    def message(self, thread_id: str) -> str:
        how = self.stopped_by if self.stopped_at == self.checkpoint_id else self.source
        what = "run" if self.step is None else f"step {self.step} ({how})"
        return _message(thread_id, what, {"Run-Id": self.run_id, "Checkpoint-Id": self.checkpoint_id})


def _message(thread_id: str, what: str, trailers: Mapping[str, str]) -> str:
    lines = (f"{name}: {_one_line(value)}" for name, value in trailers.items() if value)
    return "\n".join((f"thread {_one_line(thread_id)}: {_one_line(what)}", "", *lines)).strip() + "\n"


def _one_line(text: str) -> str:
    """Return `text` on one line, escaped and cut to 200 characters."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return shown if len(shown) <= 200 else shown[:199] + "…"


class Left(NamedTuple):
    """The changes of a run that were not committed when the next run started."""

    run: _RunState
    news: int  # records stored until then; later ones belong to the next run, and cause no commit


class Commits:
    """Commits each run of each thread when it ends, asks a question or fails.

    A run whose end cannot be detected (see `ends_run`) is committed before the thread's next input, with the next run's
    end, or at `close`. `commit`, `commit_change` and `close` wait for git; the other methods do not.
    """

    def __init__(self, root: Path, later: bool = False) -> None:
        self._repository = Repository(root, later)
        self.find = self._repository.find
        self._runs: dict[str, _RunState] = {}
        self._worker: Thread | None = None
        self._busy_with: _RunState | None = None
        self._storing: Counter[str] = Counter()  # number of unfinished writes of each thread
        self._notes = Lock()  # guards the four fields above; never held while git runs
        self._has_warned = False
        self._is_closing = False
        self._git_lock = Lock()  # held while git runs; taken before `_notes`

    def left_before_put(self, address: Address, metadata: Mapping[str, Any]) -> Left | None:
        """Return the changes to commit before a checkpoint that starts a run, if any."""
        with self._notes:
            run = self._runs.get(address.thread_id)
            if run is None or not run.checkpoint_id or address.checkpoint_ns:
                return None
            # Records after the commit of a run (writes of its last task) go into the commit of the next run.
            return self._left(run) if run.has_stopped or metadata.get("source") == "input" else None

    def left_before_writes(self, address: Address, channels: Sequence[str]) -> Left | None:
        """Return the changes to commit before writes that answer a question or belong to the next run, if any."""
        with self._notes:
            run = self._runs.get(address.thread_id)
            if run is None or address.checkpoint_ns:
                return None
            # The writes of a run may be stored before its first checkpoint; late ones of the last run have an older id.
            is_next = run.has_stopped and (address.checkpoint_id or "") > run.checkpoint_id
            return self._left(run) if is_next or run.is_answered(address.checkpoint_id, channels) else None

    def begin_writes(self, address: Address, channels: Sequence[str]) -> None:
        """Record the start of a task's writes; if they are an answer, the run continues.

        This comes first, because the next checkpoint of the run may be stored before these writes.
        """
        with self._notes:
            run = self._runs.get(address.thread_id)
            if run and not address.checkpoint_ns and run.is_answered(address.checkpoint_id, channels):
                run.stopped_at = None

    def _left(self, run: _RunState) -> Left | None:
        return Left(run, run.news) if not run.is_committed or self._busy_with is run else None

    def begin_storing(self, thread_id: str) -> None:
        """Record that a write has started: no commit until it ends."""
        with self._notes:
            self._storing[thread_id] += 1

    def end_storing(self, thread_id: str) -> None:
        """Record that a write of a thread has ended or failed."""
        with self._notes:
            self._storing -= Counter([thread_id])

    def commit(self, thread_id: str, left: Left | None = None, *, if_due: bool = False) -> bool:
        """Commit the changes of a thread; return `False` if git refused.

        Args:
            thread_id: The thread.
            left: Commit only if these changes of an earlier run are still uncommitted.
            if_due: Commit only if the commit is due.
        """
        with self._git_lock:
            with self._notes:
                run = self._runs.get(thread_id)
                if run is None or run.is_committed or (if_due and run.due is None):
                    return True
                # While git was committing these changes, the next run has started: do not commit that one.
                if left and (run is not left.run or run.committed >= left.news):
                    return True
                if not run.checkpoint_id and not self._is_closing:
                    return True
                run.committed, run.due, self._busy_with = run.news, None, run
                message = run.message(thread_id)
            done = self._commit(thread_id, message)
            with self._notes:
                self._busy_with = None
                if not done:
                    run.committed = 0
                if run.is_over and run.is_committed:
                    del self._runs[thread_id]
                elif run.is_over and done:
                    # Writes of its last task arrived during the commit: they are not a run, and get no commit.
                    self._runs[thread_id] = _RunState(news=1)
            return done

    def put(self, address: Address, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Record a stored checkpoint, and plan a commit if its run has stopped."""
        with self._notes:
            run = self._note_run(address.thread_id)
            if not address.checkpoint_ns:
                run.put(checkpoint, metadata)
            self._plan(run)

    def put_writes(self, address: Address, channels: Sequence[str]) -> None:
        """Record the writes of a task, and plan a commit if the task asks or has failed."""
        stops = [] if address.checkpoint_ns else [_STOPS[channel] for channel in channels if channel in _STOPS]
        with self._notes:
            run = self._note_run(address.thread_id)
            if stops:
                run.stopped_at, run.stopped_by = address.checkpoint_id, stops[0]
            self._plan(run)

    def commit_change(self, thread_id: str, what: str) -> None:
        """Commit a thread that another verb has changed, such as "deleted"."""
        with self._git_lock:
            self._commit(thread_id, _message(thread_id, what, {}))

    def close(self) -> None:
        """Commit all remaining changes; stop if git refuses."""
        self._is_closing = True
        all(self.commit(thread_id) for thread_id in list(self._runs))

    def _note_run(self, thread_id: str) -> _RunState:
        run = self._runs.setdefault(thread_id, _RunState())
        run.news += 1
        return run

    def _plan(self, run: _RunState) -> None:
        run.due = monotonic() + QUIET if run.has_stopped else None
        # In a forked child, the parent's worker exists but is not alive.
        if run.due and not (self._worker and self._worker.is_alive()):
            self._worker = Thread(target=self._work, name="keel-git")  # not a daemon: the program waits for it on exit
            with suppress(RuntimeError):  # on exit no thread can be started; then `close` commits
                self._worker.start()

    def _work(self) -> None:
        """Commit runs when they are due, until no run is due."""
        while True:
            with self._notes:
                due, thread_id = min(((run.due, name) for name, run in self._runs.items() if run.due), default=(0, ""))
                if not due:
                    self._worker = None
                    return
            wait = due - monotonic()
            if thread_id in self._storing and wait > -_MOST_DELAY:
                wait = max(wait, QUIET)
            if wait > 0:
                sleep(wait)  # then check again, as the next run may have started
            else:
                self.commit(thread_id, if_due=True)

    def _commit(self, thread_id: str, message: str) -> bool:
        refusal = self._repository.commit(f"threads/{directory_of(thread_id)}", message)
        if refusal and not self._has_warned:
            # Not `warnings.warn`, which could be turned into an error and fail the write.
            _log.warning("git did not commit (the stored data is unharmed): %s", refusal)
        self._has_warned = bool(refusal)
        return not refusal


@dataclass(frozen=True, slots=True)
class Side:
    """The part of a thread on one branch."""

    checkpoints: int  # stored since the branches diverged
    updated_at: str  # ISO time of its last checkpoint, `""` if it has none
    is_sound: bool = True  # whether its log can be read


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice between two logs."""

    path: str  # of the log, from the store's root
    thread_id: str  # empty if neither log can be read
    shared: int  # number of checkpoints that both branches have
    ours: Side | None  # the branch that is checked out; `None` if it has deleted the thread
    theirs: Side | None  # the other branch

    @property
    def commands(self) -> dict[str, str]:
        """The commands that keep each side's log, run in the store's root, by side."""
        removal = f"git rm --quiet -r -- {Path(self.path).parent.as_posix()}"
        return commands_to_keep(self.path, {"ours": self.ours, "theirs": self.theirs}, removal)


def commands_to_keep(path: str, sides: Mapping[str, object], removal: str) -> dict[str, str]:
    """Return the command that keeps each side's file; `removal` for a deleted one."""
    return {
        name: removal if side is None else f"git checkout --{name} -- {path} && git add -- {path}"
        for name, side in sides.items()
    }


def decisions(root: Path) -> list[Decision]:
    """Return the threads of a store that git holds in conflict; none without git."""
    return [_decision(conflict) for conflict in conflicts(root) if Path(conflict.path).name == LOG]


def cell_conflicts(root: Path) -> list[Conflict]:
    """Return the cells of a store that git holds in conflict."""
    places = ((conflict, Path(conflict.path).parts) for conflict in conflicts(root))
    return [conflict for conflict, parts in places if parts[0] == SHARED or parts[2:3] == (CELLS,)]


def _decision(conflict: Conflict) -> Decision:
    ours, theirs = (_records(content, conflict.path) for content in (conflict.ours, conflict.theirs))
    pairs = zip(ours or (), theirs or (), strict=False)
    shared = next((place for place, (one, other) in enumerate(pairs) if one[1] != other[1]), None)
    shared = min(len(ours or ()), len(theirs or ())) if shared is None else shared
    first = next((records[0][0] for records in (ours, theirs) if records), {})
    return Decision(
        conflict.path,
        str(first.get("id", "")),
        len(_times((ours or theirs or [])[:shared])),
        _side(conflict.ours, ours, shared),
        _side(conflict.theirs, theirs, shared),
    )


def _records(content: bytes | None, where: str) -> Records | None:
    """Return the records of a log; `None` if there is no log, or it cannot be read."""
    try:
        return None if content is None else read_committed(content, 0, where)[0]
    except CorruptStore:
        return None


def _side(content: bytes | None, records: Records | None, shared: int) -> Side | None:
    if content is None:
        return None
    times = _times(records or ())
    return Side(len(_times((records or [])[shared:])), times[-1] if times else "", records is not None)


def _times(records: Sequence[tuple[dict[str, object], bytes]]) -> list[str]:
    return [str(fields.get("at", "")) for fields, _ in records if fields.get("k") == "ckpt"]


class CommittingStore(FileStore):
    """A store of files that commits each removal."""

    def __init__(self, commits: Commits) -> None:
        super().__init__()
        self._commits = commits

    def of_tenant(self, tenant: str) -> FileStore:
        """Refuse tenants, as one git history would contain the data of all of them."""
        raise InvalidInput("git=True does not support tenants: one git history would contain the data of all of them")

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Work, Any, int]:
        """Like `Store.remove_rows`, the last step of every removal."""
        removed = yield from super().remove_rows(thread_id, live, graph)
        yield from self._commit(thread_id, "pruned")
        return removed

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Work, Any, bool]:
        """Like `Store.delete_thread`."""
        is_deleted = yield from super().delete_thread(thread_id, last)
        if is_deleted:
            yield from self._commit(thread_id, "deleted")
        return is_deleted

    def _commit(self, thread_id: str, what: str) -> StorePlan[Work, Any, None]:
        yield Work(lambda _: self._commits.commit_change(thread_id, what))


class GitHook(Hook):
    """Notifies `Commits` of every write and change of a thread.

    A run is committed before the next one stores.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    def before_put(self, session: Session, put: Put) -> Plan[None]:
        """Commit the rest of the last run, if this checkpoint starts a new one."""
        if left := self._commits.left_before_put(put.address, put.header.metadata):
            yield from self._commit(put.address.thread_id, left)
        self._commits.begin_storing(put.address.thread_id)
        put.notes[self] = True

    def after_put(self, session: Session, put: Put) -> None:
        """Record a checkpoint."""
        self._commits.put(put.address, put.checkpoint, put.header.metadata)
        self._commits.end_storing(put.address.thread_id)

    def put_failed(self, session: Session, put: Put, error: BaseException) -> None:
        """Record that the write has ended."""
        if self in put.notes:
            self._commits.end_storing(put.address.thread_id)

    def before_writes(self, session: Session, writes: Writes) -> Plan[None]:
        """Commit the rest of the last run, if these writes answer it or belong to a new one."""
        address, channels = writes.address, [channel for channel, _ in writes.writes]
        if left := self._commits.left_before_writes(address, channels):
            yield from self._commit(address.thread_id, left)
        self._commits.begin_writes(address, channels)
        self._commits.begin_storing(address.thread_id)
        writes.notes[self] = channels

    def after_writes(self, session: Session, writes: Writes) -> None:
        """Record the writes of a task."""
        self._commits.put_writes(writes.address, writes.notes[self])
        self._commits.end_storing(writes.address.thread_id)

    def writes_failed(self, session: Session, writes: Writes, error: BaseException) -> None:
        """Record that the write has ended."""
        if self in writes.notes:
            self._commits.end_storing(writes.address.thread_id)

    def before_travel(self, session: Session, travel: Travel) -> Plan[None]:
        """Commit the rest of a run that has just ended; a rewind is a separate commit."""
        yield from self._commit(travel.origin.thread_id)
        self._commits.begin_storing(travel.origin.thread_id)

    def after_travel(self, session: Session, travel: Travel) -> Plan[None]:
        """Commit the rewind or branch of a thread."""
        self._commits.end_storing(travel.origin.thread_id)
        verb = "rewound to" if travel.verb == "rewound" else "branched from"
        yield from self._change(travel.origin.thread_id, f"{verb} {travel.origin.checkpoint_id}")

    def travel_failed(self, session: Session, travel: Travel, error: BaseException) -> None:
        """Record that the write has ended."""
        self._commits.end_storing(travel.origin.thread_id)

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Commit a copy or a fork, with its cells."""
        verb = "copied" if copy.graph is None else "forked"
        yield from self._change(copy.target, f"{verb} from {copy.source}")

    def _commit(self, thread_id: str, left: Left | None = None) -> StorePlan[Any, Any, None]:
        yield Work(lambda _: self._commits.commit(thread_id, left))

    def _change(self, thread_id: str, what: str) -> StorePlan[Any, Any, None]:
        yield Work(lambda _: self._commits.commit_change(thread_id, what))
