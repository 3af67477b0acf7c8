"""ToolCache: answers tool calls from the ledger, and settles unknown outcomes."""

from __future__ import annotations

import atexit
import logging
import os
import time
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from langgraph_keel._langgraph import CONFIG_KEY_CHECKPOINTER
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.engine import Engine, EngineSaver, bare, engine_of
from langgraph_keel.engine.errands import AsyncErrandDriver, ErrandDriver
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.leases import Keeper, Pause, Watch
from langgraph_keel.engine.plan import Plan, arun, run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.tools import answers, lone
from langgraph_keel.tools.adapters import KeptTool, with_argument
from langgraph_keel.tools.answers import CallsUnderWay, take_slot
from langgraph_keel.tools.call import CallBuilder
from langgraph_keel.tools.flow import Flow, RunTool, Steps
from langgraph_keel.tools.guard import find_guard
from langgraph_keel.tools.healing import heal
from langgraph_keel.tools.hook import forget
from langgraph_keel.tools.invocations import INVOCATIONS
from langgraph_keel.tools.keys import HashSecret
from langgraph_keel.tools.ledger import (
    CALLS,
    DONE,
    FAILED,
    LEASE,
    SECRETS,
    CallRecord,
    Claim,
    Ledger,
)
from langgraph_keel.tools.ledger import shelf_of as shelf_of_calls
from langgraph_keel.tools.playback import Playback
from langgraph_keel.tools.policy import ToolPolicy, check_number
from langgraph_keel.tools.results import is_reference_to, place_of_result
from langgraph_keel.tools.settling import settle_call
from langgraph_keel.tools.stats import Account, CacheStats

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langgraph.prebuilt.tool_node import ToolCallRequest


_log = logging.getLogger(__name__)
_LANGGRAPHS = ("langgraph.checkpoint.memory", "langgraph.checkpoint.sqlite", "langgraph.checkpoint.postgres")
"""The modules of LangGraph's own savers."""
_MARK = "seen."
"""Prefix of the keys of records that test whether another saver uses the same store."""
_AT_EXIT = 2.0
"""Seconds to wait for each cache at the exit of the program."""

_CACHES: WeakSet[ToolCache] = WeakSet()


def read_result(session: Session, thread_id: str, reference: str) -> Plan[bytes | None]:
    """Read the stored result of a reference; `None` if it does not exist."""
    shelf, key = place_of_result(reference, thread_id)
    kept = yield from Cells(session, CALLS, shelf.thread_id).find(key)
    is_there = kept is not None and kept.record.is_kept and is_reference_to(reference, kept.cell.body)
    return kept.cell.body if kept is not None and is_there else None


def check_cache(saver: Any, policies: Any, default: Any, secret: Any, lease: Any) -> None:
    """Validate the arguments of a `ToolCache`."""
    if engine_of(saver) is None:
        raise InvalidInput(f"ToolCache needs a saver of Keel, not a {type(saver).__name__}")
    if not isinstance(policies, Mapping):
        raise InvalidInput(f"policies={policies!r}: pass a dict of ToolPolicy by the names of tools")
    for name, policy in {**policies, "all others (default=)": default}.items():
        if not isinstance(policy, ToolPolicy | None):
            raise InvalidInput(f"the policy of {name} must be ToolPolicy(...) or None, not {policy!r}")
    if secret is not None and not isinstance(secret, bytes | bytearray):
        raise InvalidInput(f"the secret of a ToolCache must be bytes, not {type(secret).__name__}")
    if secret is not None and len(secret) < 16:
        raise InvalidInput("the secret of a ToolCache must have at least 16 bytes: use secrets.token_bytes(32)")
    check_number("lease", lease, least=1)


Execute: TypeAlias = Callable[[Any], Any]


@publish
class ToolCache(Component):
    """Runs each tool call once, and stores its result before it is used.

        cache = ToolCache(saver, {"search": ToolPolicy(unknown="retry", ttl=3600)})
        ToolNode(tools, wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
        create_agent(model, tools, middleware=[..., cache.middleware()], checkpointer=saver)  # last: innermost
        kept = cache.tool(my_tool)  # to call from any node

    A resumed agent gets the stored results of its calls, even if its checkpoint was lost and the model chose new ids.
    Another call with the same arguments runs the tool. With other scopes than `"call"`, a result also answers equal
    calls, recognized by a keyed hash of tool and validated arguments, until its `ttl` expires. If another process makes
    the same call concurrently, it waits and gets the same result. Not kept: error results and exceptions (the tool may
    run again), results that used a person's answer (except for the same call), commands that refer to their call in a
    way that cannot be rewritten, and volatile tools.

    If a process dies during a call, the call's outcome is *unknown*, and `ToolPolicy.unknown` decides what happens.
    With `"ask"` the graph interrupts with `{"type": "tool_outcome_unknown", "tool", "args", "started_at", ...}`; resume
    it with `"retry"`, `"skip"`, `"done"`, or `{"decision": "done", "result": "the tool's result"}`.

    Args:
        saver: The saver whose store contains the ledger. The ledger is deleted, and expires, with its threads.
        policies: Policies by names of tools; `None` for a tool that is never kept. If a name resembles that of a tool
            without a policy, a warning is logged.
        default: The policy of all other tools.
        secret: The key of the hash, at least 16 bytes; by default one is generated and kept in the store.
        context: Further text that must be equal for two calls to be equal, such as a model's version.
        lease: Seconds without a renewal after which a waiting process treats a claim as dead, by its own clock. A dead
            process on the same machine is detected immediately (Linux).
        store_arguments: Whether to store arguments, so that people can read them in the ledger.

    Raises:
        InvalidInput: If `saver` is not one of Keel's, a policy is not a `ToolPolicy`, the secret is too short, or the
            lease is below one second.
    """

    def __init__(
        self,
        saver: EngineSaver,
        policies: Mapping[str, ToolPolicy | None] | None = None,
        *,
        default: ToolPolicy | None = None,
        secret: bytes | None = None,
        context: str | Callable[[RunnableConfig], str] = "",
        lease: float = LEASE,
        store_arguments: bool = False,
    ) -> None:
        policies = {} if policies is None else policies
        check_cache(saver, policies, default, secret, lease)
        super().__init__(saver)
        self.saver: Any = saver  # a `KeelSaver`, whose module imports this one
        self._twin = partial(
            ToolCache,
            policies=policies,
            default=default,
            secret=secret,
            context=context,
            lease=lease,
            store_arguments=store_arguments,
        )
        self._of_tenants: dict[str, ToolCache] = {}
        self._unknown: set[type] = set()
        self._seen: WeakKeyDictionary[Any, set[str | None]] = WeakKeyDictionary()
        self._secret = HashSecret(secret)
        self._builder = CallBuilder(dict(policies), default or ToolPolicy(), context, store_arguments)
        self._lease = int(lease * 1000)
        self._keeper = Keeper(lease / 3, self._renew)
        self._account = Account(saver, self._keeper)
        self._under_way = CallsUnderWay()
        self._watch = Watch(lease)
        _CACHES.add(self)
        lone.watch()
        saver.engine.closers.add(self)

    def __repr__(self) -> str:
        """Show the saver and the policies, never the secret."""
        return f"ToolCache({self.saver!r}, {self._builder!r})"

    def __enter__(self) -> Self:
        """Return the cache itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write pending records; see `close`."""
        self.close()

    def close(self, timeout: float = 5.0) -> None:
        """Write hit counts and ends of cancelled calls, within `timeout` seconds.

        The cache can still be used. Closing the saver calls this too.
        """
        self._account.flush()
        self._keeper.flush(timeout)

    async def aclose(self, timeout: float = 5.0) -> None:
        """As `close`, asynchronously."""
        await to_thread(self.close, timeout)

    @property
    def stats(self) -> CacheStats:
        """The statistics of this cache in this process, for all tenants."""
        parts = [self._account.stats, *(cache.stats for cache in list(self._of_tenants.values()))]
        return CacheStats(*(sum(each) for each in zip(*map(astuple, parts), strict=True)))

    # -- where it plugs in ---------------------------------------------------------------------------------------

    def wrap_tool_call(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        """Answer a tool call of a `ToolNode`.

        A hit is one round trip to the store; a miss is two or three.

        Raises:
            ToolOutcomeUnknown: If the call was cut off before, and the policy is `"raise"`.
            InvalidInput: If an argument has no canonical form.
            StoreError: If the claim or the result could not be stored. Without a claim, the tool did not run.
        """
        if not self._keeps(request):
            return execute(request)
        return run(self._answer(request, execute, False), ErrandDriver(self.engine.driver, Pause, RunTool))

    async def awrap_tool_call(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """As `wrap_tool_call`, asynchronously."""
        if not self._keeps(request):
            return await execute(request)
        return await arun(
            self._answer(request, execute, True), AsyncErrandDriver(self.engine.async_driver, Pause, RunTool)
        )

    def middleware(self) -> AgentMiddleware[Any, Any]:
        """Return middleware for `create_agent(middleware=[..., cache.middleware()])`.

        Put it last: the last middleware is innermost, so it sees the calls after the others changed them (such as a
        reviewer's edit).

        Raises:
            InvalidInput: If the package `langchain` is not installed.
        """
        try:
            from langgraph_keel.tools.middleware import ToolCacheMiddleware
        except ModuleNotFoundError as error:
            raise InvalidInput(f"cache.middleware() is for create_agent: pip install langchain ({error})") from error
        return ToolCacheMiddleware(self)

    def healing_middleware(self) -> AgentMiddleware[Any, Any]:
        """Return middleware of `create_agent` that answers tool calls that were cut off.

            create_agent(model, tools, middleware=[cache.healing_middleware(), ..., cache.middleware()])

        It calls `heal_tool_calls` in a separate step before the agent processes new input. Without it, new input after
        a run that died while its tools ran makes a conversation that providers reject.

        Raises:
            InvalidInput: If the package `langchain` is not installed.
        """
        try:
            from langgraph_keel.tools.middleware import HealToolCallsMiddleware
        except ModuleNotFoundError as error:
            needs = f"cache.healing_middleware() is for create_agent: pip install langchain ({error})"
            raise InvalidInput(needs) from error
        return HealToolCallsMiddleware(self)

    def tool(self, tool: BaseTool) -> BaseTool:
        """Return a kept version of a tool, for any caller: a node, an agent, a `ToolNode`.

        It must run in a graph with a thread, and fails elsewhere.

        Raises:
            InvalidInput: If `tool` is not a tool.
        """
        if not isinstance(tool, BaseTool):
            raise InvalidInput(f"cache.tool() takes a tool, such as langchain_core.tools.tool(function), not {tool!r}")
        self._builder.add_names([tool.name])
        return KeptTool.of(tool, self)

    # -- one call ------------------------------------------------------------------------------------------------

    def policy_of(self, name: str) -> ToolPolicy | None:
        """Return the policy of a tool; `None` if its calls are not kept."""
        return self._builder.policy_of(name)

    def _keeps(self, request: Any) -> bool:
        return request.tool is not None and self.policy_of(request.tool.name) is not None

    def _answer(self, request: Any, execute: Execute, by_time: bool) -> Steps:
        asked, policy = request.tool_call, self.policy_of(request.tool.name)
        argument = policy.idempotency_argument if policy else None
        names = {request.tool.name, *(tool.name for tool in getattr(request.runtime, "tools", ()))}
        self._builder.add_names(names)

        def make(lineage: str) -> Any:
            if argument is None:
                return execute(request)
            return execute(request.override(tool=with_argument(request.tool, argument, lineage)))

        return self.answer(request.tool, asked["args"], asked["id"] or "", request.runtime.config, make, by_time)

    def answer(
        self,
        tool: BaseTool,
        args: Mapping[str, Any],
        call_id: str,
        config: RunnableConfig,
        make: Callable[[str], Any],
        by_time: bool,
    ) -> Steps:
        """Plan one call of a kept tool.

        `make` runs the tool, given the idempotency key. For `by_time` see `Flow`.
        """
        saver: Any = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
        engine, ours = engine_of(saver), self.engine
        if engine is not None and engine.is_same_place(ours) and not engine.is_same_store(ours):
            tenant = engine.session.tenant or ""  # the graph runs for a tenant, so the ledger is the tenant's
            cache = self._of_tenants.get(tenant) or self._of_tenants.setdefault(tenant, self._twin(saver))
            return (yield from cache.answer(tool, args, call_id, config, make, by_time))
        slot = take_slot(config)
        try:
            session = self._session_of(config)
            if guard := find_guard(config):
                secret = yield from self._secret.read(self.engine.session)
                playback = Playback(guard, self._builder, session, secret)
                return (yield from playback.answer(tool, args, call_id, config, slot, make))
            secret = yield from self._secret.read_or_make(self.engine.session)
            yield from self._check_store(config, by_time)
            call = self._builder.build(tool, args, call_id, config, slot, secret, make)
            flow = Flow(session, self._keeper, self._account, self._under_way, self._watch, _now, self._lease, by_time)
            return (yield from flow.answer(call))
        finally:
            slot.calls.end(slot)

    def _check_store(self, config: RunnableConfig, is_async: bool) -> Steps:
        """Check that the graph, if it has a checkpointer, uses the store of the ledger."""
        runs_on: Any = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
        if runs_on is None:
            return
        if engine := engine_of(runs_on):
            is_other = not (yield from self._is_seen_by(engine, is_async))
        else:  # a wrapper, such as that of LangGraph's API server, may contain a saver of Keel's
            is_other = any(each.__module__.startswith(_LANGGRAPHS) for each in type(runs_on).__mro__)
            if not is_other and type(runs_on) not in self._unknown:
                self._unknown.add(type(runs_on))
                _log.warning(
                    "a graph runs on a %s, and the ledger of its tools is in %r: if these are different stores, "
                    "unknown outcomes are not shown with the thread. Make the ToolCache with the graph's saver",
                    *(type(runs_on).__name__, self.saver),
                )
        if is_other:
            raise InvalidInput(
                f"the graph stores its threads in {runs_on!r}, and the ledger of this ToolCache is in {self.saver!r}: "
                "no tool was run. Make the ToolCache with the saver that the graph is compiled with"
            )

    def _is_seen_by(self, engine: Engine, is_async: bool) -> Steps:
        """Return whether another engine uses this store.

        Three trips, once for each other driver.

        It writes a record and looks for it, because names are ambiguous: a server may have several names, and several
        servers may have databases of the same name.
        """
        ours = self.engine
        if engine.is_same_store(ours):
            return True
        seen = self._seen.setdefault(bare(engine.driver), set())
        if engine.session.tenant not in seen:
            marks, key = Cells(ours.session, SECRETS, None), f"{_MARK}{os.urandom(16).hex()}"
            token = ours.session.new_token()
            yield from marks.swap(key, None, key.encode(), token=token)
            look = Cells(engine.session, SECRETS, None).read_raw([key])
            found = yield RunTool(lambda: engine.arun(look) if is_async else engine.run(look))
            yield from marks.remove({key: token})
            if not found:
                return False
            seen.add(engine.session.tenant)
        return True

    def _session_of(self, config: RunnableConfig) -> Session:
        # In strict mode LangGraph runs on a copy of the saver, which alone may revive classes of the graph's schema.
        runs_on: Any = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
        ours, engine = self.engine, engine_of(runs_on)
        return engine.session if engine is not None and engine.is_same_store(ours) else ours.session

    def _renew(self, claim: Claim) -> bool:
        engine = self.engine
        return engine.run(Ledger(engine.session, self._watch).renew(claim, _now() + self._lease))

    # -- calls without an answer -----------------------------------------------------------------------------------

    def _heal_tool_calls(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> Plan[list[BaseMessage]]:
        """Return the update that answers the open tool calls of a conversation.

            def heal(state: MessagesState, config: RunnableConfig):
                return {"messages": cache.heal_tool_calls(state["messages"], config)}

        For a node that runs before the model, in a graph whose tools this cache keeps. A finished call is answered with
        its stored result, a failed one with its error. If it was cut off, is still running, or is of a tool that the
        cache does not keep, the answer states that its outcome is not known; otherwise, that the call was not made.
        Each call gets one answer, directly after its message, in the order of the calls. Added answers have
        `keel_healed` in their `response_metadata`. An unknown outcome stays unknown until it is settled.

        No trip if every call has its answer. Otherwise three, one or two more for each call in the ledger that gets an
        answer, and one more for each 500 calls of the thread.

        Args:
            messages: The messages of the state.
            config: The config of the node.

        Returns:
            The update, for a channel with LangGraph's `add_messages`; empty if every call has its answer, or if the
            thread waits for a person at this checkpoint.

        Raises:
            InvalidConfig: If a call has no answer, and `config` names no thread.
        """
        runs_on: Any = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
        engine, ours = engine_of(runs_on), self.engine
        # A graph may run for a tenant, which has its own ledger.
        session = engine.session if engine is not None and engine.is_same_place(ours) else ours.session
        return heal(session, self.policy_of, messages, config)

    heal_tool_calls, aheal_tool_calls = faces(_heal_tool_calls)

    # -- afterwards ----------------------------------------------------------------------------------------------

    def _settle(
        self, thread_id: str | None, key: str, decision: str, result: str | None = None, *, by: str | None = None
    ) -> Plan[None]:
        """Settle a call whose outcome is unknown; see `saver.tools.settle`."""
        # If this cache already watches the claim, the wait is shorter.
        return settle_call(self.engine.session, thread_id, key, decision, result, by, False, _now(), self._watch)

    settle, asettle = faces(_settle)

    def _clear(self, thread_id: str | None = None, *, expired_only: bool = False) -> Plan[int]:
        """Delete the finished calls of a thread; return how many.

        With `None`, delete those that threads share.

        The tool runs again when such a call is repeated. Running calls and unknown outcomes stay.

        Args:
            thread_id: The thread.
            expired_only: Whether to delete only results whose `ttl` has expired.
        """
        now = _now()

        def is_over(record: CallRecord, cell: Cell) -> bool:
            return record.state in (DONE, FAILED) and not (expired_only and cell.is_live(now))

        return forget(self.engine.session, shelf_of_calls(thread_id), is_over)

    clear, aclear = faces(_clear)

    def _result(self, thread_id: str, reference: str) -> Plan[Any]:
        """Return a large result (`ToolPolicy.offload_bytes`).

        Args:
            thread_id: The thread that made the call.
            reference: The `response_metadata["keel_result"]["reference"]` of its message.

        Raises:
            NotFound: If the ledger does not contain it, or no longer.
        """
        session = self.engine.session
        found = yield from read_result(session, thread_id_of(thread_id), reference)
        if found is None:
            raise NotFound(f"thread {thread_id!r}: the ledger has no result {reference!r}")
        (whole,) = session.codec.decode(found)
        return whole

    result, aresult = faces(_result)

    def forget(self) -> None:
        """Start empty in a forked process. Called automatically."""
        self._keeper.forget()
        self._account.forget()
        self._under_way = CallsUnderWay()


@atexit.register
def _at_exit() -> None:
    for cache in list(_CACHES):
        cache.close(_AT_EXIT)


def _after_fork() -> None:
    answers.forget()
    INVOCATIONS.forget()
    for cache in list(_CACHES):
        cache.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _now() -> int:
    return time.time_ns() // 1_000_000
