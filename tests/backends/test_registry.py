"""Backends of other packages: `open_saver` and the CLI need only an entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cli_threads import keel, keel_json

from langgraph_keel import InvalidInput, open_saver
from langgraph_keel.backends.registry import BACKENDS, GROUP
from langgraph_keel.backends.sqlite import SqliteSaver

MEM2 = '''
"""Stores in memory that live as long as the process, by name."""

from langgraph_keel import KeelSaver
from langgraph_keel.backends.memory.saver import AsyncMemoryDriver, MemoryDriver
from langgraph_keel.backends.memory.store import MemoryStore
from langgraph_keel.backends.registry import refuse_url

DRIVERS = {}


class Mem2Saver(KeelSaver):
    pass


def open_url(url, *, read_only=False, **options):
    name = url.removeprefix("mem2://")
    if not name:
        raise refuse_url(url)
    driver = DRIVERS.setdefault(name, MemoryDriver())
    return Mem2Saver(MemoryStore(), driver, AsyncMemoryDriver(driver), **options)
'''
CONFIG: Any = {"configurable": {"thread_id": "ada", "checkpoint_ns": ""}}
CHECKPOINT: Any = {
    "v": 4,
    "id": "1",
    "ts": "2026-11-23T00:00:00+00:00",
    "channel_values": {"n": 7},
    "channel_versions": {"n": 1},
    "versions_seen": {},
}
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with one module and one entry point, as pip does."""

    def install(module: str, source: str, scheme: str, value: str) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{GROUP}]\n{scheme} = {value}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def test_another_package_adds_a_backend(install: Install) -> None:
    install("keel_mem2", MEM2, "mem2", "keel_mem2:open_url")
    with open_saver("mem2://shop", on_conflict="fork") as saver:
        assert type(saver).__name__ == "Mem2Saver"
        saver.put(CONFIG, CHECKPOINT, {}, {})
    (thread,) = keel_json("threads", "--url", "mem2://shop")["threads"]
    assert thread["thread_id"] == "ada"
    assert "ada" in keel("threads", "--url", "mem2://shop").stdout
    assert keel_json("threads", "--url", "mem2://empty")["threads"] == []


def test_the_scheme_of_another_package_is_listed_in_the_error(install: Install) -> None:
    install("keel_mem2", MEM2, "mem2", "keel_mem2:open_url")
    for url in ("mysql://host/db", "mem2://"):
        with pytest.raises(InvalidInput, match=r"names no store: use sqlite:///.*, memory: or mem2:\.\.\.$"):
            open_saver(url)
    assert "mem2:..." in keel_json("threads", "--url", "mysql://host/db", status=2)["error"]["message"]


def test_stores_of_another_package_can_be_checked(install: Install) -> None:
    install("keel_mem2", MEM2, "mem2", "keel_mem2:open_url")
    assert keel_json("check", "--url", "mem2://shop") == {"findings": [], "clean": True}


def test_another_package_cannot_replace_a_scheme_of_keel(install: Install, tmp_path: Path) -> None:
    install("keel_mem2", MEM2, "sqlite", "keel_mem2:open_url")
    with open_saver(f"sqlite:///{tmp_path}/a.db") as saver:
        assert isinstance(saver, SqliteSaver)


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ("import no_such_client", "keel_odd:open_url", "odd.*cannot be imported: No module named 'no_such_client'"),
        ("", "keel_odd:open_url", "odd.*cannot be imported: .*no attribute 'open_url'"),
        ("open_url = 1", "keel_odd:open_url", "odd.*is not a function"),
    ],
    ids=["a client is missing", "no such name", "no function"],
)
def test_a_backend_that_cannot_be_loaded_is_named(install: Install, source: str, value: str, words: str) -> None:
    install("keel_odd", source, "odd", value)
    with pytest.raises(InvalidInput, match=words):
        open_saver("odd://")


@pytest.mark.slow
def test_backends_are_imported_on_first_use() -> None:
    """Neither the package nor another backend imports backends or clients.

    The test runs in a separate process.
    """
    packages = [backend.package for backend in BACKENDS if backend.saver != "MemorySaver"]
    modules = [*packages, "psycopg", "redis", "sqlite3"]
    program = (
        "import sys, langgraph_keel\n"
        "langgraph_keel.open_saver('memory:').close()\n"
        f"print([name for name in {modules} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
