"""Requests: which scripts to run, on which keys. The scripts themselves are files, one for each verb."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TypeAlias

Argument: TypeAlias = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis knows it."""

    source: str
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a script, atomic by itself.

    Attributes:
        script: Its name.
        keys: All that it touches, in one bucket, and so in one slot of a Cluster.
        args: Its arguments.
    """

    script: str
    keys: tuple[str, ...]
    args: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to the server in one go: calls that do not depend on each other.

    A verb about one thread is one call, one round trip. Only verbs about all threads have several, and a deletion, for
    what the thread has shared with others: they are pipelined, on a Cluster to each node.

    Attributes:
        calls: The calls.
        writes: Whether one of them writes.
        pattern: If it is given, there are no calls: the reply is the names of all keys that match, as SCAN has it, of
            all nodes. The server serves others in between, and takes as long as it has keys, whosever they are.
    """

    calls: tuple[Call, ...]
    writes: bool = False
    pattern: str = ""


@cache
def script(name: str) -> Script:
    """Return a script, with the shared parts that its first lines name put before it."""
    text = _text(name)
    parts = [_text(part) for part in _shared(text.splitlines())]
    source = "\n".join([*parts, text])
    # Redis names scripts so; nothing depends on how strong SHA-1 is.
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _text(name: str) -> str:
    return files(__package__).joinpath("scripts", f"{name}.lua").read_text("utf-8")


def _shared(lines: Iterable[str]) -> list[str]:
    for line in lines:
        if line.startswith("--") and "With: " in line:
            return line.partition("With: ")[2].split(", ")
    return []
