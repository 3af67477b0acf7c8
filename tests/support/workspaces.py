"""Directories with saved files: their content as plain data, and checkpoints."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from langgraph.checkpoint.base.id import uuid6

from langgraph_keel import KeelSaver

Held: TypeAlias = dict[bytes, tuple[str, bytes]]
"""The kind (`file`, `program` or `link`) and content of each path."""

NAMES = (b"a", b"b", b"d/a", b"d/e/a", b"d", b"line\nbreak", b"\xff\xfe", b"d/\xe9", b"A", b" ", b"back\\slash", b'"')
CONTENTS = (b"", b"one\n", b"crlf\r\nline\r\n", b"mixed\r\nlines\n", bytes(range(256)), b"$Id$ text\n")
TARGETS = (b"a", b"../outside", b"/etc", b"d", b"nowhere")


def held(root: Path) -> Held:
    """Return a directory's content.

    It omits set-aside files, directories, and repositories.
    """
    found: Held = {}
    for at, folders, names in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name not in (b".keel-aside", b".git")]
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(at, each)))]:
            path = os.path.join(at, name)
            found[os.path.relpath(path, os.fsencode(root))] = look(path)
    return found


def look(path: bytes) -> tuple[str, bytes]:
    if os.path.islink(path):
        return "link", os.readlink(path)
    with open(path, "rb") as file:
        return "program" if os.access(path, os.X_OK) and os.stat(path).st_mode & 0o100 else "file", file.read()


def set_aside(root: Path) -> set[tuple[str, bytes]]:
    """Return the kinds and contents of all files that were set aside in a directory."""
    aside = root / ".keel-aside"
    return set(held(aside).values()) if aside.exists() else set()


def remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def write(root: Path, name: bytes, kind: str, content: bytes) -> None:
    """Create a file or link, replacing everything that is in the way."""
    path, parent = os.path.join(os.fsencode(root), name), os.fsencode(root)
    for part in name.split(b"/")[:-1]:
        parent = os.path.join(parent, part)
        if os.path.islink(parent) or os.path.isfile(parent):
            os.unlink(parent)
    os.makedirs(parent, exist_ok=True)
    remove(path)
    if kind == "link":
        os.symlink(content, path)
        return
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o755 if kind == "program" else 0o644)


def change(root: Path, chance: Random) -> None:
    """Change something in a directory."""
    act, name = chance.choice(("write", "write", "link", "remove", "rename", "mode", "folder")), chance.choice(NAMES)
    path = os.path.join(os.fsencode(root), name)
    if act == "write":
        write(root, name, chance.choice(("file", "program")), chance.choice(CONTENTS) + b"%d" % chance.randrange(3))
    elif act == "link":
        write(root, name, "link", chance.choice(TARGETS))
    elif act == "remove":
        remove(path)
    elif act == "rename" and (known := sorted(held(root))):
        old = chance.choice(known)
        kind, content = look(os.path.join(os.fsencode(root), old))
        remove(os.path.join(os.fsencode(root), old))
        write(root, name, kind, content)
    elif act == "mode" and os.path.isfile(path) and not os.path.islink(path):
        os.chmod(path, os.stat(path).st_mode ^ 0o111)
    elif act == "folder" and not os.path.lexists(path):
        write(root, name + b"/x", "file", b"x")


def save(saver: KeelSaver, thread_id: str = "t") -> Any:
    """Store a checkpoint; return the config that names it."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    checkpoint: Any = {
        **{"v": 4, "id": str(uuid6(clock_seq=1)), "ts": "2026-11-28T00:00:00+00:00"},
        **{"channel_values": {}, "channel_versions": {}, "versions_seen": {}},
    }
    return saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})
