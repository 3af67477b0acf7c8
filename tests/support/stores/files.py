"""A directory for the contract, with two alternating drivers, as of two processes."""

from __future__ import annotations

import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

from langgraph_keel.backends.files.driver import AsyncFileDriver, FileDriver
from langgraph_keel.backends.files.store import FileStore
from langgraph_keel.saver import KeelSaver


class FilesUnderTest:
    """One root, opened twice."""

    def __init__(self, root: Path) -> None:
        self.root = root
        options: dict[str, Any] = {"timeout": 30, "read_only": False, "auto_setup": True, "memory": 1 << 26}
        self._drivers = [FileDriver(root, **options) for _ in range(2)]
        self._turns = cycle(self._drivers)

    def open(self, **options: Any) -> KeelSaver:
        driver = next(self._turns)
        return KeelSaver(FileStore(), driver, AsyncFileDriver(driver), **options)

    def wipe(self) -> None:
        for path in [*self.root.glob("threads/*/"), *self.root.glob("shared"), *self.root.glob("tenants/*/*")]:
            shutil.rmtree(path)

    def raw(self) -> bytes:
        files = sorted(path for path in self.root.glob("*/**/*") if path.is_file())
        return b"\n".join([part for path in files for part in (str(path).encode(), path.read_bytes())])

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()
