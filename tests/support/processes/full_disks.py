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
    """Mount a file system of this size, as root.

    A skip names the tests that were not run (`what`).
    """
    directory = Path(tempfile.mkdtemp(prefix="keel-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if done is None or done.returncode != 0:
        directory.rmdir()
        # This is never a failure, unlike a missing server: CI may not be able to mount (containers).
        pytest.skip(f"NOT TESTED: a full disk {what}: only root with the right to mount can make a small one")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


def fill_up(disk: Path) -> Path:
    """Have another program use all remaining space; return its file."""
    other = disk / "of another program"
    handle = os.open(other, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(handle, b"x" * 4096)
    os.close(handle)
    return other
