"""The mark of a store, `keel.json`: its backend and format."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from langgraph_keel.backends.files.disk import lock, sync_directory, write_durably
from langgraph_keel.backends.files.log import MIGRATIONS, Migrations
from langgraph_keel.backends.migrations import find_due, newest
from langgraph_keel.errors import NotAKeelStore

MARK = "keel.json"


class Mark:
    """The mark of a store, in its root."""

    def __init__(self, root: Path, migrations: Migrations = MIGRATIONS) -> None:
        self.root = root
        self.migrations = migrations

    def read(self) -> int | None:
        """Return the format; during a migration, the old one; `None` if there is no mark."""
        try:
            mark = orjson.loads((self.root / MARK).read_bytes())
            found, begun_from = mark["format"], mark.get("from", mark["format"])
            if mark["keel"] != "files" or type(found) is not int or type(begun_from) is not int or begun_from < 1:
                raise ValueError(f"{mark!r:.80}")
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise NotAKeelStore(f"{self.root}: not a directory") from error
        except (ValueError, KeyError, TypeError) as error:
            raise NotAKeelStore(f"{self.root / MARK}: not written by Keel ({error})") from error
        find_due(self.migrations, found, str(self.root))
        return begun_from

    def write(self, found: int | None = None, begun_from: int | None = None) -> None:
        """Record the format of the store durably; default: the newest."""
        fields = {"keel": "files", "format": newest(self.migrations) if found is None else found}
        if begun_from is not None:
            fields["from"] = begun_from
        write_durably(self.root / MARK, orjson.dumps(fields) + b"\n")
        sync_directory(self.root)

    @contextmanager
    def hold(self, timeout: float) -> Iterator[None]:
        """Hold the lock of the directory, so that one process migrates the store."""
        handle = os.open(self.root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            lock(handle, time.monotonic() + timeout, self.root)
            yield
        finally:
            os.close(handle)
