"""Engines, which bring plans and drivers together, and the base of savers, each of which runs on one."""

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
    """A driver that carries out a check, which may raise, before its first request."""

    def __init__(self, bare: Driver[Any, Any], check: Callable[[], Plan[None]]) -> None:
        self.bare = bare
        self._check = check

    def send(self, request: Any) -> Any:
        """Carry out the check, and send a request."""
        run(self._check(), self.bare)
        vars(self)["send"] = self.bare.send  # from now on there is no call between
        return self.bare.send(request)


class AsyncGatedDriver:
    """As `GatedDriver`, for a running loop."""

    def __init__(self, bare: AsyncDriver[Any, Any], check: Callable[[], Plan[None]]) -> None:
        self.bare = bare
        self._check = check

    async def send(self, request: Any) -> Any:
        """Carry out the check, and send a request."""
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
    """What a saver runs on. All copies of a saver share the drivers, the closers, and all of the session but its codec.

    Attributes:
        closers: Objects that write with a delay, to be closed before the store is. They may be closed more than once.
    """

    session: Session
    async_driver: AsyncDriver[Any, Any]
    closers: WeakSet[_Closer] = field(default_factory=WeakSet)

    @property
    def driver(self) -> Driver[Any, Any]:
        """The blocking driver."""
        return self.session.driver

    def run(self, plan: StorePlan[Any, Any, T]) -> T:
        """Carry out a plan of the engine, a feature or a store, blocking."""
        return run(plan, self.driver)

    async def arun(self, plan: StorePlan[Any, Any, T]) -> T:
        """Carry out a plan without blocking the running loop."""
        return await arun(plan, self.async_driver)

    async def arun_whole(self, plan: Plan[T]) -> T:
        """As `arun`, of a plan that ends what it has begun, also if its caller is cancelled."""
        return await arun_whole(plan, self.async_driver)

    def run_patiently(self, plan: Plan[T]) -> T:
        """As `run`, of a plan that may have to wait for others, or calls functions that block."""
        return run(plan, ErrandDriver(self.driver, Pause, Call))

    async def arun_patiently(self, plan: Plan[T]) -> T:
        """As `run_patiently`, asynchronously."""
        return await arun(plan, AsyncErrandDriver(self.async_driver, Pause, Call))

    def with_serde(self, serde: SerializerProtocol) -> Engine:
        """Return an engine on the same store whose plans encode values so."""
        codec, memo = Codec(serde, self.session.codec.alone), self.session.memo
        if not (codec.is_own and self.session.codec.is_own):
            memo = memo.empty()  # what one serializer was given, another need not give back
        return replace(self, session=replace(self.session, codec=codec, memo=memo))

    def with_drivers(
        self, driver: Driver[Any, Any] | None = None, async_driver: AsyncDriver[Any, Any] | None = None
    ) -> Engine:
        """Return an engine on the same store whose plans are carried out by others."""
        session = replace(self.session, driver=driver or self.driver)
        return replace(self, session=session, async_driver=async_driver or self.async_driver)

    def is_same_store(self, other: Engine) -> bool:
        """Return whether another engine has the same threads, by the same connections."""
        return self.is_same_place(other) and self.session.tenant == other.session.tenant

    def is_same_place(self, other: Engine) -> bool:
        """Return whether another engine has the same connections, for the same threads or for those of a tenant."""
        return bare(self.driver) is bare(other.driver)


class EngineSaver(BaseCheckpointSaver[Any]):
    """A saver that runs on an engine of Keel; features use nothing else of it."""

    _engine: Engine
    stack: Any
    """What it was opened with: a `Stack`, which knows layers of features, so that no room below can name its class."""

    def _place(self) -> str:
        """Return where the store is, as far as the saver knows, for people; backends override it."""
        return ""

    @property
    def engine(self) -> Engine:
        """What this saver runs on: for those who write a feature of their own (`langgraph_keel.engine`).

        Raises:
            InvalidInput: It was made with `tenants="required"`, and is no tenant's.
        """
        if self._engine.session.tenant is None:
            raise InvalidInput('this saver was made with tenants="required": use saver.for_tenant(name)')
        # Programs assign `saver.serde`.
        if self._engine.session.codec.serde is not self.serde:
            self._engine = self._engine.with_serde(self.serde)
        return self._engine

    @property
    def tenant(self) -> str | None:
        """The tenant whose threads this saver has; `None` for those of no tenant."""
        return self._engine.session.tenant or None

    def for_tenant(self, name: str) -> Self:
        """Return a saver on the same store and connections in which only one tenant's threads exist. No round trip.

        It has all methods, and all that they find is the tenant's: threads, approvals, tool calls, policies, labels,
        archives, the audit trail. What others have is not there, under whatever name; and the saver that this was
        called on has nothing of any tenant. With `encryption`, each tenant has a key of its own. The same object is
        returned for the same name, while somebody holds it. Closing it gives back nothing that others use; closing this
        saver closes all.

        Args:
            name: 1 to 64 letters, digits, `.`, `_`, `@`, `+` and `-`; the first one a letter or digit.

        Raises:
            InvalidInput: It cannot be a tenant's name; this saver is a tenant's itself; or the backend has no tenants.
        """
        if self.tenant is not None:
            raise InvalidInput(f"this saver is tenant {self.tenant!r}'s: call for_tenant on the one that it came from")
        return self._view(check_tenant(name))

    def _view(self, tenant: str) -> Self:
        """Return the saver of a tenant."""
        raise NotImplementedError


def engine_of(saver: object) -> Engine | None:
    """Return what a checkpointer runs on; `None` if it is none of Keel's."""
    engine = getattr(saver, "engine", None)
    return engine if isinstance(engine, Engine) else None


def shared_engine(saver: EngineSaver) -> Engine:
    """Return the engine of a saver that may have no threads itself (`tenants="required"`)."""
    return saver._engine


def engines_of(saver: EngineSaver) -> Iterator[Engine]:
    """Yield the engine of a saver and those of all tenants, for work on all that a store holds. Blocks."""
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
