"""Retries runs that were refused because another run was faster, in order."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from langgraph_keel.engine.config import address_of
from langgraph_keel.engine.engine import Engine, engine_of
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.leases import Pause, this_holder
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.errors import CheckpointConflict, InvalidInput, ThreadTaken, ThreadUnfinished
from langgraph_keel.runs.claims import LATE
from langgraph_keel.runs.hook import RunClaims
from langgraph_keel.runs.turns import Place, Ticket

_SOON = 0.02
"""Initial polling interval of the next run in line, in seconds; at most `LATE`."""


def invoke_with_retry(
    engine: Engine,
    graph: Any,
    given: Any,
    config: Mapping[str, Any],
    attempts: int,
    timeout: float,
    options: Mapping[str, Any],
) -> Plan[Any]:
    """Invoke a graph with retries; see `saver.runs.invoke_with_retry`."""
    claims = _check(engine, graph, attempts, timeout)
    thread_id = address_of(config).thread_id
    try:
        return (yield _invoke(graph, given, config, options))
    except CheckpointConflict as error:
        if error.thread_id != thread_id:
            raise
        conflict = error
    session = engine.session
    since = datetime.now(UTC).isoformat(timespec="milliseconds")
    ticket = Ticket(secrets.token_hex(16), this_holder(), since)
    place = Place(session, thread_id, ticket, claims.lease / 1000, claims.timer)
    try:
        for _ in range(attempts - 1):
            yield from _wait_for_turn(claims, place, graph, config, timeout, conflict)
            given = conflict.input_again(given)
            try:
                return (yield _invoke(graph, given, config, options))
            except CheckpointConflict as error:
                conflict = error
            except (ThreadTaken, ThreadUnfinished):
                pass  # nothing of this attempt ran
        raise conflict
    finally:
        if place.is_to_leave:
            # In the keeper's thread: the run may be cancelled, and must not block its loop.
            claims.keeper.defer(lambda: run(place.leave(), session.driver))


def _invoke(graph: Any, given: Any, config: Mapping[str, Any], options: Mapping[str, Any]) -> Call:
    return Call(partial(graph.invoke, given, config, **options), partial(graph.ainvoke, given, config, **options))


def _wait_for_turn(
    claims: RunClaims,
    place: Place,
    graph: Any,
    config: Mapping[str, Any],
    timeout: float,
    conflict: CheckpointConflict,
) -> Plan[None]:
    """Wait until the thread has no steps left, and no earlier run waits."""
    until = claims.timer() + timeout
    while True:
        yield from place.stay()  # also while it runs: runs that lose to it wait behind it
        ahead = yield from place.look()
        state = None if ahead else (yield Call(partial(graph.get_state, config), partial(graph.aget_state, config)))
        if state is not None and not state.next:
            return
        if state is not None and state.interrupts:
            conflict.add_note("It was not run again: the thread waits for a person; new input would drop the question")
            raise conflict
        if claims.timer() >= until:
            conflict.add_note(f"It was not run again: after {timeout:g} s the thread had not finished")
            raise conflict
        yield Pause(min(_SOON * (1 + len(ahead)), LATE))


def _check(engine: Engine, graph: Any, attempts: int, timeout: float) -> RunClaims:
    """Check the arguments; return the hook whose lease and keeper the line uses."""
    theirs, claims = engine_of(getattr(graph, "checkpointer", None)), engine.session.hooks.find(RunClaims)
    if theirs is None or claims is None or not theirs.is_same_store(engine):
        raise InvalidInput(f"{graph!r:.80} is not a graph compiled with this saver")
    if type(attempts) is not int or attempts < 1:
        raise InvalidInput(f"attempts must be an integer of 1 or more, not {attempts!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < 1e9:
        raise InvalidInput(f"timeout must be a number of seconds, not {timeout!r}")
    return claims
