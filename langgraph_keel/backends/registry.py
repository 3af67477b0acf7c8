"""Finds backends by URL scheme: Keel's own, and those of other packages.

An entry point in the group `langgraph_keel.backends` has a scheme as its name and an `OpenUrl` as its object:

    [project.entry-points."langgraph_keel.backends"]
    mem2 = "keel_mem2:open_url"

A scheme of Keel's own always means Keel's own backend.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from langgraph_keel.engine.plan import is_in_loop
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph_keel.saver import KeelSaver

GROUP = "langgraph_keel.backends"
"""The group of entry points through which other packages add backends."""

_DATABASE = re.compile(r".+\.(db|sqlite|sqlite3)", re.IGNORECASE)
_OPTIONS = re.compile(r"(.*)\?(\w+=[^/&]*(?:&\w+=[^/&]*)*)", re.DOTALL)


class OpenUrl(Protocol):
    """The function of a backend that opens a URL."""

    def __call__(self, url: str, *, read_only: bool = False, **options: Any) -> KeelSaver:
        """Return a saver for the store at `url`."""
        ...


class Backend(NamedTuple):
    """A backend of Keel's own; it is imported at its first use."""

    package: str
    saver: str
    schemes: tuple[str, ...]
    example: str
    client: str = ""  # the library that it needs, if Keel does not install it
    extra: str = ""
    needs: str = ""  # the library's requirement for pip, which also works in an index without Keel
    alias: str = ""  # LangGraph's name of the saver

    @property
    def is_installed(self) -> bool:
        """Whether its client library is installed."""
        return not self.client or find_spec(self.client) is not None

    def load(self, name: str) -> Any:
        """Import a name from the backend's package."""
        try:
            return getattr(import_module(self.package), name)
        except ModuleNotFoundError as error:
            if self.client and (error.name or "").partition(".")[0] == self.client:
                advice = f"pip install '{self.needs}' (Keel's extra {self.extra!r})"
                error.msg = f"{self.saver} needs {self.client}: {advice}"
            raise


BACKENDS = (
    Backend(
        "langgraph_keel.backends.sqlite",
        "SqliteSaver",
        ("sqlite",),
        "sqlite:///relative.db, sqlite:////absolute/path.db",
        alias="AsyncSqliteSaver",
    ),
    Backend(
        "langgraph_keel.backends.postgres",
        "PostgresSaver",
        ("postgresql", "postgres"),
        "postgresql://...",
        client="psycopg",
        extra="postgres",
        needs="psycopg[binary,pool]>=3.2.3",
        alias="AsyncPostgresSaver",
    ),
    Backend(
        "langgraph_keel.backends.redis",
        "RedisSaver",
        ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix"),
        "redis://...",
        client="redis",
        extra="redis",
        needs="redis>=8",
        alias="AsyncRedisSaver",
    ),
    Backend("langgraph_keel.backends.files", "FileSaver", ("files",), "files:directory"),
    Backend(
        "langgraph_keel.backends.tiered", "TieredSaver", ("tiered",), "tiered:redis://...,postgresql://... (hot, cold)"
    ),
    Backend("langgraph_keel.backends.memory", "MemorySaver", ("memory",), "memory:"),
)
"""All backends of Keel's own, in the order of error messages."""


def url_of(store: str) -> str:
    """Return the URL of the store at a path; any other text unchanged."""
    if not isinstance(store, str) or ":" in store or not store:
        return store
    # A running loop must not wait for a disk, so only the ending of a path counts there.
    can_look = not is_in_loop()
    if can_look and os.path.isdir(store):
        return f"files:{store}"
    is_database = _DATABASE.fullmatch(store) or (can_look and os.path.isfile(store))
    return f"sqlite:///{store}" if is_database else store


def find_backend(url: str) -> Backend | None:
    """Return Keel's own backend for a URL; `None` for a path or another scheme."""
    scheme, colon, _ = url.partition(":")
    return next((backend for backend in BACKENDS if colon and scheme in backend.schemes), None)


def find_opener(url: str) -> OpenUrl:
    """Return the function that opens a URL."""
    scheme = url.partition(":")[0]
    opener: OpenUrl
    if backend := find_backend(url):
        try:
            opener = backend.load("open_url")
        except ModuleNotFoundError as error:
            raise InvalidInput(str(error)) from error
        return opener
    for entry_point in entry_points(group=GROUP, name=scheme):
        place = f"the backend for {entry_point.name}: ({entry_point.value})"
        try:
            opener = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise InvalidInput(f"{place} cannot be imported: {error}") from error
        if not callable(opener):
            raise InvalidInput(f"{place} is not a function that opens a URL")
        return opener
    raise refuse_url(url)


def refuse_url(url: str) -> InvalidInput:
    """Return the error for a wrong URL: lists valid ones, and shows no password."""
    scheme, is_url, _ = url.partition("://")
    name = (f"{scheme}:..." if is_url else "the given text") if "@" in url or "=" in url else url
    own = {scheme for backend in BACKENDS for scheme in backend.schemes}
    others = sorted({entry_point.name for entry_point in entry_points(group=GROUP)} - own)
    *examples, last = [*(backend.example for backend in BACKENDS), *(f"{scheme}:..." for scheme in others)]
    missing = "" if ":" in url else ", and no file or directory of that name was found"
    return InvalidInput(f"{name!r} names no store{missing}: use {', '.join(examples)} or {last}")


def path_in(url: str, prefix: str) -> str:
    """Return the path after `prefix` in a URL without options."""
    path = url.removeprefix(prefix)
    match = _OPTIONS.fullmatch(url)
    if match and not os.path.lexists(path):
        names = (option.partition("=")[0] for option in match[2].split("&"))
        options = ", ".join(f"{name}=..." for name in names)
        raise InvalidInput(f"{match[1]}?...: such URLs take no options; write open_saver({match[1]!r}, {options})")
    if not url.startswith(prefix):
        raise refuse_url(url)
    return path
