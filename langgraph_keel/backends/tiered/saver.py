"""TieredSaver: one saver on two stores, and its URL."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from langgraph_keel.backends.registry import find_opener, refuse_url
from langgraph_keel.backends.tiered.driver import Absence, AsyncTieredDriver, TieredDriver
from langgraph_keel.backends.tiered.store import LIGHT, CopyToken, TieredStore
from langgraph_keel.engine.engine import bare
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, StoreError
from langgraph_keel.options import SaverOptions, check_options, takes
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.approvals.notices import AsyncSource, Source
    from langgraph_keel.retention.check import Finding
    from langgraph_keel.retention.info import StoreFacts
    from langgraph_keel.retention.reclaim import Reclaimed

_log = logging.getLogger(__name__)
_SCHEME = "tiered:"
_BETWEEN = re.compile(r",(?=[a-z][a-z0-9+]*://|files:|memory:)")
_REDIS: dict[str, Any] = {"durability": "any", "allow_eviction": True, "timeout": 1.0, "ttl": 86_400}
"""How Redis is opened by URL where it is hot: what it loses is copies."""

_NOT_SET_UP = "the hot store could not be set up, and the cold one answers alone until it can be used: %s"


@publish
class TieredSaver(KeelSaver):
    """A checkpointer on two stores: a cold one that has all, and a hot one that has copies of latest checkpoints.

    A put is acknowledged by the cold store. A read of the latest checkpoint uses the copy in the hot store if the cold
    store confirms that it is of that very checkpoint; what tasks have written since comes from the cold store. So a hot
    store that was lost, flushed or put back to an earlier time costs speed and never a turn, and while it is away, all
    is read from the cold one. What is removed goes from both; if the hot store is away, a removal is refused.

    Args:
        hot: A saver for the hot store, such as `RedisSaver(url, durability="any", ttl=86_400, timeout=1)`. Its
            connections are used and closed by this one; how long copies live is its own `ttl`.
        cold: A saver for the cold store, in the same way.
        copies_over: Bytes that a checkpoint takes with its state, about as they are stored, above which it is copied to
            the hot store (65,536).
        **options: `SaverOptions` lists and documents them. They are given here; those that `hot` and `cold` have count
            for neither.

    Raises:
        InvalidInput: The two are one, read-only, a tenant's, or have keys of their own (`encryption=` is given here);
            or `copies_over` is no number of bytes.
    """

    @takes(SaverOptions)
    def __init__(
        self, *, hot: KeelSaver, cold: KeelSaver, copies_over: int = LIGHT, **options: Unpack[SaverOptions]
    ) -> None:
        check_options(type(self), options)
        if type(copies_over) is not int or copies_over < 0:
            raise InvalidInput(f"copies_over={copies_over!r}: give bytes, 0 for a copy of each checkpoint that is read")
        for name, saver in (("hot", hot), ("cold", cold)):
            _check_tier(name, saver)
        if hot.engine.is_same_place(cold.engine) or (hot._place() and _describe(hot) == _describe(cold)):
            raise InvalidInput("hot and cold are one store: copies would stand beside what they are copies of")
        self._hot, self._cold, absence = hot, cold, Absence()
        options["extra_hooks"] = [*options.get("extra_hooks", ()), CopyToken()]
        super().__init__(
            TieredStore(cold.engine.session.store, hot.engine.session.store, copies_over),
            # This saver makes the check for keys: those of the tiers do not know the keys.
            TieredDriver(bare(cold.engine.driver), bare(hot.engine.driver), absence),
            AsyncTieredDriver(bare(cold.engine.async_driver), bare(hot.engine.async_driver), absence),
            is_async_only=cold.stack.is_async_only or hot.stack.is_async_only,
            **options,
        )

    def _setup(self) -> None:
        self._cold._setup()
        try:
            self._hot._setup()
        except StoreError as error:
            _log.warning(_NOT_SET_UP, error)

    async def _asetup(self) -> None:
        await self._cold._asetup()
        try:
            await self._hot._asetup()
        except StoreError as error:
            _log.warning(_NOT_SET_UP, error)

    def _migrations(self) -> list[str]:
        return self._cold._migrations()

    async def _amigrations(self) -> list[str]:
        return await self._cold._amigrations()

    @property
    def ddl(self) -> str:
        """The SQL that `setup` runs on the cold store."""
        return self._cold.ddl

    def grants(self, role: str) -> str:
        """The SQL that lets a role of the cold database use the tables."""
        return self._cold.grants(role)

    def _notify(self) -> None:
        self._cold._notify()

    async def _anotify(self) -> None:
        await self._cold._anotify()

    def _listen(self) -> Source | None:
        return self._cold._listen()

    async def _alisten(self) -> AsyncSource | None:
        return await self._cold._alisten()

    def _place(self) -> str:
        return f"{_describe(self._hot)} before {_describe(self._cold)}"

    def _facts(self) -> StoreFacts:
        from langgraph_keel.retention.info import StoreFacts

        cold = self._cold._facts()
        place = f"{cold.backend} {cold.place}, and copies in {_describe(self._hot)}"
        return StoreFacts("tiered", place, cold.format, cold.durability)

    def _check(self) -> Iterable[Finding]:
        return self._cold._check()

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return self._cold._reclaim(full=full, scrub=scrub)

    async def _areclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return await self._cold._areclaim(full=full, scrub=scrub)

    def _weight(self) -> int | None:
        return self._cold._weight()

    def _elsewhere(self) -> Sequence[str]:
        return [*self._cold._elsewhere(), *self._hot._elsewhere()]

    def _close(self) -> None:
        self._hot.close()
        self._cold.close()

    async def aclose(self) -> None:
        """As `close`, asynchronously."""
        await super().aclose()
        if self.tenant is None:
            # What they have in the running loop. By now, both are closed.
            await self._hot.aclose()
            await self._cold.aclose()


def _describe(saver: KeelSaver) -> str:
    return repr(saver).strip("<>")


def _check_tier(name: str, saver: object) -> None:
    if not isinstance(saver, KeelSaver):
        raise InvalidInput(f"{name} must be a saver of Keel's, such as RedisSaver(...), not a {type(saver).__name__}")
    if saver.tenant:
        raise InvalidInput(
            f"{name} is a tenant's: make a TieredSaver of two whole stores, and use its for_tenant(name)"
        )
    if saver.stack.keyring is not None:
        raise InvalidInput(f"{name} has keys of its own: give encryption= to TieredSaver, which seals what both hold")
    if saver.stack.mover is not None:
        raise InvalidInput(f"{name} moves threads in by itself: give moving_from= to TieredSaver")
    if saver.stack.objects is not None:
        raise InvalidInput(f"{name} has objects of its own: give blobs= to TieredSaver, and both have the references")
    if saver.stack.is_read_only:
        raise InvalidInput(f"{name} is read-only: to look only, open the cold store alone")


def open_url(url: str, *, read_only: bool = False, **options: Any) -> KeelSaver:
    """Open `tiered:HOT,COLD`, of two URLs. Who only looks gets the cold store alone, which has all.

    As `registry.OpenUrl`; options are those of every saver. Copies in Redis live a day after they were last written.
    """
    hot_url, cold_url = split_url(url)
    open_hot, open_cold = find_opener(hot_url), find_opener(cold_url)
    if read_only:
        return open_cold(cold_url, read_only=True, **options)
    check_options(TieredSaver, options)
    is_redis = open_hot.__module__.startswith("langgraph_keel.backends.redis")
    return TieredSaver(hot=open_hot(hot_url, **(_REDIS if is_redis else {})), cold=open_cold(cold_url), **options)


def split_url(url: str) -> tuple[str, str]:
    """Return the URLs of the hot store and of the cold one."""
    parts = _BETWEEN.split(url.removeprefix(_SCHEME), maxsplit=1)
    if not url.startswith(_SCHEME) or len(parts) != 2 or any(part.startswith(_SCHEME) for part in parts):
        raise refuse_url(url)
    return parts[0], parts[1]
