"""Plausible calls with another meaning are refused early, with advice."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import langgraph_keel
from langgraph_keel import (
    FileSaver,
    InvalidInput,
    KeelSerializer,
    MemorySaver,
    RedisSaver,
    SqliteSaver,
    UnstorableValue,
    open_saver,
)
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.tables import CellTable
from langgraph_keel.testing.rig import at, checkpoint_of


@dataclass
class Listed:
    other: Any = None


@dataclass
class Unlisted:
    n: int = 1


class Impostor(Hook):
    """Would keep its records among those of another feature."""

    tables = (CellTable("labels", "a record", lambda record: [record], lambda parts: parts[0]),)


MISUSES: dict[str, tuple[Callable[[], Any], str]] = {
    "a kind of cells that another feature has": (
        lambda: MemorySaver(extra_hooks=[Impostor()]),
        "Impostor and LabelHook both keep cells of the kind 'labels': give the kind of your own feature another name",
    ),
    "one string for a list of threads": (lambda: MemorySaver().prune("abc"), r"\['abc'\]"),
    "one string for a list of runs": (lambda: MemorySaver().delete_for_runs("abc"), r"\['abc'\]"),
    "a URL for a path": (lambda: SqliteSaver("sqlite:///agent.db"), "open_saver"),
    "a URL of PostgreSQL for a path": (
        lambda: SqliteSaver.from_conn_string("postgresql://ada:secret@localhost/agents"),
        "^'postgresql:...' is a URL, not a path: use open_saver.url., or PostgresSaver$",
    ),
    "a URL of Redis for a directory": (lambda: FileSaver("redis://localhost"), "or RedisSaver"),
    "a host for a URL of Redis": (lambda: RedisSaver("localhost:6379"), "begins with redis://"),
    "a dotted name for a class": (lambda: KeelSerializer(types=["models.Order"]), "list of classes"),  # type: ignore[list-item]
    "a class for a list of classes": (lambda: MemorySaver(types=int), "list of classes"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_refused_with_advice(misuse: str) -> None:
    call, words = MISUSES[misuse]
    with pytest.raises(InvalidInput, match=words):
        call()


def test_the_package_lists_its_public_names() -> None:
    assert {"SqliteSaver", "MemorySaver", "open_saver"} <= set(dir(langgraph_keel))


@pytest.mark.parametrize(
    ("client", "extra", "url"), [("psycopg", "postgres", "postgresql://host/db"), ("redis", "redis", "redis://host")]
)
def test_a_missing_client_is_reported_with_its_install_command(client: str, extra: str, url: str) -> None:
    """Runs in its own process, without the client.

    The advice is valid even if Keel is in no package index.
    """
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needs,) = project["optional-dependencies"][extra]
    program = (
        f"import sys; sys.modules[{client!r}] = None\n"
        "import langgraph_keel\n"
        f"try: langgraph_keel.open_saver({url!r})\n"
        "except langgraph_keel.InvalidInput as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert f"needs {client}: pip install '{needs}' (Keel's extra '{extra}')" in said


def test_without_starlette_the_web_page_says_what_to_install() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = next(each for each in project["optional-dependencies"]["web"] if each.startswith("starlette"))
    program = "import sys; sys.modules['starlette'] = None; import langgraph_keel.web"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    assert said.endswith(f"the web page needs Starlette: pip install '{needs}' (Keel's extra 'web')\n")


@pytest.mark.parametrize("url", ["mysql://ada:secret@localhost/db", "host=localhost user=ada password=secret"])
def test_an_unknown_url_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput, match="names no store") as told:
        open_saver(url)
    assert "secret" not in str(told.value)
    with pytest.raises(InvalidInput, match=r"sqlite:agent\.db"):
        open_saver("sqlite:agent.db")


def test_an_unlisted_type_is_refused_before_writing() -> None:
    saver = MemorySaver(types=[Listed])
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    checkpoint: Any = {"v": 4, "id": "1", "ts": "", "channel_versions": {}, "versions_seen": {}}
    with pytest.raises(UnstorableValue, match=r"channel 'a'.*Unlisted.*add it there"):
        saver.put(config, checkpoint | {"channel_values": {"a": [Listed(Unlisted())]}}, {}, {})
    assert saver.get_tuple(config) is None
    saver.put(config, checkpoint | {"channel_values": {"a": [Listed(Listed())]}}, {}, {})
    assert saver.get_tuple(config).checkpoint["channel_values"] == {"a": [Listed(Listed())]}  # type: ignore[union-attr]


# -- options in a URL --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("sqlite:///u.db?on_drift=raise", "open_saver('sqlite:///u.db', on_drift=...)"),
        ("sqlite:///:memory:?on_drift=raise&types=", "open_saver('sqlite:///:memory:', on_drift=..., types=...)"),
        ("files:agents?git=true", "open_saver('files:agents', git=...)"),
        ("memory:?on_drift=raise", "open_saver('memory:', on_drift=...)"),
    ],
    ids=["sqlite", "in memory", "files", "memory"],
)
def test_options_in_a_url_are_refused_with_advice(
    url: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as told:
        open_saver(url)
    assert instead in str(told.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["what?", "why?because", "a?b=c/store", "there?on_drift=raise"])
@pytest.mark.parametrize("kind", [SqliteSaver, FileSaver])
def test_a_question_mark_may_be_in_a_name(
    kind: type[SqliteSaver | FileSaver], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    if "=raise" in name:
        with kind(name) as saver:  # a path is a path
            saver.setup()
    with open_saver(f"{'sqlite:///' if kind is SqliteSaver else 'files:'}{name}") as saver:
        saver.setup()
    assert path.exists()


@pytest.mark.parametrize("url", ["sqlite:///{}/agent.db", "files:///{}/agent"])
def test_files_are_accessible_only_to_their_owner(url: str, tmp_path: Path) -> None:
    """Only their owner can read the files of a thread, whatever the program's umask."""
    with open_saver(url.format(tmp_path)) as saver:
        checkpoint: Any = checkpoint_of("1", {"long": "x" * 100_000})
        config = saver.put(at(), checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})
        saver.put_writes(config, [("a", 1)], "task")
        saver.labels.set(config, "kept")
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert len(modes) >= 4
    assert modes == {path: 0o600 if mode & 0o100 == 0 else 0o700 for path, mode in modes.items()}
