"""A call of a tool in a replay: answered with what the ledger of the thread that is replayed says, or not at all.

Nothing is claimed and nothing is written. The tool runs only if whoever replays allows it by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import ValueRefused
from langgraph_keel.tools.answers import Ticket
from langgraph_keel.tools.call import Call, place_of, shelf_of
from langgraph_keel.tools.flow import Run, Steps
from langgraph_keel.tools.guard import Held, Refused
from langgraph_keel.tools.keys import key_of, own_key
from langgraph_keel.tools.ledger import DONE, CallRecord, read_ledger
from langgraph_keel.tools.results import reference_of, replayed, shortened

if TYPE_CHECKING:
    from langgraph_keel.tools.cache import ToolCache


def answer_in_replay(
    cache: ToolCache,
    held: Held,
    tool: BaseTool,
    args: Mapping[str, Any],
    call_id: str,
    config: RunnableConfig,
    ticket: Ticket,
    make: Callable[[str], Any],
) -> Steps:
    """Plan one call in a replay. Two trips, and one more a page of the ledger for the first call.

    Raises:
        ToolNotReplayed: The ledger has no answer to it.
    """
    secret = yield from _secret(cache)
    if secret is None and tool.name not in held.allowed:
        raise held.refuse(tool.name, _NEVER)
    then = _as_then(config, held)
    call = cache._call(tool, args, call_id, then, ticket, secret or b"", make)
    if tool.name in held.allowed:
        return (yield Run(partial(make, call.record.lineage)))
    session = cache._session_of(config)
    before = partial(_keys_before, cache, call, args, secret or b"", then)
    key, record, body = yield from _found(cache, held, call, session, args, before)
    held.note_version(tool.name, record.version, call.record.version)
    try:
        (result,) = session.codec.decode(body)
    except ValueRefused as error:
        raise held.refuse(tool.name, f"its stored result cannot be read here: {error}") from error
    result = replayed(result, record, call_id)
    limit = call.policy.offload_bytes
    return result if limit is None else shortened(result, reference_of(call.shelf, key, body), limit)


_ONCE = "a person had a part in this call, and the ledger keeps the last one of those only"
_NEVER = "the ledger knows no call of it in this thread"
_CHANGED = "the thread has called it with the same arguments, but its schema has changed and adds others by default"


def _secret(cache: ToolCache) -> Plan[Any, Any, bytes | None]:
    """Return the key of the hash; `None` if there is none yet, and so no call either."""
    if cache._secret is not None:
        return cache._secret
    cells = yield from cache.saver.engine.session.store.read_cells(_SECRETS, [_TOOLS])
    found: bytes | None = cache.saver.engine.session.codec.decode(cells[_TOOLS].header)[0] if cells else None
    return found


_SECRETS, _TOOLS = Shelf(None, "secret"), "tools"


def _as_then(config: RunnableConfig, held: Held) -> RunnableConfig:
    """Return a config that names the thread and the run that are replayed: a scope may depend on them."""
    values = {**(config.get("configurable") or {}), "thread_id": held.source}
    about = dict(config.get("metadata") or {})
    if held.run_id is not None:
        about["run_id"] = held.run_id
    then: Any = {**config, "configurable": values, "metadata": about}
    return then  # type: ignore[no-any-return]


def _found(
    cache: ToolCache,
    held: Held,
    call: Call,
    session: Session,
    args: Mapping[str, Any],
    before: Callable[[], Collection[str]],
) -> Plan[Any, Any, tuple[str, CallRecord, bytes]]:
    """Return the recorded call that answers this one, its key, and its result."""
    ledger = cache._ledger(session)
    known = yield from _known(cache, held, call, session)
    mine = _under([call.key], known)
    key = held.choose(call.record, mine)
    if key is None:
        raise _refused(held, call.record, args, known, _ONCE if mine else _changed(held, call, before(), known))
    cells: Mapping[str, Cell] = yield from session.store.read_cells(call.shelf, [key])
    record = ledger.record_of(key, cells[key]) if key in cells else replace(mine[key], is_kept=False)
    if record.state != DONE or not record.is_kept:
        error = f": {record.error}" if record.error else ""
        raise held.refuse(call.record.tool, f"the ledger keeps no result of this call, which is {record.state}{error}")
    return key, record, cells[key].body


def _refused(
    held: Held, call: CallRecord, args: Mapping[str, Any], known: Mapping[str, CallRecord], reason: str | None
) -> Refused:
    is_new = reason is None and any(record.tool == call.tool for record in known.values())
    reason = reason or ("the thread has not made this call" if is_new else _NEVER)
    return held.refuse(call.tool, reason, is_new=is_new, called=dict(args))


def _changed(held: Held, call: Call, before: Collection[str], known: Mapping[str, CallRecord]) -> str | None:
    """Return what to say of a call that is another one only by what the tool's schema adds to it; `None` if it is not.

    The other version of the tool is noted too.
    """
    for record in _under(before, known).values():
        held.note_version(call.record.tool, record.version, call.record.version)
        return _CHANGED
    return None


def _under(keys: Collection[str], known: Mapping[str, CallRecord]) -> dict[str, CallRecord]:
    """Return the recorded calls that stand under one of these keys, or one of their own made of it."""
    return {key: record for key, record in known.items() if any(key in (each, own_key(each, record)) for each in keys)}


def _keys_before(
    cache: ToolCache, call: Call, args: Mapping[str, Any], secret: bytes, config: RunnableConfig
) -> list[str]:
    """Return the keys that a call had if the schema did not add all that nobody has given, or one thing of it."""
    added = [name for name in call.args if name not in args]
    scope = shelf_of(call.record.tool, call.policy.scope, place_of(config), config)[1]
    context = cache._context(config) if callable(cache._context) else cache._context
    less = [{name: value for name, value in call.args.items() if name not in left} for left in (added, *zip(added))]
    return [key_of(secret, call.record.tool, (scope, context), each) for each in less] if added else []


def _known(cache: ToolCache, held: Held, call: Call, session: Session) -> Plan[Any, Any, Mapping[str, CallRecord]]:
    """Return what the ledger says of calls like this one: of all in the thread, or of those that threads share."""
    if call.shelf.thread_id is None:
        # A key of its own is of a call that used a person's answer, and is not shared; the rest stands under one key.
        cells = yield from session.store.read_cells(call.shelf, [call.key])
        return {key: cache._ledger(session).record_of(key, cell) for key, cell in cells.items()}
    store = id(session.store)
    if store not in held.shelves:
        held.shelves[store] = yield from read_ledger(session, held.source)
    return held.shelves[store]
