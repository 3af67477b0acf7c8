"""File systems that are really full."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(megabytes: int, what: str) -> Iterator[Path]:
    """A file system of this size; needs root, and the right to mount. `what` says in a skip what was not tested."""
    directory = Path(tempfile.mkdtemp(prefix="keel-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if done is None or done.returncode != 0:
        directory.rmdir()
        # Not a server that is missing: no CI can be made to have it (containers may not mount), so never a failure.
        pytest.skip(f"NOT TESTED: a full disk {what}: only root with the right to mount can make a small one")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


def fill_up(disk: Path) -> Path:
    """Have another program take all that is left; return its file."""
    other = disk / "of another program"
    handle = os.open(other, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(handle, b"x" * 4096)
    os.close(handle)
    return other
