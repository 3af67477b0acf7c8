"""Objects in a bucket (S3, GCS, Azure), by the package obstore."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from langgraph_keel.blobs.objects import (
    CopyObjects,
    Fetch,
    Listed,
    ListObjects,
    MakeFolder,
    ObjectRequest,
    Remove,
    Upload,
)
from langgraph_keel.errors import AccessDenied, InvalidInput, StoreError, StoreUnavailable

T = TypeVar("T")
S = TypeVar("S")
AT_ONCE = 16
"""Maximum number of concurrent transfers of one request."""

_CLIENT = {"connect_timeout": "5s", "timeout": "120s"}
_RETRY: Any = {"max_retries": 3}
"""Retries after 0.1 to 15 s. Reports an outage in one minute, not in three (obstore's ten retries)."""
_forked: list[int] = []
"""Id of the first process that used obstore. A process forked later lacks its threads and would wait for them forever
(obstore 0.12)."""


def open_bucket(url: str) -> BucketObjects:
    """Return the bucket of a URL that `check_blobs` has checked."""
    options: Any = dict(_CLIENT)
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes"):
        options["allow_http"] = True
    try:
        store = from_url(url, client_options=options, retry_config=_RETRY)
    except (BaseError, ValueError) as error:
        raise InvalidInput(f"blobs={url}: {_first_line(error)}") from None
    return BucketObjects(store, url)


class BucketObjects:
    """Keeps objects in a bucket."""

    exempt: Sequence[str] = (
        "Deleted objects (blobs=) in a bucket with versions, replicas or backups, until the bucket's own rules remove "
        "them.",
    )

    def __init__(self, store: Any, place: str) -> None:
        self._store = store
        self.place = place
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, request: ObjectRequest) -> Any:
        """See `Objects.send`."""
        _check_process(self.place)
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=_run_loop, args=(self._loop,), name="keel-objects", daemon=True).start()
            waiting = asyncio.run_coroutine_threadsafe(self.send_async(request), self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    async def send_async(self, request: ObjectRequest) -> Any:
        """See `Objects.send_async`."""
        _check_process(self.place)
        try:
            return await self._carry_out(request)
        except (BaseError, OSError, ValueError) as error:
            status = re.search(r"status code: (\d+)", str(error))
            code = status[1] if status else ""
            if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in ("401", "403"):
                why = f"{self.place}: access is denied: {_first_line(error)}"
                raise AccessDenied(why) from None
            if isinstance(error, FileNotFoundError) or code == "404":
                raise StoreUnavailable(f"{self.place}: the bucket does not exist") from None
            kind = StoreUnavailable if isinstance(error, BaseError) else StoreError
            raise kind(f"{self.place}: {_first_line(error)}") from None

    def close(self) -> None:
        """See `Objects.close`."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    async def _carry_out(self, request: ObjectRequest) -> Any:
        match request:
            case Upload(bodies):
                await _each(self._put, bodies.items())
            case Fetch(sizes):
                read = await _each(self._get, sizes.items())
                return {name: body for name, body in zip(sizes, read, strict=True) if body is not None}
            case CopyObjects(names):
                done = await _each(self._copy, names.items())
                return [name for name, is_there in zip(names, done, strict=True) if not is_there]
            case Remove(names):
                await self._remove(names)
            case ListObjects(folder):
                found = await obstore.list(self._store, folder).collect_async()
                return [Listed(each["path"], int(each["last_modified"].timestamp() * 1000)) for each in found]
            case MakeFolder():
                pass

    async def _put(self, named: tuple[str, bytes]) -> None:
        # In one piece: parts of an interrupted upload would stay in the bucket, and no listing shows them.
        await obstore.put_async(self._store, *named, use_multipart=False)

    async def _get(self, named: tuple[str, int]) -> bytes | None:
        name, size = named
        try:
            found = await obstore.get_async(self._store, name)
        except FileNotFoundError:
            return None
        return bytes(await found.bytes_async()) if found.meta["size"] == size else b""

    async def _copy(self, names: tuple[str, str]) -> bool:
        try:
            await obstore.copy_async(self._store, *names)
        except FileNotFoundError:
            return False
        return True

    async def _remove(self, names: Collection[str]) -> None:
        try:
            await obstore.delete_async(self._store, list(names))
        except FileNotFoundError:  # some places raise it for an object that is already gone, and keep the others
            await _each(self._remove_one, names)

    async def _remove_one(self, name: str) -> None:
        with suppress(FileNotFoundError):
            await obstore.delete_async(self._store, name)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _each(work: Callable[[T], Awaitable[S]], items: Iterable[T]) -> list[S]:
    """Apply a function to items concurrently; the first error cancels the others."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> S:
        async with gate:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _check_process(place: str) -> None:
    if not _forked:
        _forked.append(os.getpid())
    elif _forked[0] != os.getpid():
        raise StoreUnavailable(
            f"{place}: this process was forked from one that has used a bucket, so it cannot use one: start it with "
            "multiprocessing.set_start_method('spawn')"
        )


def _first_line(error: BaseException) -> str:
    # Only the first line, and no queries: the URLs of some requests contain signatures.
    line = str(error).split("\n", 1)[0].split(": <?xml", 1)[0]
    return re.sub(r"(https?://[^\s?]*)\?\S*", r"\1?...", line)[:500]
