"""Answers tool calls in a replay from the replayed thread's ledger, or refuses.

Such calls are not claimed, and the ledger is not written. A tool runs only if the replay allows it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import ValueRefused
from langgraph_keel.tools.answers import CallSlot
from langgraph_keel.tools.call import Call, CallBuilder, place_of, shelf_of
from langgraph_keel.tools.flow import RunTool, Steps
from langgraph_keel.tools.guard import Refused, ToolGuard
from langgraph_keel.tools.keys import key_of, own_key
from langgraph_keel.tools.ledger import CALLS, DONE, OWN, CallRecord, read_ledger, speaks_for_one
from langgraph_keel.tools.results import mark_replay, reference_of, shorten

_ONCE = "a person had a part in this call, and the ledger keeps only the last such call"
_NEVER = "the ledger contains no call of it in this thread"
_CHANGED = "the thread called it with the same arguments, but its schema has changed and adds other defaults"


class Playback:
    """Answers tool calls in one replay."""

    def __init__(self, guard: ToolGuard, builder: CallBuilder, session: Session, secret: bytes | None) -> None:
        self._guard = guard
        self._builder = builder
        self._session = session
        self._secret = secret  # the key of the hash; `None` if the store has none, and thus no calls

    def answer(
        self,
        tool: BaseTool,
        args: Mapping[str, Any],
        call_id: str,
        config: RunnableConfig,
        slot: CallSlot,
        make: Callable[[str], Any],
    ) -> Steps:
        """Plan one call. One trip, and one more a page of the ledger for the first call."""
        guard, is_allowed = self._guard, tool.name in self._guard.allowed
        if self._secret is None and not is_allowed:
            raise guard.refuse(tool.name, _NEVER)
        # The config names the replayed thread and run, because a scope may depend on them.
        values = {**(config.get("configurable") or {}), "thread_id": guard.source}
        run = {} if guard.run_id is None else {"run_id": guard.run_id}
        config = {**config, "configurable": values, "metadata": {**(config.get("metadata") or {}), **run}}
        call = self._builder.build(tool, args, call_id, config, slot, self._secret or b"", make)
        if is_allowed:
            return (yield RunTool(partial(make, call.record.lineage)))
        key, record, body = yield from self._find_answer(call, args)
        guard.note_version(tool.name, record.version, call.record.version)
        try:
            (result,) = self._session.codec.decode(body)
        except ValueRefused as error:
            raise guard.refuse(tool.name, f"its stored result cannot be read here: {error}") from error
        result = mark_replay(result, record, call_id)
        limit = call.policy.offload_bytes
        return result if limit is None else shorten(result, reference_of(call.shelf, key, body), limit)

    def _find_answer(self, call: Call, args: Mapping[str, Any]) -> Plan[tuple[str, CallRecord, bytes]]:
        """Return the key, record and result of the recorded call that answers this one."""
        session, shelves = self._session, self._guard.shelves
        known: Mapping[str, CallRecord]
        if call.shelf.thread_id is None:
            # Calls with their own key used a person's answer and are not shared; all others have one key.
            known = {key: kept.record for key, kept in (yield from self._calls(call).read([call.key])).items()}
        else:
            store = id(session.store)
            if store not in shelves:
                shelves[store] = yield from read_ledger(session, self._guard.source)
            known = shelves[store]
        candidates = _calls_under([call.key.partition(OWN)[0]], known)
        key = self._guard.choose(call.record, candidates)
        if key is None:
            is_persons = any(map(speaks_for_one, candidates.values()))
            raise self._refuse(call, args, known, _ONCE if is_persons else self._explain_change(call, args, known))
        kept = yield from self._calls(call).find(key)
        record = kept.record if kept else replace(candidates[key], is_kept=False)
        if kept is None or record.state != DONE or not record.is_kept:
            error = f": {record.error}" if record.error else ""
            reason = f"the ledger has no result of this call, whose state is {record.state}{error}"
            raise self._guard.refuse(call.record.tool, reason)
        return key, record, kept.cell.body

    def _calls(self, call: Call) -> Cells[CallRecord]:
        return Cells(self._session, CALLS, call.shelf.thread_id)

    def _refuse(
        self, call: Call, args: Mapping[str, Any], known: Mapping[str, CallRecord], reason: str | None
    ) -> Refused:
        tool = call.record.tool
        is_new = reason is None and any(record.tool == tool for record in known.values())
        reason = reason or ("the thread has not made this call" if is_new else _NEVER)
        return self._guard.refuse(tool, reason, is_new=is_new, called=dict(args))

    def _explain_change(self, call: Call, args: Mapping[str, Any], known: Mapping[str, CallRecord]) -> str | None:
        """Explain a call that differs only by additions of the schema, if it does."""
        added = [name for name in call.args if name not in args]
        if not added:
            return None
        tool, config = call.record.tool, call.config
        scope = shelf_of(tool, call.policy.scope, place_of(config), config)[1], self._builder.context_of(config)
        # Its keys without all additions of the schema, or without one of them.
        less = [{name: value for name, value in call.args.items() if name not in left} for left in (added, *zip(added))]
        keys = [key_of(self._secret or b"", tool, scope, each) for each in less]
        for record in _calls_under(keys, known).values():
            self._guard.note_version(tool, record.version, call.record.version)
            return _CHANGED
        return None


def _calls_under(keys: Collection[str], known: Mapping[str, CallRecord]) -> dict[str, CallRecord]:
    """Return the recorded calls under these keys, or own keys derived from them."""
    return {
        key: record
        for key, record in known.items()
        if any(each in (key, key.partition(OWN)[0]) or key == own_key(each, record) for each in keys)
    }
