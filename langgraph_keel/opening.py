"""Opening a saver by URL, and importing an application's classes by module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Unpack

from langgraph_keel.backends.registry import find_opener, url_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput
from langgraph_keel.options import OpenOptions, SqliteOptions, check_values, options_of
from langgraph_keel.saver import KeelSaver


@publish
def open_saver(url: str, *, read_only: bool = False, **options: Unpack[OpenOptions]) -> KeelSaver:
    """Open a saver by URL, or by the path of a database file or a directory.

        open_saver("sqlite:///agent.db", on_drift="raise", graph_version="1.4")

    Options are keyword arguments. A URL may contain only options of the server, such as PostgreSQL's
    `?schema=agents`. The command line accepts the same URLs.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`, `postgresql://user@host/database`,
            `redis://host:6379/0` (`rediss://` with TLS, `redis+cluster://` for a cluster, `unix://` for a socket),
            `files:relative` or `files:/absolute` (a directory), `memory:`, or `tiered:HOT,COLD` of two of these; or a
            URL of a backend that another package adds (`langgraph_keel.backends.registry`). A path without a scheme
            names an existing directory, or a SQLite database: an existing file, or a name that ends in `.db` or
            `.sqlite`.
        read_only: Never write, and do not create a missing store.
        **options: The options of the saver that the URL names (a backend of another package may take more than are
            typed here).

    Returns:
        A saver, to be closed by `with`, `async with` or `close()`.

    Raises:
        InvalidInput: If the URL names no backend, or a backend whose client library is not installed; or if a URL of
            SQLite, files or memory contains options.
        NotFound: If the store does not exist, and `read_only` is set.
    """
    check_values({"read_only": read_only}, options_of(SqliteOptions))
    url = url_of(url)
    return find_opener(url)(url, read_only=read_only, **options)


def import_classes(module: str, asked_by: str) -> list[type]:
    """Return the classes of a module, or of a package and the submodules that it imports."""
    _import(module, asked_by)
    names = [name for name in sys.modules if name == module or name.startswith(f"{module}.")]
    return [cls for name in names for cls in _classes_in(sys.modules[name], name)]


def _classes_in(holder: ModuleType | type, module: str, within: str = "") -> Iterator[type]:
    for name, each in vars(holder).items():
        if isinstance(each, type) and (each.__module__, each.__qualname__) == (module, within + name):
            yield each
            yield from _classes_in(each, module, f"{within}{name}.")


def _import(module: str, asked_by: str) -> None:
    sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(f"{asked_by} {module}: {error}") from error
    finally:
        sys.path.remove("")
