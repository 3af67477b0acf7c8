"""The errors of Keel, grouped by the reaction of a handler.

    KeelError
    ├── InvalidInput (ValueError)          fix the call: nothing was read or written
    │   ├── InvalidConfig                  the config has no usable thread_id, namespace or checkpoint_id
    │   └── ThreadExists                   the target of a copy already holds checkpoints
    ├── NotFound (LookupError)             the thread or checkpoint does not exist
    ├── CheckpointConflict (RuntimeError)  another run stored a newer checkpoint: read the head and run again
    ├── ToolOutcomeUnknown (RuntimeError)  a tool call was interrupted: settle it
    ├── ToolNotReplayed (RuntimeError)     a replay reached a tool call that it may not make: the tool did not run
    ├── AlreadyDecided (RuntimeError)      a request was decided, has expired or is moot: do not repeat the decision
    ├── NotAllowed (PermissionError)       this reviewer may not decide this request, or not in this way
    ├── OnHold (RuntimeError)              a person's data is on hold: it was not removed
    ├── ThreadTaken (RuntimeError)         another run holds the thread: try again later
    ├── WorkspaceTaken (RuntimeError)      another run uses the directory: wait, or use another directory
    ├── LockTaken (RuntimeError)           another holder has a lock of a store: wait longer, or give up
    ├── LockLost (RuntimeError)            another holder has acquired the lock since: acquire it and read again
    ├── ThreadUnfinished (RuntimeError)    the thread has steps left, which new input would drop: handle these first
    ├── SaverDraining (RuntimeError)       the process is about to end: use another process
    ├── SummaryFailed (RuntimeError)       the model returned no summary: nothing was removed
    ├── DriftDetected (RuntimeError)       the thread was written with another model or program: accept it, or not
    ├── NewerState (RuntimeError)          a newer version of the application stored this: run that version
    ├── UpgradeFailed (RuntimeError)       no upgrade converts a state of an older version: fix the upgrade
    ├── ValueRefused (TypeError)           a value cannot be converted to or from bytes
    │   ├── UnstorableValue                ... to bytes: nothing was written
    │   └── RefusedType                    ... from bytes: its type is unknown or not allowed here
    └── StoreError                         the store failed; existing data is kept
        ├── NotAKeelStore (ValueError)     the file, database or keys belong to something else
        ├── NotSetUp                       tables are missing or of an older format, and this user may not create them
        ├── StoreUnavailable (ConnectionError) the server cannot be reached, or the connection broke during a call
        ├── AccessDenied (PermissionError) the server refuses this user
        ├── UnsafeStore                    the server is configured to evict data
        ├── NewerFormat                    written by a newer Keel: upgrade Keel
        ├── CorruptStore                   stored bytes are damaged
        │   ├── SealBroken                 ... although they were sealed: changed, moved or replaced without a key
        │   └── BlobLost                   ... in an object outside the store, which is missing or was changed
        ├── BlobsMissing                   values are stored as objects, and this saver has no `blobs=`
        ├── KeyMissing                     the store is encrypted, and this saver does not have the key
        ├── StoreBusy (TimeoutError)       another client held a lock for too long: try again
        ├── StoreFull (OSError)            no space left
        ├── ReadOnlyStore (PermissionError) the store can be read, not written
        └── StoreClosed                    the saver was closed

Warnings are `DurabilityWarning` (the server's configuration can lose completed writes), `DriftWarning` (a thread
continues with another model or program), `SummaryWarning` (a summary failed, so a conversation was not shortened) and
`TypeWarning` (a stored class is not available to other programs).

Each class has a stable `code` for logs and for handlers in other languages. Codes are never reused.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

DECISIONS = "done", "retry", "skip"
"""The possible settlements of a tool call. Messages name all three, because only a person knows which one is true."""


class KeelError(Exception):
    """Base class of all errors of Keel."""

    code = "keel"


class InvalidInput(KeelError, ValueError):
    """An argument is invalid; nothing was read or written."""

    code = "invalid_input"


class InvalidConfig(InvalidInput):
    """A config names no usable thread, namespace or checkpoint."""

    code = "invalid_config"


class ThreadExists(InvalidInput):
    """The target of a copy already holds checkpoints; Keel does not merge histories."""

    code = "thread_exists"


class NotFound(KeelError, LookupError):
    """The thread or checkpoint does not exist."""

    code = "not_found"


class MomentNotFound(NotFound, IndexError):
    """A thread has no moment at this position."""


class CheckpointConflict(KeelError, RuntimeError):
    """Another run has moved the head since this run read it; the write was refused.

    Attributes:
        thread_id: The thread both runs write to.
        checkpoint_ns: The namespace in it; `""` is the root graph.
        expected: Id of the checkpoint from which this run continues, or `None` if it found an empty thread.
        found: Id of the current head, or `None` if the thread was deleted.
        rejected: Id of the checkpoint that was not stored.
        stored: Id of the last checkpoint that this run stored before the conflict: the thread contains its input and
            the results of its steps up to that checkpoint. `None` if there is none, or the caller is not a graph's run.
        may_be_stored: Whether the rejected checkpoint may have been stored after all: the connection broke before the
            reply arrived, the write was sent again, and the other run may have continued from the checkpoint and then
            removed it.
    """

    code = "checkpoint_conflict"

    def __init__(
        self,
        thread_id: str,
        checkpoint_ns: str,
        expected: str | None,
        found: str | None,
        rejected: str,
        stored: str | None = None,
        may_be_stored: bool = False,
    ) -> None:
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.expected = expected
        self.found = found
        self.rejected = rejected
        self.stored = stored
        self.may_be_stored = may_be_stored
        again = f"The thread contains the input ({stored}): do not send it again" if stored else "Read it and run again"
        if may_be_stored and not stored:
            again = "Read the thread before you send the same input again"
        fate = "It was not stored."
        if may_be_stored:
            fate = "The reply to the first attempt was lost: it may have been stored, continued and removed."
        where = f"thread {thread_id!r}" + (f", namespace {checkpoint_ns!r}" if checkpoint_ns else "")
        super().__init__(
            f"{where}: checkpoint {rejected} continues {expected or 'an empty thread'}, but the head is now "
            f"{found or 'gone (the thread was deleted)'}. {fate} To make runs wait for each other, "
            f"open the saver with on_busy='wait'. {again} (`error.input_again`). "
            "To fork on purpose, pass an explicit checkpoint_id, or open the saver with on_conflict='fork'."
        )

    def input_again(self, given: Any) -> Any:
        """Return the input for another attempt after the winning run has ended.

        Args:
            given: The input of this run.

        Returns:
            `given`, if the thread contains nothing of this run. Otherwise `None`, which runs any remaining steps: the
            other run has continued from this input, so its model has read it.

        Raises:
            CheckpointConflict: If only the thread itself shows whether it contains the input (`may_be_stored`).
        """
        if self.may_be_stored and self.stored is None:
            raise self
        return given if self.stored is None else None

    def __reduce__(self) -> tuple[type[CheckpointConflict], tuple[str | bool | None, ...]]:
        # The default would call the class with the message only; process pools pickle errors.
        return type(self), (
            self.thread_id,
            self.checkpoint_ns,
            self.expected,
            self.found,
            self.rejected,
            self.stored,
            self.may_be_stored,
        )


def short_key(key: str) -> str:
    """Return the short form of a tool call's key, which is unique among equal calls."""
    stem, mark, own = key.partition(".")
    return f"{stem[:6]}{mark}{own[:5]}" if mark else key[:12]


class ToolOutcomeUnknown(KeelError, RuntimeError):
    """The outcome of a tool call is unknown: its process died, or it was cancelled.

    The call was not repeated. Find out whether it happened, and record it: `ToolCache.settle(error.thread_id,
    error.key, ...)`.

    Attributes:
        tool: The tool's name.
        thread_id: The thread of the call; `None` if threads share it (`ToolPolicy(scope="shared")` or a function).
        key: The call's key in the ledger.
        started_at: Start of the call, ISO time.
        reason: The known facts.
        tool_call_id: The model's id of the call that was started.
    """

    code = "tool_outcome_unknown"

    def __init__(
        self, tool: str, thread_id: str | None, key: str, started_at: str, reason: str, tool_call_id: str = ""
    ) -> None:
        self.tool = tool
        self.thread_id = thread_id
        self.key = key
        self.started_at = started_at
        self.reason = reason
        self.tool_call_id = tool_call_id
        whose, where = "shared by threads", "--shared"
        if thread_id is not None:
            whose, where = f"in thread {thread_id!r}", f"--thread {shlex.quote(thread_id)}"
        call, name = f"call {tool_call_id!r}" if tool_call_id else "a call", short_key(key)
        done, retry, skip = (f"`keel settle {name} {decision} {where}`" for decision in DECISIONS)
        super().__init__(
            f"tool {tool!r} {whose}: {call} started at {started_at} {reason}, and was not repeated. Find out whether "
            f"it happened, settle it, and resume: {done} if it happened, {retry} if it did not and may run again, "
            f"{skip} if it must not run again; or cache.settle({thread_id!r}, {name!r}, '{'|'.join(DECISIONS)}') with "
            f"one of them. For a tool that may always be repeated: ToolPolicy(unknown='retry')."
        )

    def __reduce__(self) -> tuple[type[ToolOutcomeUnknown], tuple[str | None, ...]]:
        return type(self), (self.tool, self.thread_id, self.key, self.started_at, self.reason, self.tool_call_id)


class ToolNotReplayed(KeelError, RuntimeError):
    """A replay reached a tool call without a recorded result; the tool did not run.

    Attributes:
        tool: The tool's name.
        thread_id: The thread that is replayed.
        reason: Why there is no result.
        is_new: Whether the thread has made other calls of this tool, but never this one.
        called: The arguments.
    """

    code = "tool_not_replayed"

    def __init__(self, tool: str, thread_id: str, reason: str, *, is_new: bool = False, called: Any = None) -> None:
        self.tool = tool
        self.thread_id = thread_id
        self.reason = reason
        self.is_new = is_new
        self.called = called
        super().__init__(f"tool {tool!r} did not run in the replay of thread {thread_id!r}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message only; process pools pickle errors. Arguments may not pickle.
        return partial(type(self), is_new=self.is_new), (self.tool, self.thread_id, self.reason)


class AlreadyDecided(KeelError, RuntimeError):
    """A request is already closed; the message states if the decision was recorded.

    Attributes:
        request_id: The request.
        status: Its status: `approved`, `rejected`, `edited`, `answered`, `expired`, `superseded` or `consumed`.
        by: The reviewer who decided it; empty if it was not decided.
    """

    code = "already_decided"

    def __init__(self, request_id: str, status: str, by: str = "", message: str = "") -> None:
        self.request_id = request_id
        self.status = status
        self.by = by
        super().__init__(message or f"approval {request_id} is {status} already. Your decision was not recorded.")

    def __reduce__(self) -> tuple[type[AlreadyDecided], tuple[str, str, str, str]]:
        return type(self), (self.request_id, self.status, self.by, str(self))


class NotAllowed(KeelError, PermissionError):
    """The request does not allow this reviewer or decision; nothing was recorded."""

    code = "not_allowed"


class OnHold(KeelError, RuntimeError):
    """A person's data is on hold (`retention.hold`) and was not removed."""

    code = "on_hold"


class ThreadTaken(KeelError, RuntimeError):
    """Another run holds this thread; this run was refused before any of its nodes ran.

    The other run resumes the thread, or, with `on_busy="wait"`, this run has waited for its turn until the timeout.

    Attributes:
        thread_id: The thread.
        holder: The process of the run that holds the thread or is first in line: host, machine, process id and start.
        since: Arrival of that run, ISO time.
        waited: Seconds that this run has waited.
    """

    code = "thread_taken"

    def __init__(self, thread_id: str, holder: str, since: str, waited: float = 0.0) -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.since = since
        self.waited = waited
        host, _, process = holder.partition("/")
        how_long = f" Gave up after {waited:g} s (busy_timeout)." if waited else ""
        super().__init__(
            f"thread {thread_id!r} is busy: process {process.split('/')[1] if '/' in process else '?'} on {host} has "
            f"been running it since {since}.{how_long} Nothing of this run was executed. Read the thread again later "
            "(a half-read stream holds its thread until it is closed)"
        )

    def __reduce__(self) -> tuple[type[ThreadTaken], tuple[str, str, str, float]]:
        return type(self), (self.thread_id, self.holder, self.since, self.waited)


class WorkspaceTaken(KeelError, RuntimeError):
    """Another run or a restore uses the directory of a workspace; nothing was done.

    Attributes:
        directory: The directory.
    """

    code = "workspace_taken"

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory}: another run or a restore uses this directory. Nothing was done: try again when it has ended "
            "(a half-read stream ends when it is closed), or give each thread its own directory"
        )

    def __reduce__(self) -> tuple[type[WorkspaceTaken], tuple[str]]:
        return type(self), (self.directory,)


class LockTaken(KeelError, RuntimeError):
    """Another holder has a lock of a store, and did not release it within the timeout.

    Attributes:
        name: The name of the lock.
        holder: The process that holds it: host, machine, process id and start.
        since: Acquisition of the lock, ISO time.
    """

    code = "lock_taken"

    def __init__(self, name: str, holder: str, since: str) -> None:
        self.name, self.holder, self.since = name, holder, since
        host, _, pid, _ = f"{holder}///".split("/", 3)
        super().__init__(
            f"lock {name!r:.200}: process {pid} on {host} has held it since {since}. Nothing was done: try again "
            "later, or wait longer (timeout=)"
        )

    def __reduce__(self) -> tuple[type[LockTaken], tuple[str, str, str]]:
        return type(self), (self.name, self.holder, self.since)


class LockLost(KeelError, RuntimeError):
    """A write was refused, because another holder has acquired the lock since.

    Attributes:
        name: The name of the lock.
        fence: The fencing token of the lost lock.
        found: The present fencing token of the lock, or a lower bound of it.
    """

    code = "lock_lost"

    def __init__(self, name: str, fence: int, found: int) -> None:
        self.name, self.fence, self.found = name, fence, found
        super().__init__(
            f"lock {name!r:.200} was held with fence {fence}, and another holder has acquired it since with fence "
            f"{found} or a later one. The write was refused: acquire the lock again, and read the current value"
        )

    def __reduce__(self) -> tuple[type[LockLost], tuple[str, int, int]]:
        return type(self), (self.name, self.fence, self.found)


class ThreadUnfinished(KeelError, RuntimeError):
    """New input was refused, because the thread has steps left; nothing ran.

    Raised by runs with `on_unfinished="refuse"`, and by `accept`.

    Attributes:
        thread_id: The thread.
        next: The nodes that would run next.
        asks: Whether one of them waits for a person.
    """

    code = "thread_unfinished"

    def __init__(self, thread_id: str, next: Sequence[str] = (), asks: bool = False) -> None:
        self.thread_id, self.next, self.asks = thread_id, tuple(next), asks
        where = f" before {', '.join(self.next)}" if self.next else ""
        super().__init__(
            f"thread {thread_id!r} has {'a question and ' * asks}steps left{where}, and new input would replace them: "
            f"it was refused, and nothing ran. saver.status({thread_id!r}) reports the next safe step "
            f"(`keel status {shlex.quote(thread_id)}`)"
        )

    def __reduce__(self) -> tuple[type[ThreadUnfinished], tuple[str, tuple[str, ...], bool]]:
        return type(self), (self.thread_id, self.next, self.asks)


class SaverDraining(KeelError, RuntimeError):
    """A run was refused, because its saver is draining: the process is about to end.

    Attributes:
        thread_id: The thread.
        reason: Why the saver drains: the name of a signal, or `"drain"`.
    """

    code = "saver_draining"

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id = thread_id
        self.reason = reason
        super().__init__(
            f"thread {thread_id!r}: this saver is draining ({reason}) and starts no runs. Nothing of this run was "
            "stored, and no node has run: run it in another process"
        )

    def __reduce__(self) -> tuple[type[SaverDraining], tuple[str, str]]:
        return type(self), (self.thread_id, self.reason)


class SummaryFailed(KeelError, RuntimeError):
    """The model returned no summary of a conversation; nothing was removed."""

    code = "summary_failed"


class DriftDetected(KeelError, RuntimeError):
    """A thread would continue with another model, tool or program.

    The step was not stored; the writes of its tasks are kept. To accept the change, open the saver with
    `on_drift="warn"` or `"ignore"`, and resume; if the input was refused, send it again. A change that was accepted
    once is not reported again.

    Attributes:
        report: The changes, a `DriftReport`.
    """

    code = "drift"

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(
            f"{report}\nTo accept it, open the saver with on_drift='warn' or 'ignore', and invoke(None, config), "
            "or send the input again if get_state(config).next is empty."
        )

    def __reduce__(self) -> tuple[type[DriftDetected], tuple[Any]]:
        return type(self), (self.report,)


class NewerState(KeelError, RuntimeError):
    """A newer version of the application stored this state; it was not read.

    A process of the newer version can continue the thread, and `saver.raw` shows the stored values.

    Attributes:
        where: The thread and the checkpoint.
        stored: The version of the stored state.
        known: The newest version that this saver has upgrades for; 1 if it has none.
    """

    code = "newer_state"

    def __init__(self, where: str, stored: int, known: int) -> None:
        self.where = where
        self.stored = stored
        self.known = known
        super().__init__(
            f"{where}: its state has version {stored}, and this program knows versions up to {known} (upgrades=[...]). "
            "Run the newer version of the application; saver.raw and `keel show` show the stored values"
        )

    def __reduce__(self) -> tuple[type[NewerState], tuple[str, int, int]]:
        return type(self), (self.where, self.stored, self.known)


class UpgradeFailed(KeelError, RuntimeError):
    """A state of an older version could not be converted; nothing was changed.

    Attributes:
        where: The thread and the checkpoint.
        start: The version of the stored state.
        end: The version to convert to.
        reason: The cause, and the remedy.
    """

    code = "upgrade_failed"

    def __init__(self, where: str, start: int, end: int, reason: str) -> None:
        self.where = where
        self.start = start
        self.end = end
        self.reason = reason
        super().__init__(f"{where}: it cannot be upgraded from version {start} to {end}: {reason}")

    def __reduce__(self) -> tuple[type[UpgradeFailed], tuple[str, int, int, str]]:
        return type(self), (self.where, self.start, self.end, self.reason)


class ValueRefused(KeelError, TypeError):
    """A value cannot be stored, or a stored one may not be revived.

    Attributes:
        type_name: The type as `module.QualName`.
        path: Its place in the value, such as `[3].tool_calls[0]`; empty for the value itself.
        reason: The cause, and the remedy.
        where: The thread, channel and checkpoint, if known.
    """

    code = "value_refused"

    def __init__(self, type_name: str, reason: str, path: str = "", where: str = "") -> None:
        self.type_name = type_name
        self.reason = reason
        self.path = path
        self.where = where
        super().__init__(type_name, reason, path, where)

    def __str__(self) -> str:
        """Return the place, the type and the reason, in that order."""
        place = " at ".join(part for part in (self.where, self.path) if part)
        return f"{place}: {self.type_name}: {self.reason}" if place else f"{self.type_name}: {self.reason}"

    def under(self, path: str) -> ValueRefused:
        """Return the same error for a container that holds the value at `path`."""
        return type(self)(self.type_name, self.reason, path + self.path, self.where)

    def at(self, where: str) -> ValueRefused:
        """Return the same error with the thread and channel."""
        return type(self)(self.type_name, self.reason, self.path, where)


class UnstorableValue(ValueRefused):
    """A value cannot be stored so that it can be read back equal; nothing was written."""

    code = "unstorable_value"


class RefusedType(ValueRefused):
    """The type of a stored value is not imported or not allowed here."""

    code = "refused_type"


class StoreError(KeelError):
    """The store failed; completed writes are kept."""

    code = "store"


class NotAKeelStore(StoreError, ValueError):
    """The file or database belongs to another program; Keel does not touch it."""

    code = "not_a_keel_store"


class NotSetUp(StoreError):
    """Tables are missing or of an older format: run `setup()` or `keel schema`."""

    code = "not_set_up"


class StoreUnavailable(StoreError, ConnectionError):
    """The server cannot be reached, or the connection broke during a call.

    The checkpoint of an interrupted `put` may or may not be stored; storing the same checkpoint again is safe.
    """

    code = "store_unavailable"


class AccessDenied(StoreError, PermissionError):
    """The server refuses this user: wrong password, or missing permission."""

    code = "access_denied"


class UnsafeStore(StoreError):
    """The server may evict data (Redis with an evicting `maxmemory-policy`)."""

    code = "unsafe_store"


class NewerFormat(StoreError):
    """The store was written by a newer version of Keel."""

    code = "newer_format"


class CorruptStore(StoreError):
    """Stored bytes are damaged."""

    code = "corrupt_store"


class SealBroken(CorruptStore):
    """A sealed record was changed, moved or replaced, or is stored in plain text."""

    code = "seal_broken"


class BlobLost(CorruptStore):
    """The object of a value is missing or was changed; all other values can be read."""

    code = "blob_lost"


class BlobsMissing(StoreError):
    """A value is stored as an object, and the saver was opened without `blobs=`."""

    code = "blobs_missing"


class KeyMissing(StoreError):
    """The store is encrypted and the saver lacks the key, or the key was destroyed."""

    code = "key_missing"


class StoreBusy(StoreError, TimeoutError):
    """Other clients held a lock or all connections too long; nothing was written."""

    code = "store_busy"


class StoreFull(StoreError, OSError):
    """No space is left; nothing was written.

    Free space at the place that the message names. Threads can still be deleted from a store of files, and from a
    SQLite database that has its reserve.

    Attributes:
        room: The request that frees space for a removal and returns whether it could; `None` if the store has none.
    """

    code = "store_full"
    room: Any = None


class ReadOnlyStore(StoreError, PermissionError):
    """This process can read the store but not write to it."""

    code = "read_only_store"


class StoreClosed(StoreError):
    """The saver was closed before this call."""

    code = "store_closed"


def refuse_closed(where: object) -> StoreClosed:
    """Return the error of a call on a closed saver."""
    return StoreClosed(
        f"{where}: this saver was closed: make another one, or close this one after its last use (a graph that was "
        "compiled with it also needs it open)"
    )


class DurabilityWarning(UserWarning):
    """The server can lose completed writes (Redis without an append-only file)."""


class DriftWarning(UserWarning):
    """A thread continues with another model, tool or program than before.

    Attributes:
        report: The changes, a `DriftReport`.
    """

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(str(report))

    def __reduce__(self) -> tuple[type[DriftWarning], tuple[Any]]:
        return type(self), (self.report,)


class SummaryWarning(UserWarning):
    """A conversation was not summarized; `__cause__` is the model's error."""


class TypeWarning(UserWarning):
    """A stored class of a script or notebook cannot be read by other programs."""
