"""Engines, which run plans on drivers, and the base class of savers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_keel.engine.errands import AsyncErrandDriver, Call, ErrandDriver
from langgraph_keel.engine.leases import Pause
from langgraph_keel.engine.plan import AsyncDriver, Driver, Plan, StorePlan, arun, arun_whole, run
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tenants import check_tenant, read_tenants
from langgraph_keel.errors import InvalidInput

T = TypeVar("T")
AnySaver = TypeVar("AnySaver", bound="EngineSaver")


class GatedDriver:
    """A driver that runs a check, which may raise an error, before its first request."""

    def __init__(self, bare: Driver[Any, Any], check: Callable[[], Plan[None]]) -> None:
        self.bare = bare
        self._check = check

    def send(self, request: Any) -> Any:
        """Run the check, and send a request."""
        run(self._check(), self.bare)
        vars(self)["send"] = self.bare.send  # later requests go to the driver directly
        return self.bare.send(request)


class AsyncGatedDriver:
    """As `GatedDriver`, for a running event loop."""

    def __init__(self, bare: AsyncDriver[Any, Any], check: Callable[[], Plan[None]]) -> None:
        self.bare = bare
        self._check = check

    async def send(self, request: Any) -> Any:
        """Run the check, and send a request."""
        await arun(self._check(), self.bare)
        vars(self)["send"] = self.bare.send
        return await self.bare.send(request)


def bare(driver: Any) -> Any:
    """Return a driver without the check before its first request."""
    return driver.bare if isinstance(driver, GatedDriver | AsyncGatedDriver) else driver


class _Closer(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """The session and drivers of a saver.

    All copies of a saver share the drivers, the closers, and the session except its codec.

    Attributes:
        closers: Objects that write with a delay and are closed before the store. They may be closed more than once.
    """

    session: Session
    async_driver: AsyncDriver[Any, Any]
    closers: WeakSet[_Closer] = field(default_factory=WeakSet)

    @property
    def driver(self) -> Driver[Any, Any]:
        """The blocking driver."""
        return self.session.driver

    def run(self, plan: StorePlan[Any, Any, T]) -> T:
        """Run a plan of the engine, a feature or a store, blocking."""
        return run(plan, self.driver)

    async def arun(self, plan: StorePlan[Any, Any, T]) -> T:
        """Run a plan without blocking the running loop."""
        return await arun(plan, self.async_driver)

    async def arun_whole(self, plan: Plan[T]) -> T:
        """As `arun`, but finish the plan even if the caller is cancelled."""
        return await arun_whole(plan, self.async_driver)

    def run_patiently(self, plan: Plan[T]) -> T:
        """As `run`, for a plan that may wait or call blocking functions."""
        return run(plan, ErrandDriver(self.driver, Pause, Call))

    async def arun_patiently(self, plan: Plan[T]) -> T:
        """As `run_patiently`, asynchronously."""
        return await arun(plan, AsyncErrandDriver(self.async_driver, Pause, Call))

    def with_serde(self, serde: SerializerProtocol) -> Engine:
        """Return an engine on the same store with another serializer."""
        codec, memo = Codec(serde, self.session.codec.alone), self.session.memo
        if not (codec.is_own and self.session.codec.is_own):
            memo = memo.empty()  # another serializer may return other values
        return replace(self, session=replace(self.session, codec=codec, memo=memo))

    def with_drivers(
        self, driver: Driver[Any, Any] | None = None, async_driver: AsyncDriver[Any, Any] | None = None
    ) -> Engine:
        """Return an engine on the same store with other drivers."""
        session = replace(self.session, driver=driver or self.driver)
        return replace(self, session=session, async_driver=async_driver or self.async_driver)

    def is_same_store(self, other: Engine) -> bool:
        """Return whether another engine has the same threads and connections."""
        return self.is_same_place(other) and self.session.tenant == other.session.tenant

    def is_same_place(self, other: Engine) -> bool:
        """Return whether another engine has the same connections, for any tenant."""
        return bare(self.driver) is bare(other.driver)


class EngineSaver(BaseCheckpointSaver[Any]):
    """A saver that runs on an engine of Keel. Features use only this interface."""

    _engine: Engine
    stack: Any
    """The `Stack` of its options, a class that lower rooms cannot import."""

    def _place(self) -> str:
        """Return the location of the store, for display. Backends override it."""
        return ""

    @property
    def engine(self) -> Engine:
        """The engine of this saver, for authors of features (`langgraph_keel.engine`).

        Raises:
            InvalidInput: If the saver was created with `tenants="required"` and is not a tenant's.
        """
        if self._engine.session.tenant is None:
            raise InvalidInput('this saver was made with tenants="required": use saver.for_tenant(name)')
        # Programs assign `saver.serde`.
        if self._engine.session.codec.serde is not self.serde:
            self._engine = self._engine.with_serde(self.serde)
        return self._engine

    @property
    def tenant(self) -> str | None:
        """The tenant of this saver; `None` if it has none."""
        return self._engine.session.tenant or None

    def for_tenant(self, name: str) -> Self:
        """Return a saver for one tenant, on the same store and connections.

        No round trip. All its methods are limited to the tenant's data: threads, approvals, tool calls, policies,
        labels, archives, the audit trail. No thread id gives access to data of another tenant, and the default saver
        sees no tenant's data. With `encryption`, each tenant has its own key. As long as the returned object is alive,
        the same object is returned for the same name. Closing it does not affect others; closing this saver closes all.

        Args:
            name: 1 to 64 letters, digits, `.`, `_`, `@`, `+` and `-`, beginning with a letter or digit.

        Raises:
            InvalidInput: If the name is invalid, this saver already belongs to a tenant, or the backend does not
                support tenants.
        """
        if self.tenant is not None:
            raise InvalidInput(f"this saver belongs to tenant {self.tenant!r}: call for_tenant on its parent saver")
        return self._view(check_tenant(name))

    def _view(self, tenant: str) -> Self:
        """Return the saver of a tenant."""
        raise NotImplementedError


def engine_of(saver: object) -> Engine | None:
    """Return the engine of a checkpointer; `None` if it is not one of Keel's."""
    engine = getattr(saver, "engine", None)
    return engine if isinstance(engine, Engine) else None


def shared_engine(saver: EngineSaver) -> Engine:
    """Return the engine of a saver, even with `tenants="required"`."""
    return saver._engine


def engines_of(saver: EngineSaver) -> Iterator[Engine]:
    """Yield the engines of a saver and of all tenants, for work on a whole store.

    Blocks.
    """
    shared = shared_engine(saver)
    if shared.session.tenant is not None:
        yield saver.engine
    for tenant in () if saver.tenant else shared.run(read_tenants(shared.session.store)):
        yield saver.for_tenant(tenant).engine


def with_engine(saver: AnySaver, engine: Engine) -> AnySaver:
    """Return a copy of a saver that runs on another engine."""
    clone = copy.copy(saver)
    clone._engine = engine
    return clone
