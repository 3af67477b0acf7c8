"""Everything Keel raises, in one tree, grouped by what a handler would do about it.

    KeelError
    ├── InvalidInput (ValueError)          fix the call: nothing was read or written
    │   ├── InvalidConfig                  the config has no usable thread_id, namespace or checkpoint_id
    │   └── ThreadExists                   the target of a copy already holds checkpoints
    ├── NotFound (LookupError)             there is no such thread or checkpoint
    ├── CheckpointConflict (RuntimeError)  another run moved the thread on: read the head and run again
    ├── ToolOutcomeUnknown (RuntimeError)  a tool was cut off: say what became of it, or that it may run again
    ├── ToolNotReplayed (RuntimeError)     a replay has come to a tool call that it may not make: the tool did not run
    ├── AlreadyDecided (RuntimeError)      a request was decided, has expired or is moot: look at it, do not repeat
    ├── NotAllowed (PermissionError)       this reviewer may not decide this request, or not in this way
    ├── OnHold (RuntimeError)              a person's data must stay: it was not removed
    ├── ThreadTaken (RuntimeError)         another run has the thread: let it, or try again
    ├── WorkspaceTaken (RuntimeError)      another run has the directory: let it, or use another directory
    ├── LockTaken (RuntimeError)           another holder has a lock of a store: wait longer, or do something else
    ├── LockLost (RuntimeError)            another holder has taken the lock since: take it again, and read again
    ├── ThreadUnfinished (RuntimeError)    the thread has steps left, which new input would drop: see to these first
    ├── SaverDraining (RuntimeError)       the process is about to end: run this elsewhere, or later
    ├── SummaryFailed (RuntimeError)       a model that was to summarize has said nothing: nothing was removed
    ├── DriftDetected (RuntimeError)       the thread was written with another model or program: accept that, or not
    ├── NewerState (RuntimeError)          a newer version of the application has stored this: let that go on with it
    ├── UpgradeFailed (RuntimeError)       an older one has, and no upgrade carries it over: mend the upgrade
    ├── ValueRefused (TypeError)           a value cannot cross the border between objects and bytes
    │   ├── UnstorableValue                ... on its way in: nothing was written
    │   └── RefusedType                    ... on its way out: its type is unknown or not allowed here
    └── StoreError                         the store itself; the data that was there stays
        ├── NotAKeelStore (ValueError)     the file, database or keys belong to something else
        ├── NotSetUp                       tables are missing, or of an older format, and this user may not see to it
        ├── StoreUnavailable (ConnectionError) the server cannot be reached, or went away in the middle of a call
        ├── AccessDenied (PermissionError) the server refuses this user
        ├── UnsafeStore                    the server is set up to throw data away
        ├── NewerFormat                    written by a newer Keel: upgrade
        ├── CorruptStore                   stored bytes do not add up
        │   ├── SealBroken                 ... though they were sealed: somebody has changed, moved or replaced them
        │   └── BlobLost                   ... that an object outside of the store held, which is gone or was changed
        ├── BlobsMissing                   values are kept in objects, and this saver was not told where (`blobs=`)
        ├── KeyMissing                     the store is encrypted, and this saver has not the key
        ├── StoreBusy (TimeoutError)       locked by somebody else for too long: try again
        ├── StoreFull (OSError)            no space left
        ├── ReadOnlyStore (PermissionError) the store may be read, not written
        └── StoreClosed                    the saver was closed

`DurabilityWarning`, `DriftWarning`, `SummaryWarning` and `TypeWarning` are warnings, not errors: acknowledged puts can
be lost the way the server is set up; what `DriftDetected` says, where the saver was not told to raise it; a
conversation stays as long as it was, because its summary failed; a class is stored that other programs do not have.

Each class carries a stable `code` for logs and handlers in other languages; codes are never reused.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

DECISIONS = "done", "retry", "skip"
"""What may have become of a tool call. Advice names a command for each: only a person knows which one is true."""


class KeelError(Exception):
    """Base of every error that Keel raises on purpose."""

    code = "keel"


class InvalidInput(KeelError, ValueError):
    """The call cannot be meant as it is written; nothing was read or written."""

    code = "invalid_input"


class InvalidConfig(InvalidInput):
    """A config names no usable thread, namespace or checkpoint."""

    code = "invalid_config"


class ThreadExists(InvalidInput):
    """The target of a copy already holds checkpoints; Keel does not merge histories."""

    code = "thread_exists"


class NotFound(KeelError, LookupError):
    """There is no such thread or checkpoint."""

    code = "not_found"


class MomentNotFound(NotFound, IndexError):
    """A thread has no moment at this position."""


class CheckpointConflict(KeelError, RuntimeError):
    """Another run moved the thread on since this run read it, so this put was refused.

    Attributes:
        thread_id: The thread both runs write to.
        checkpoint_ns: The namespace in it; `""` is the root graph.
        expected: Id of the checkpoint this run continues, or `None` if the thread was empty for it.
        found: Id of the checkpoint that is the head now, or `None` if the thread is gone.
        rejected: Id of the checkpoint that was not stored.
        stored: Id of the last checkpoint that the run has stored before: its input is in the thread, with what its
            steps up to there have led to. `None` if it has stored none, or is no run of a graph.
        may_be_stored: Whether the rejected checkpoint may have been stored after all: the connection broke before the
            reply to the put came, the put was sent again, and the other run may have continued and then removed
            the checkpoint in between.
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
        again = f"The input is in the thread ({stored}): do not give it again" if stored else "Read it and run again"
        if may_be_stored and not stored:
            again = "Read the thread before you give it the same input again"
        fate = "It was not stored."
        if may_be_stored:
            fate = "The reply to its first attempt was lost: it may have been stored, continued, and removed since."
        where = f"thread {thread_id!r}" + (f", namespace {checkpoint_ns!r}" if checkpoint_ns else "")
        super().__init__(
            f"{where}: checkpoint {rejected} continues {expected or 'an empty thread'}, but the head is now "
            f"{found or 'gone (the thread was deleted)'}. {fate} To have runs wait for each other, "
            f"open the saver with on_busy='wait'. {again} (`error.input_again`). "
            "To fork on purpose, pass an explicit checkpoint_id, or open the saver with on_conflict='fork'."
        )

    def input_again(self, given: Any) -> Any:
        """Return what to run the graph with when the run that was quicker has ended: never the same input twice.

        Args:
            given: What this run was given.

        Returns:
            `given`, if nothing of this run is in the thread. Else `None`, with which a run does what is left to do,
            and returns the state: the other run has gone on from this input, and its model has read it.

        Raises:
            CheckpointConflict: This error, if only the thread itself can tell whether the input is in it
                (`may_be_stored`).
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
    """Return how the key of a tool call is shown: enough of it to name the call, also among those that are equal."""
    stem, mark, own = key.partition(".")
    return f"{stem[:6]}{mark}{own[:5]}" if mark else key[:12]


class ToolOutcomeUnknown(KeelError, RuntimeError):
    """A call of a tool was begun, and nobody knows how it ended: its process died, or it was cancelled.

    It was not made again. Find out what became of it, and say so: `ToolCache.settle(error.thread_id, error.key, ...)`.

    Attributes:
        tool: The tool's name.
        thread_id: The thread whose call it is; `None` if threads share it (`ToolPolicy(scope="shared")` or a function).
        key: The call's key in the ledger.
        started_at: When it began, ISO time.
        reason: What is known.
        tool_call_id: The model's name for the call that was begun.
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
            f"tool {tool!r} {whose}: {call} begun at {started_at} {reason}, and it was not made again. Find out what "
            f"became of it, say so, and resume: {done} if it happened, {retry} if it did not and may run again, {skip} "
            f"if it shall not be repeated; or cache.settle({thread_id!r}, {name!r}, '{'|'.join(DECISIONS)}') with one "
            f"of them. A tool that may simply run again: ToolPolicy(unknown='retry')."
        )

    def __reduce__(self) -> tuple[type[ToolOutcomeUnknown], tuple[str | None, ...]]:
        return type(self), (self.tool, self.thread_id, self.key, self.started_at, self.reason, self.tool_call_id)


class ToolNotReplayed(KeelError, RuntimeError):
    """A replay has come to a tool call that the ledger has no answer to; the tool did not run.

    Attributes:
        tool: The tool's name.
        thread_id: The thread that is replayed.
        reason: Why there is no answer.
        is_new: Whether the thread has never made this call, though others of this tool.
        called: Its arguments.
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
    """A request for approval cannot be decided any more; the message says if the new decision was recorded.

    Attributes:
        request_id: The request.
        status: What it is: `approved`, `rejected`, `edited`, `answered`, `expired`, `superseded` or `consumed`.
        by: Who has decided it; empty if nobody has.
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
    """Somebody else has to decide this request, or it allows no such decision; nothing was decided."""

    code = "not_allowed"


class OnHold(KeelError, RuntimeError):
    """The data of a person must stay (`retention.hold`): it was not removed. The message names the reason."""

    code = "on_hold"


class ThreadTaken(KeelError, RuntimeError):
    """Another run has this thread; this one was refused before any node of it ran.

    The other one goes on from where the thread waits; or, with `on_busy="wait"`, this one has waited for its turn in
    vain.

    Attributes:
        thread_id: The thread.
        holder: Whose run it is, or who is first of those that wait: host, machine, process, and when that began.
        since: When that run came, ISO time.
        waited: The seconds that this run has waited.
    """

    code = "thread_taken"

    def __init__(self, thread_id: str, holder: str, since: str, waited: float = 0.0) -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.since = since
        self.waited = waited
        host, _, process = holder.partition("/")
        how_long = f"; this one has waited {waited:g} s (busy_timeout)" if waited else ""
        super().__init__(
            f"thread {thread_id!r}: a run of process {process.split('/')[1] if '/' in process else '?'} on {host} "
            f"goes on from here since {since}{how_long}. This run was refused before anything of it ran: look at the "
            "thread when that one has ended (a stream that was left half read ends when it is closed)"
        )

    def __reduce__(self) -> tuple[type[ThreadTaken], tuple[str, str, str, float]]:
        return type(self), (self.thread_id, self.holder, self.since, self.waited)


class WorkspaceTaken(KeelError, RuntimeError):
    """Another run, or a restore, has the directory of a workspace; nothing of this one was done.

    Attributes:
        directory: The directory.
    """

    code = "workspace_taken"

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory}: another run, or a restore, has this directory. Nothing was done: try again when that ends "
            "(a stream that was left half read ends when it is closed), or give each thread a directory of its own"
        )

    def __reduce__(self) -> tuple[type[WorkspaceTaken], tuple[str]]:
        return type(self), (self.directory,)


class LockTaken(KeelError, RuntimeError):
    """Another holder has a lock of a store; this one has waited in vain.

    Attributes:
        name: The name of the lock.
        holder: The process that has it: host, machine, process, and when that began.
        since: When it took the lock, ISO time.
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
    """A write under a lock was refused, as another holder has taken the lock since; nothing was written.

    Attributes:
        name: The name of the lock.
        fence: The fencing token with which the lock was held.
        found: The lowest fence that the lock can have now.
    """

    code = "lock_lost"

    def __init__(self, name: str, fence: int, found: int) -> None:
        self.name, self.fence, self.found = name, fence, found
        super().__init__(
            f"lock {name!r:.200}: it was held with fence {fence}, and another holder has taken it since with fence "
            f"{found} or a later one. The write was refused: take the lock again, and read what is there now"
        )

    def __reduce__(self) -> tuple[type[LockLost], tuple[str, int, int]]:
        return type(self), (self.name, self.fence, self.found)


class ThreadUnfinished(KeelError, RuntimeError):
    """New input for a thread that has steps left was refused (`on_unfinished="refuse"`, `accept`); nothing of it ran.

    Attributes:
        thread_id: The thread.
        next: The nodes that run next there.
        asks: Whether one of them has asked a person.
    """

    code = "thread_unfinished"

    def __init__(self, thread_id: str, next: Sequence[str] = (), asks: bool = False) -> None:
        self.thread_id, self.next, self.asks = thread_id, tuple(next), asks
        where = f" before {', '.join(self.next)}" if self.next else ""
        super().__init__(
            f"thread {thread_id!r} has {'a question and ' * asks}steps left{where}, and new input would take their "
            f"place: it was refused before anything of it ran. saver.status({thread_id!r}) says what may be done "
            f"(`keel status {shlex.quote(thread_id)}`)"
        )

    def __reduce__(self) -> tuple[type[ThreadUnfinished], tuple[str, tuple[str, ...], bool]]:
        return type(self), (self.thread_id, self.next, self.asks)


class SaverDraining(KeelError, RuntimeError):
    """A run was refused before anything of it ran, as its saver is draining: its process is about to end.

    Attributes:
        thread_id: The thread.
        reason: Why the saver drains: the name of a signal, or `"drain"`.
    """

    code = "saver_draining"

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id = thread_id
        self.reason = reason
        super().__init__(
            f"thread {thread_id!r}: this saver is draining ({reason}), and begins no run. Nothing of this run was "
            "stored, and no node has run: run it in another process"
        )

    def __reduce__(self) -> tuple[type[SaverDraining], tuple[str, str]]:
        return type(self), (self.thread_id, self.reason)


class SummaryFailed(KeelError, RuntimeError):
    """The model that was to summarize a conversation answered with nothing; nothing was removed."""

    code = "summary_failed"


class DriftDetected(KeelError, RuntimeError):
    """A thread would go on with another model, tool or program than it was written with; the step was not stored.

    What its tasks have written is kept. To go on, open the saver with `on_drift="warn"` or `"ignore"`, and resume, or
    where the input was refused, give it again. What was accepted once is no drift any more.

    Attributes:
        report: What has changed, a `DriftReport`.
    """

    code = "drift"

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(
            f"{report}\nTo accept it, open the saver with on_drift='warn' or 'ignore', and invoke(None, config), "
            "or with the input again where get_state(config).next is empty."
        )

    def __reduce__(self) -> tuple[type[DriftDetected], tuple[Any]]:
        return type(self), (self.report,)


class NewerState(KeelError, RuntimeError):
    """A newer version of the application has stored this state, and this version cannot know what it means.

    Nothing was read of it. A process of the newer version goes on with the thread; `saver.raw` shows what is stored.

    Attributes:
        where: The thread and the checkpoint.
        stored: The version of what is stored.
        known: The version up to which this saver has upgrades; 1 if it has none.
    """

    code = "newer_state"

    def __init__(self, where: str, stored: int, known: int) -> None:
        self.where = where
        self.stored = stored
        self.known = known
        super().__init__(
            f"{where}: its state has version {stored}, and this program knows versions up to {known} (upgrades=[...]): "
            "a newer version of the application has it now. Run that one; saver.raw and `keel show` look at it"
        )

    def __reduce__(self) -> tuple[type[NewerState], tuple[str, int, int]]:
        return type(self), (self.where, self.stored, self.known)


class UpgradeFailed(KeelError, RuntimeError):
    """What an older version of the application has stored cannot be carried over to this one; nothing was changed.

    Attributes:
        where: The thread and the checkpoint.
        start: The version that it was to be carried over from.
        end: The version that it was to be carried over to.
        reason: Why it was not, and what to do.
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
        path: Where in the value it was found, such as `[3].tool_calls[0]`; empty for the value itself.
        reason: What is wrong and what to do.
        where: The thread, channel and checkpoint, once known.
    """

    code = "value_refused"

    def __init__(self, type_name: str, reason: str, path: str = "", where: str = "") -> None:
        self.type_name = type_name
        self.reason = reason
        self.path = path
        self.where = where
        super().__init__(type_name, reason, path, where)

    def __str__(self) -> str:
        """Say where, what and why, in that order."""
        place = " at ".join(part for part in (self.where, self.path) if part)
        return f"{place}: {self.type_name}: {self.reason}" if place else f"{self.type_name}: {self.reason}"

    def under(self, path: str) -> ValueRefused:
        """Return the same error seen from a container that holds the value at `path`."""
        return type(self)(self.type_name, self.reason, path + self.path, self.where)

    def at(self, where: str) -> ValueRefused:
        """Return the same error with the thread and channel named."""
        return type(self)(self.type_name, self.reason, self.path, where)


class UnstorableValue(ValueRefused):
    """A value cannot be stored so that it comes back equal; nothing was written."""

    code = "unstorable_value"


class RefusedType(ValueRefused):
    """A stored value names a type that this program has not imported or does not allow."""

    code = "refused_type"


class StoreError(KeelError):
    """The store failed; what was acknowledged before stays."""

    code = "store"


class NotAKeelStore(StoreError, ValueError):
    """The file or database belongs to another program; Keel does not touch it."""

    code = "not_a_keel_store"


class NotSetUp(StoreError):
    """Tables are missing, or of an older format: run `setup()`, or have somebody run `keel schema` (`--upgrade`)."""

    code = "not_set_up"


class StoreUnavailable(StoreError, ConnectionError):
    """The server cannot be reached, or the connection broke in the middle of a call.

    A put that ends so may or may not be stored; putting the same checkpoint again is safe.
    """

    code = "store_unavailable"


class AccessDenied(StoreError, PermissionError):
    """The server refuses this user: wrong password, or no right to do this."""

    code = "access_denied"


class UnsafeStore(StoreError):
    """The server is set up to throw data away (Redis with an evicting `maxmemory-policy`)."""

    code = "unsafe_store"


class NewerFormat(StoreError):
    """The store was written by a newer version of Keel."""

    code = "newer_format"


class CorruptStore(StoreError):
    """Stored bytes do not decode to what was written."""

    code = "corrupt_store"


class SealBroken(CorruptStore):
    """A sealed record was changed, cut off, moved or replaced, or stands there in plain text."""

    code = "seal_broken"


class BlobLost(CorruptStore):
    """An object outside of the store that held a value is gone, or is not what was put there; all else reads."""

    code = "blob_lost"


class BlobsMissing(StoreError):
    """A value is kept in an object outside of the store, and the saver was opened without `blobs=`."""

    code = "blobs_missing"


class KeyMissing(StoreError):
    """The store is encrypted, and the saver has no keyring, or not the key; or the key was destroyed."""

    code = "key_missing"


class StoreBusy(StoreError, TimeoutError):
    """Somebody else held the store, or all connections, for longer than the timeout; nothing was written."""

    code = "store_busy"


class StoreFull(StoreError, OSError):
    """There is no space left, and nothing was written: free some where the message says.

    Threads can still be deleted from a store of files, and from a SQLite database that has its reserve.

    Attributes:
        room: The request that makes room for a removal and returns whether it could; `None` if the store has none.
    """

    code = "store_full"
    room: Any = None


class ReadOnlyStore(StoreError, PermissionError):
    """The store can be read but not written by this process."""

    code = "read_only_store"


class StoreClosed(StoreError):
    """The saver was closed before this call."""

    code = "store_closed"


def refuse_closed(where: object) -> StoreClosed:
    """Return the error of a call on a saver that was closed, which says what to do."""
    return StoreClosed(
        f"{where}: this saver was closed: make another one, or close this one after its last use (a graph that was "
        "compiled with it needs it open, too)"
    )


class DurabilityWarning(UserWarning):
    """The server may lose acknowledged puts, by its own settings (Redis without an append-only file)."""


class DriftWarning(UserWarning):
    """A thread goes on with another model, tool or program than it was written with.

    Attributes:
        report: What has changed, a `DriftReport`.
    """

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(str(report))

    def __reduce__(self) -> tuple[type[DriftWarning], tuple[Any]]:
        return type(self), (self.report,)


class SummaryWarning(UserWarning):
    """A conversation was not summarized, and nothing was removed: see `__cause__` for what the model failed with."""


class TypeWarning(UserWarning):
    """A class of the script or notebook that runs is stored: a program that runs something else cannot read it."""
