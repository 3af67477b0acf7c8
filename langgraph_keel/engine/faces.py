"""The two faces of an operation: a blocking and an async method of one plan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from langgraph_keel.engine.engine import Engine, EngineSaver
from langgraph_keel.engine.plan import Plan

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Component:
    """The operations of one subject, an attribute of savers such as `saver.keys`."""

    def __init__(self, saver: EngineSaver) -> None:
        self._saver = saver

    @property
    def engine(self) -> Engine:
        """The saver's engine, read at each call, as programs may assign `saver.serde`."""
        return self._saver.engine


class _HasEngine(Protocol):
    @property
    def engine(self) -> Engine: ...


class Pages(Protocol[T_co]):
    """A result read page by page."""

    def next(self) -> Plan[Sequence[T_co] | None]:
        """Return the next page; `None` after the last one."""
        ...


S = TypeVar("S", bound=_HasEngine)


class Method(Generic[S, P, T]):
    """A face as seen by type checkers and editors. At run time it is a plain function."""

    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[Concatenate[S, P], T]: ...
    @overload
    def __get__(self, instance: S, owner: Any) -> Callable[P, T]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """Return the method of an object."""


def faces(
    plan: Callable[Concatenate[S, P], Plan[T]], name: str = "", *, on: str = "engine"
) -> tuple[Method[S, P, T], Method[S, P, Coroutine[Any, Any, T]]]:
    """Return the blocking method and the async method of a plan.

    As in `sweep, asweep = faces(_sweep)`.

    Args:
        plan: A method that returns a plan. It may wait (`Pause`) and call blocking functions (`Call`). The blocking
            method gets its docstring.
        name: The name of the blocking method; by default that of the plan without its underscore.
        on: The attribute of the object that has the engine.
    """

    def blocking(self: S, /, *args: P.args, **more: P.kwargs) -> T:
        engine: Engine = getattr(self, on)
        return engine.run_patiently(plan(self, *args, **more))

    async def awaited(self: S, /, *args: P.args, **more: P.kwargs) -> T:
        engine: Engine = getattr(self, on)
        return await engine.arun_patiently(plan(self, *args, **more))

    _describe(plan, name, (blocking, "{}"), (awaited, "{}"))
    return cast(Any, blocking), cast(Any, awaited)


def iterator_faces(
    pages: Callable[Concatenate[S, P], Pages[T]], name: str = "", *, on: str = "engine"
) -> tuple[Method[S, P, Iterator[T]], Method[S, P, AsyncIterator[T]]]:
    """Return the blocking and the async iterator method of a result; see `faces`.

    Pages are read as needed.
    """

    def blocking(self: S, /, *args: P.args, **more: P.kwargs) -> Iterator[T]:
        engine, found = getattr(self, on), pages(self, *args, **more)
        while (page := engine.run_patiently(found.next())) is not None:
            yield from page

    async def awaited(self: S, /, *args: P.args, **more: P.kwargs) -> AsyncIterator[T]:
        engine, found = getattr(self, on), pages(self, *args, **more)
        while (page := await engine.arun_patiently(found.next())) is not None:
            for each in page:
                yield each

    _describe(pages, name, (blocking, "Iterator[{}]"), (awaited, "AsyncIterator[{}]"))
    return cast(Any, blocking), cast(Any, awaited)


def _describe(plan: Any, name: str, *both: tuple[Any, str]) -> None:
    """Give both faces their names, docstrings and signatures."""
    name = name or plan.__name__.removeprefix("_")
    _, _, result = str(plan.__annotations__.get("return", "Plan[Any]")).partition("[")
    docs = plan.__doc__, f"As `{name}`, asynchronously."
    for (face, form), called, doc in zip(both, (name, f"a{name}"), docs, strict=True):
        returned = form.format(result.removesuffix("]"))
        face.__name__, face.__doc__, face.__module__ = called, doc, plan.__module__
        face.__qualname__ = plan.__qualname__.removesuffix(plan.__name__) + called
        face.__annotations__ = {**plan.__annotations__, "return": returned}
        face.__wrapped__ = plan  # to resolve names in annotations
        face.__signature__ = signature(plan).replace(return_annotation=returned)
