"""What people name on the command line: threads, and checkpoints in them."""

from __future__ import annotations

import difflib
import itertools
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel.cli import checkpoints
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.timeline.moment import Moment
from langgraph_keel.timeline.timeline import Timeline

EVERY_NS = "*"
"""All namespaces of a thread."""


def config_of(thread: str, ns: str | None, checkpoint: str | None = None) -> Any:
    """Return the config that names a thread, and what else is given."""
    given = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}
    return {"configurable": {key: value for key, value in given.items() if value is not None}}


def named(saver: Any, thread: str, ns: str, wanted: str) -> CheckpointTuple:
    """Return the checkpoint with this position, label or id, or whose id starts or ends so."""
    if ns != EVERY_NS and (exact := saver.get_tuple(config_of(thread, ns, wanted))):
        return cast(CheckpointTuple, exact)
    if moment := _called(saver, thread, wanted):
        return cast(CheckpointTuple, saver.get_tuple(moment.config))
    every: list[CheckpointTuple] = list(saver.list(config_of(thread, None if ns == EVERY_NS else ns)))
    if not every:
        raise no_thread(saver, thread, ns)
    found = [item for item in every if _matches(checkpoints.id_of(item), wanted)]
    if len(found) == 1:
        return found[0]
    raise _no_checkpoint(thread, wanted) if not found else _ambiguous(wanted, found)


def _matches(checkpoint: str, wanted: str) -> bool:
    return bool(wanted) and (checkpoint.startswith(wanted) or checkpoint.endswith(wanted))


def _ambiguous(wanted: str, found: list[CheckpointTuple]) -> InvalidInput:
    ids = ", ".join(checkpoints.id_of(item) for item in found[:3])
    return InvalidInput(f"{wanted!r} fits {len(found)} checkpoints ({ids}{', …' * (len(found) > 3)}): give more of it")


def _no_checkpoint(thread: str, wanted: str) -> NotFound:
    return NotFound(f"thread {thread!r} has no checkpoint {wanted!r}: `keel history` lists its checkpoints")


def no_thread(saver: Any, thread: str, ns: str) -> NotFound:
    """Return the error for a thread, or a namespace in it, that is not there."""
    if ns and next(iter(saver.list(config_of(thread, None), limit=1)), None):
        return NotFound(f"thread {thread!r} has nothing in namespace {ns!r}: --ns '*' shows all of them")
    known = [info.thread_id for info in itertools.islice(saver.threads(), 1000)]
    close = difflib.get_close_matches(thread, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`keel threads` lists those there are"
    return NotFound(f"there is no thread {thread!r}: {hint}")


def opened(saver: Any, thread: str) -> Timeline:
    """Return the timeline of a thread.

    Raises:
        NotFound: There is no such thread.
    """
    found: Timeline = saver.timeline(thread)
    if not found:
        raise no_thread(saver, thread, "")
    return found


def moment_of(found: Timeline, at: str) -> Moment:
    """Return the moment that a word of the command line names.

    Raises:
        NotFound: There is none.
        InvalidInput: It is the end of several ids, a position that the thread has not, or a misspelt option.
    """
    if at.startswith("--"):
        raise InvalidInput(f"no such option: {at}")
    try:
        return found.moment(int(at) if _is_position(at) else at)
    except IndexError as error:
        raise InvalidInput(str(error)) from None


def _is_position(at: str) -> bool:
    return at.removeprefix("-").isdecimal() and len(at) < 8  # longer ones are ends of ids


def _called(saver: Any, thread: str, at: str) -> Moment | None:
    """Return the moment that has this position or label; `None` if it is neither."""
    is_named = _is_position(at) or at in {label.name for label in saver.labels(thread)}
    found: Timeline = saver.timeline(thread)
    return moment_of(found, at) if is_named and found else None
