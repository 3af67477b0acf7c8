"""A pytest plugin that runs LangGraph's own tests against Keel's savers.

It takes the fixtures `sync_checkpointer` and `async_checkpointer` out of LangGraph's conftest (in memory: no
file is edited), offers its own in their place, and leaves only the tests that use them. In an unpacked source
distribution of langgraph:

    PYTHONPATH=<this repository>/tests python -m pytest -p upstream.plugin tests

`KEEL_UPSTREAM_SAVERS` names the savers, comma separated (`langgraph_memory,langgraph_sqlite` are LangGraph's
own, to compare; `_aes` after a name encrypts), and `KEEL_UPSTREAM_REPORT` a file for the results, as JSON.
"""

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.language_models import base
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver as LangGraphAsyncSqliteSaver
from savers import postgres_saver, redis_saver

from langgraph_keel import FileSaver, MemorySaver, SqliteSaver

# LangGraph's conftest, imported after this plugin, reads it: no test then needs a server.
os.environ["NO_DOCKER"] = "true"

# `test_weather_subgraph` spells out the metadata of a model call as it is on a machine without the package `langchain`,
# which our own tests need. With it, that test fails on LangGraph's own savers too (langgraph 1.2.22).
cast(Any, base)._get_langchain_version = lambda: None

FACES = {"sync_checkpointer": "sync", "async_checkpointer": "async"}

# Tests that cannot run here: the start of the node id, and why. Only what LangGraph's own savers fail too.
EXCLUDED: dict[str, str] = {}

Saver = BaseCheckpointSaver[Any]


@asynccontextmanager
async def as_async(opening: AbstractContextManager[Saver]) -> AsyncIterator[Saver]:
    """A saver of ours has both faces; what keeps its store apart from others need not be async."""
    with opening as saver:
        yield saver


SYNC: dict[str, Callable[[Path], AbstractContextManager[Saver]]] = {
    "keel_memory": lambda _: MemorySaver(),
    "keel_sqlite": lambda directory: SqliteSaver.from_conn_string(str(directory / "keel.db")),
    "keel_files": lambda directory: FileSaver(directory / "files"),
    "keel_postgres": lambda _: postgres_saver(),
    "keel_redis": lambda _: redis_saver(),
    "langgraph_memory": lambda _: nullcontext(InMemorySaver()),
    "langgraph_sqlite": lambda _: LangGraphSqliteSaver.from_conn_string(":memory:"),
}

ASYNC: dict[str, Callable[[Path], AbstractAsyncContextManager[Saver]]] = {
    "keel_memory": lambda _: MemorySaver(),
    "keel_sqlite": lambda directory: SqliteSaver.from_conn_string(str(directory / "keel.db")),
    "keel_files": lambda directory: FileSaver(directory / "files"),
    "keel_postgres": lambda _: as_async(postgres_saver()),
    "keel_redis": lambda _: as_async(redis_saver()),
    "langgraph_memory": lambda _: nullcontext(InMemorySaver()),
    "langgraph_sqlite": lambda _: LangGraphAsyncSqliteSaver.from_conn_string(":memory:"),
}

# LangGraph's snapshots are of graphs, not of checkpoints; only tests with its InMemorySaver compare them, and
# find them by the id of the test.
CHOSEN = [
    pytest.param(name, id="memory" if name == "langgraph_memory" else name)
    for name in os.environ.get("KEEL_UPSTREAM_SAVERS", "keel_memory,keel_sqlite").split(",")
]


def with_serializer(saver: Saver, name: str) -> Saver:
    """As LangGraph's `sqlite_aes` does it; otherwise the saver keeps the serializer it made for itself."""
    if name.endswith("_aes"):
        saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456")
    return saver


@pytest.fixture(params=CHOSEN)
def sync_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Saver]:
    with SYNC[request.param.removesuffix("_aes")](tmp_path) as saver:
        yield with_serializer(saver, request.param)


@pytest.fixture(params=CHOSEN)
async def async_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Saver]:
    async with ASYNC[request.param.removesuffix("_aes")](tmp_path) as saver:
        yield with_serializer(saver, request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Before pytest looks for fixtures in LangGraph's conftest."""
    if getattr(plugin, "__name__", "") == "tests.conftest":
        for fixture in FACES:
            delattr(plugin, fixture)


def face_of(item: pytest.Item) -> str | None:
    """The face of the saver that a test uses."""
    fixtures = getattr(item, "fixturenames", ())
    return next((face for fixture, face in FACES.items() if fixture in fixtures), None)


def wanted(item: pytest.Item) -> bool:
    return face_of(item) is not None and not item.nodeid.startswith(tuple(EXCLUDED))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    for item in items:
        item.user_properties.append(("face", face_of(item)))
    config.hook.pytest_deselected(items=others)
    config.stash[results].deselected = len(others)


class Results:
    """What became of the tests; under xdist every process has one, and the first hears of all tests."""

    def __init__(self) -> None:
        self.deselected = 0
        self.passed: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = f"{report.when}: {why(report)}"
        elif report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr)
        elif report.when == "call":
            self.passed[str(dict(report.user_properties)["face"])] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker tells the first process how much it left out; that one writes the report."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["deselected"] = self.deselected
        elif path := os.environ.get("KEEL_UPSTREAM_REPORT"):
            Path(path).write_text(json.dumps(vars(self)), "utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.deselected = getattr(node, "workeroutput", {}).get("deselected", self.deselected)


results = pytest.StashKey[Results]()


def why(report: pytest.TestReport) -> str:
    """The last line of what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext)[:1000]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[results] = Results()
    config.pluginmanager.register(config.stash[results])
