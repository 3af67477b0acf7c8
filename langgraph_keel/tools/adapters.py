"""Wrappers of tools: one consults the ledger, one adds an idempotency key."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Self

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.types import Command
from pydantic import PrivateAttr

from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.errands import AsyncErrandDriver, ErrandDriver
from langgraph_keel.engine.leases import Pause
from langgraph_keel.engine.plan import arun, run
from langgraph_keel.tools.flow import RunTool, Steps
from langgraph_keel.tools.policy import ToolPolicy


class Answering(Protocol):
    """The part of `ToolCache` that a kept tool uses."""

    @property
    def saver(self) -> EngineSaver:
        """The saver whose store contains the ledger."""

    def policy_of(self, name: str) -> ToolPolicy | None:
        """Return the policy of a tool; `None` if its calls are not kept."""

    def answer(
        self,
        tool: BaseTool,
        args: Mapping[str, Any],
        call_id: str,
        config: RunnableConfig,
        make: Callable[[str], Any],
        by_time: bool,
    ) -> Steps:
        """Plan one call of a kept tool."""


class _StandIn(BaseTool):
    """A tool with the name, schema and settings of an inner tool that does the work."""

    _inner: BaseTool = PrivateAttr()

    @classmethod
    def wrap(cls, inner: BaseTool) -> Self:
        """Return a wrapper of a tool."""
        schema = inner.args_schema if inner.args_schema is not None else inner.get_input_schema()
        tool = cls(
            name=inner.name,
            description=inner.description,
            args_schema=schema,
            return_direct=inner.return_direct,
            response_format=inner.response_format,
            tags=inner.tags,
            metadata=inner.metadata,
            extras=inner.extras,
        )
        tool._inner = inner
        return tool

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner._run(*args, **kwargs)


class _WithArgument(_StandIn):
    """A tool that adds an argument to those of the model and the graph."""

    _argument: dict[str, Any] = PrivateAttr()

    def run(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run the tool with the additional argument."""
        return self._inner.run(self._add_argument(tool_input), *args, **kwargs)

    async def arun(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As `run`, asynchronously."""
        return await self._inner.arun(self._add_argument(tool_input), *args, **kwargs)

    def _add_argument(self, tool_input: str | dict[str, Any]) -> dict[str, Any]:
        return {**_to_arguments(self._inner, tool_input), **self._argument}


def with_argument(tool: BaseTool, name: str, value: Any) -> BaseTool:
    """Return a copy of a tool with an argument set.

    `ToolNode` would strip an `InjectedToolArg`, so it cannot be passed with the call.
    """
    stand_in = _WithArgument.wrap(tool)
    stand_in._argument = {name: value}
    return stand_in


class KeptTool(_StandIn):
    """Consults the ledger before the inner tool runs; see `ToolCache.tool`."""

    _cache: Answering = PrivateAttr()

    @classmethod
    def of(cls, inner: BaseTool, cache: Answering) -> KeptTool:
        """Wrap a tool for a cache."""
        tool = cls.wrap(inner)
        tool._cache = cache
        return tool

    def run(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the stored result, or run the tool."""
        if self._cache.policy_of(self.name) is None:
            return self._inner.run(tool_input, *args, **kwargs)
        steps = self._steps(tool_input, kwargs, lambda tool, options: tool.run(tool_input, *args, **options), False)
        result = run(steps, ErrandDriver(self._cache.saver.engine.driver, Pause, RunTool))
        return _format_result(result, self.name, kwargs.get("tool_call_id"))

    async def arun(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As `run`, asynchronously."""
        if self._cache.policy_of(self.name) is None:
            return await self._inner.arun(tool_input, *args, **kwargs)
        steps = self._steps(tool_input, kwargs, lambda tool, options: tool.arun(tool_input, *args, **options), True)
        result = await arun(steps, AsyncErrandDriver(self._cache.saver.engine.async_driver, Pause, RunTool))
        return _format_result(result, self.name, kwargs.get("tool_call_id"))

    def _steps(
        self,
        tool_input: str | dict[str, Any],
        options: Mapping[str, Any],
        make: Callable[[BaseTool, Mapping[str, Any]], Any | Awaitable[Any]],
        by_time: bool,
    ) -> Steps:
        # A copy of the node's config, in which the ledger counts the answers of people that the tool uses.
        config = ensure_config(options.get("config"))
        policy = self._cache.policy_of(self.name)
        argument = policy.idempotency_argument if policy else None

        def once(lineage: str) -> Any:
            tool = self._inner if argument is None else with_argument(self._inner, argument, lineage)
            return make(tool, {**options, "config": config})

        args = _to_arguments(self._inner, tool_input)
        return self._cache.answer(self._inner, args, options.get("tool_call_id") or "", config, once, by_time)


def _format_result(result: Any, name: str, call_id: str | None) -> Any:
    """Return a result for its caller: a message for a tool call, otherwise content."""
    if call_id is None:
        return result.content if isinstance(result, ToolMessage) else result
    listed = result if isinstance(result, list) and result else [result]
    if all(isinstance(part, (ToolMessage, Command)) for part in listed):
        return result
    content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    return ToolMessage(content, name=name, tool_call_id=call_id)


def _to_arguments(tool: BaseTool, tool_input: str | dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; a single argument may be passed without a name."""
    return tool_input if isinstance(tool_input, dict) else {next(iter(tool.args), "input"): tool_input}
