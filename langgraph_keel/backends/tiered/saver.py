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
"""Options of a hot Redis opened by URL, which may lose its copies."""

_NOT_SET_UP = "the hot store could not be set up; the cold store answers alone until the hot one works: %s"


@publish
class TieredSaver(KeelSaver):
    """A checkpointer on two stores: all data in a cold one, copies in a hot one.

    The cold store acknowledges every write. A read of the latest checkpoint uses the copy in the hot store if the cold
    store confirms that it is of that checkpoint; the tasks' later writes come from the cold store. Losing, flushing or
    restoring the hot store therefore costs speed and never a turn, and while it is down, all reads use the cold one. A
    removal applies to both stores, and is refused if the hot one is down.

    Args:
        hot: A saver for the hot store, such as `RedisSaver(url, durability="any", ttl=86_400, timeout=1)`. This saver
            uses and closes its connections. Copies expire after its `ttl`.
        cold: A saver for the cold store, used and closed in the same way.
        copies_over: Size in bytes, approximately as stored, above which a checkpoint with its state is copied to the
            hot store (default 65,536).
        **options: `SaverOptions` lists and documents them. Pass them here; those of `hot` and `cold` are ignored.

    Raises:
        InvalidInput: If the two are the same store, read-only, a tenant's, or have their own keys (pass `encryption=`
            here); or if `copies_over` is not a number of bytes.
    """

    @takes(SaverOptions)
    def __init__(
        self, *, hot: KeelSaver, cold: KeelSaver, copies_over: int = LIGHT, **options: Unpack[SaverOptions]
    ) -> None:
        check_options(type(self), options)
        if type(copies_over) is not int or copies_over < 0:
            raise InvalidInput(f"copies_over={copies_over!r}: pass bytes, or 0 to copy each checkpoint that is read")
        for name, saver in (("hot", hot), ("cold", cold)):
            _check_tier(name, saver)
        if hot.engine.is_same_place(cold.engine) or (hot._place() and _describe(hot) == _describe(cold)):
            raise InvalidInput("hot and cold are the same store: pass two different ones")
        self._hot, self._cold, absence = hot, cold, Absence()
        options["extra_hooks"] = [*options.get("extra_hooks", ()), CopyToken()]
        super().__init__(
            TieredStore(cold.engine.session.store, hot.engine.session.store, copies_over),
            # This saver checks the keys: the savers of the tiers do not have them.
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
            # Their resources of the running loop; both stores are already closed.
            await self._hot.aclose()
            await self._cold.aclose()


def _describe(saver: KeelSaver) -> str:
    return repr(saver).strip("<>")


def _check_tier(name: str, saver: object) -> None:
    if not isinstance(saver, KeelSaver):
        raise InvalidInput(f"{name} must be a saver of Keel's, such as RedisSaver(...), not a {type(saver).__name__}")
    if saver.tenant:
        raise InvalidInput(
            f"{name} is a tenant's saver: make a TieredSaver of two whole stores, and call its for_tenant(name)"
        )
    if saver.stack.keyring is not None:
        raise InvalidInput(f"{name} has its own keys: pass encryption= to TieredSaver, which seals both stores")
    if saver.stack.mover is not None:
        raise InvalidInput(f"{name} has moving_from=: pass moving_from= to TieredSaver")
    if saver.stack.objects is not None:
        raise InvalidInput(f"{name} has its own blobs=: pass blobs= to TieredSaver, and both stores get the references")
    if saver.stack.is_read_only:
        raise InvalidInput(f"{name} is read-only: for read-only access, open the cold store alone")


def open_url(url: str, *, read_only: bool = False, **options: Any) -> KeelSaver:
    """Open `tiered:HOT,COLD`, made of two URLs; with `read_only`, only the cold store.

    As `registry.OpenUrl`; options are those of every saver. Copies in Redis expire a day after their last write.
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
