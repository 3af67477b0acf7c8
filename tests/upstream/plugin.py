"""A pytest plugin that runs tests of LangGraph and related packages on Keel's savers.

It removes the fixtures `sync_checkpointer` and `async_checkpointer` from their conftest (in memory: no file is edited)
and provides its own. It also replaces LangGraph's savers by Keel's, because many tests create one themselves
(`stand_in`). Only the tests that use either are run. In an unpacked source distribution of langgraph:

    PYTHONPATH=<this repository>/tests python -m pytest -p upstream.plugin tests

`KEEL_UPSTREAM_SAVER` names the saver. For comparison, `langgraph_memory` and `langgraph_sqlite` are LangGraph's own;
the stand-in is then InMemorySaver itself. `_aes` after a name encrypts. `KEEL_UPSTREAM_REPORT` names a file for the
results, as JSON.
"""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import servers
from langchain_core.language_models import base
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver as LangGraphAsyncSqliteSaver
from support.savers import redis_saver

from langgraph_keel import FileSaver, MemorySaver, SqliteSaver
from upstream import stand_in

# LangGraph's conftest, imported after this plugin, reads it: no test then needs a server.
os.environ["NO_DOCKER"] = "true"

# `test_weather_subgraph` expects the metadata of a model call on a machine without the package `langchain`, which our
# own tests need. With it, that test fails on LangGraph's own savers too (langgraph 1.2.22).
cast(Any, base)._get_langchain_version = lambda: None  # private: no option does this

FACES = {"sync_checkpointer": "sync", "async_checkpointer": "async"}

# Tests of features that only LangGraph's savers have: a pattern for the beginning of the node id, and the reason.
UNREVIVABLE = (
    "stores an object of a class that is made inside the test, which nobody could revive: ours refuses it, LangGraph's "
    "hand back a dict"
)
EXCLUDED: dict[str, str] = {
    # langgraph
    "tests/test_channels.py::test_delta_channel_snapshot_version_based": "reads InMemorySaver.blobs",
    "tests/test_delta_channel_update_state.py::test_bulk_update_state_replays_updates_in_the_order_given": (
        "its saver sorts what it reads from InMemorySaver.writes"
    ),
    "tests/test_delta_channel_supersteps_bound.py::test_anever_written_channel_is_not_walked": (
        "counts the async calls of get_delta_channel_history, which InMemorySaver hands to the sync one; "
        "test_never_written_channel_is_not_walked, which counts the sync ones, is run"
    ),
    "tests/test_pregel_async.py::test_checkpoint_errors": (
        "wants the very error of a serializer; ours reaches the caller as the cause of an UnstorableValue, which names "
        "the thread and the channel; tests/test_pregel.py::test_checkpoint_errors, which has no such serializer, is run"
    ),
    # langgraph-checkpoint
    "tests/test_memory.py::TestInMemorySaverDeltaChannel::test_(load_blobs|get_channel_writes)_": (
        "reads InMemorySaver.blobs and .storage"
    ),
    # langgraph-checkpoint-sqlite
    "tests/test_sqlite.py::TestSqliteSaver::test_informative_async_errors": (
        "wants no async methods of the blocking saver; ours has both faces"
    ),
    "tests/test_sqlite.py::TestSqliteSaver::test_checkpoint_search_sql_injection_prevention": (
        "wants an error of a filter whose key is no word; no SQL is made of ours, which then find nothing"
    ),
    "tests/test_sqlite.py::TestSqliteSaver::test_metadata_filter_keys_with_hyphens_and_digits": (
        "takes a dot in the key of a filter for a path; for ours and InMemorySaver it is part of the name"
    ),
    "tests/test_delta_parent_walk.py::test_walk_step_looks_up_the_parent_by_primary_key": "explains LangGraph's SQL",
    "tests/test_writes_task_path_migration.py": "migrates LangGraph's tables",
    # langgraph-checkpoint-postgres
    r"tests/.*\[(aio_)?pipe\]": "LangGraph's option `pipe`; Keel has none, and one round trip for a put without it",
    "tests/test_prune.py::(?!test_prune_conformance|test_keep_latest_keeps_writes)": "reads LangGraph's tables",
    "tests/test_(a?sync).py::test_get_checkpoint_no_channel_values": "replaces a private method",
    "tests/test_delta_pagination.py::test_a?sync_walk_reads_nothing_newer_than_the_target": "replaces a private method",
    "tests/test_delta_plain_value_seed.py::test_inline_primitive_seed_is_found": (
        "wants None to be no value of a delta channel; for ours and InMemorySaver it is one"
    ),
    "tests/test_sync.py::test_nonnull_migrations": "reads PostgresSaver.MIGRATIONS",
    # langchain, deepagents
    "tests/unit_tests/agents/test_response_format.py::TestResponseFormatAsToolStrategy::"
    "test_structured_response_not_stale_across_checkpointed_turns": UNREVIVABLE,
    "tests/unit_tests/test_subagents.py::TestSubAgents::"
    "test_parallel_subagents_with_different_structured_outputs": UNREVIVABLE,
}
if os.environ.get("LANGGRAPH_STRICT_MSGPACK") == "true":
    EXCLUDED[
        "tests/test_delta_channel_exit_mode.py::"
        "test_exit_resume_retried_after_its_final_checkpoint_fails_reruns_the_resumed_task"
    ] = "sets an attribute of its saver, of which a graph has a copy when msgpack is strict; InMemorySaver fails it too"

if "delta_channel_history" not in {capability.value for capability in Capability}:
    EXCLUDED["tests/test_conformance_delta.py"] = "needs a later langgraph-checkpoint-conformance"

RACES = {
    "tests/test_retry.py::test_error_handler_resumes_after_crash_multiple_nodes": (
        "if two error handlers fail at once, LangGraph gives the writes of a task to a pool that it has shut down, and "
        "runs the task again at the next start: 23 times of 3,289 with its own SqliteSaver"
    )
}
"""Tests that fail by chance with any saver: one of TRIES must pass."""
TRIES = 5

Saver = BaseCheckpointSaver[Any]


@asynccontextmanager
async def as_async(opening: AbstractContextManager[Saver]) -> AsyncIterator[Saver]:
    """Open a saver of ours, which has both faces, from a synchronous context manager."""
    with opening as saver:
        yield saver


SYNC: dict[str, Callable[[Path], AbstractContextManager[Saver]]] = {
    "keel_memory": lambda _: MemorySaver(),
    "keel_sqlite": lambda directory: SqliteSaver.from_conn_string(str(directory / "keel.db")),
    "keel_sqlite-memory": lambda _: SqliteSaver.from_conn_string(":memory:"),
    "keel_files": lambda directory: FileSaver(directory / "files"),
    "keel_postgres": lambda _: stand_in.SCHEMAS.saver(),
    "keel_redis": lambda _: redis_saver(),
    "langgraph_memory": lambda _: nullcontext(InMemorySaver()),
    "langgraph_sqlite": lambda _: LangGraphSqliteSaver.from_conn_string(":memory:"),
}

ASYNC: dict[str, Callable[[Path], AbstractAsyncContextManager[Saver]]] = {
    "keel_memory": lambda _: MemorySaver(),
    "keel_sqlite": lambda directory: SqliteSaver.from_conn_string(str(directory / "keel.db")),
    "keel_sqlite-memory": lambda _: SqliteSaver.from_conn_string(":memory:"),
    "keel_files": lambda directory: FileSaver(directory / "files"),
    "keel_postgres": lambda _: as_async(stand_in.SCHEMAS.saver()),
    "keel_redis": lambda _: as_async(redis_saver()),
    "langgraph_memory": lambda _: nullcontext(InMemorySaver()),
    "langgraph_sqlite": lambda _: LangGraphAsyncSqliteSaver.from_conn_string(":memory:"),
}

NAME = os.environ.get("KEEL_UPSTREAM_SAVER", "keel_memory")
# LangGraph's snapshots are of graphs, not of checkpoints; only tests with its InMemorySaver compare them, and find them
# by the id of the test.
CHOSEN = [pytest.param(NAME, id="memory" if NAME == "langgraph_memory" else NAME)]


def with_serializer(saver: Saver, name: str) -> Saver:
    """Set the serializer as LangGraph's `sqlite_aes` does, or keep the saver's own."""
    if name.endswith("_aes"):
        saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456")
    return saver


STORES = stand_in.Stores()
MADE_BY_TESTS: type = InMemorySaver
if NAME.startswith("keel_"):
    MADE_BY_TESTS = stand_in.stand_in(NAME.removesuffix("_aes"), STORES, lambda saver: with_serializer(saver, NAME))
    stand_in.put_in_place(MADE_BY_TESTS, STORES)


@pytest.fixture(autouse=True)
def stores_of_savers_that_the_test_makes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    with STORES.of_a_test(tmp_path):
        yield
    request.node.user_properties.append(("made", STORES.made))


@pytest.fixture(params=CHOSEN)
def sync_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Saver]:
    with SYNC[request.param.removesuffix("_aes")](tmp_path) as saver:
        yield with_serializer(saver, request.param)


@pytest.fixture(params=CHOSEN)
async def async_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Saver]:
    async with ASYNC[request.param.removesuffix("_aes")](tmp_path) as saver:
        yield with_serializer(saver, request.param)


# Tests that rely on or measure tenths or hundredths of a second. For them, time passes slower by this factor, since a
# busy machine may easily lose a tenth of a second.
SLOWED = {
    "test_imp_nested": 20,
    "test_imp_task": 10,
    "test_in_one_fan_out_state_graph": 3,
    "test_nested_graph_interrupts_parallel": 3,
    "test_stream_buffering_single_node": 5,
    "test_stream_subgraphs_during_execution": 5,
}


@pytest.fixture(autouse=True)
def slow_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    name = request.node.originalname
    factor = SLOWED.get("test_in_one_fan_out_state_graph" if name.startswith("test_in_one_fan_out") else name)
    if factor is None:
        return
    sleep, asleep, counter = time.sleep, asyncio.sleep, time.perf_counter
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds * factor))
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *result: asleep(seconds * factor, *result))
    for module in (time, request.module):
        monkeypatch.setattr(module, "perf_counter", lambda: counter() / factor, raising=False)


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Change a conftest before pytest reads its fixtures, and tests its server URLs."""
    if not getattr(plugin, "__name__", "").endswith(".conftest"):
        return
    for fixture in FACES:
        vars(plugin).pop(fixture, None)
    if url := os.environ.get(servers.SHARED["PostgreSQL"]):
        vars(plugin).update(DEFAULT_URI=url, DEFAULT_POSTGRES_URI=url.rpartition("/")[0] + "/")


def face_of(item: pytest.Item) -> str | None:
    """Return the face of a test's saver, "own" if the test creates one, or `None`."""
    given = getattr(item, "fixturenames", ())
    face = next((face for fixture, face in FACES.items() if fixture in given), None)
    return face or ("own" if any(stand_in.names(each, MADE_BY_TESTS) for each in code_of(item)) else None)


def code_of(item: pytest.Item) -> Iterator[Any]:
    """Yield the functions of a test: itself, its fixtures, its parameters."""
    yield getattr(item, "function", None)
    # private: pytest has no public name for it
    for definitions in cast(Any, item)._fixtureinfo.name2fixturedefs.values():
        yield from (definition.func for definition in definitions)
    yield from getattr(getattr(item, "callspec", None), "params", {}).values()


def reason(item: pytest.Item) -> str | None:
    """Return why a test is excluded, if it is."""
    return next((why for start, why in EXCLUDED.items() if re.match(start, item.nodeid)), None)


def try_again(run: Callable[[], None]) -> None:
    for _ in range(TRIES - 1):
        with suppress(AssertionError):
            return run()
    run()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = config.stash[results]
    faces = {item: face for item in items if (face := face_of(item))}
    if NAME.startswith("keel_"):
        found.excluded = {item.nodeid: why for item in faces if (why := reason(item))}
    wanted = [item for item in faces if item.nodeid not in found.excluded]
    found.deselected = len(items) - len(faces)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(wanted)])
    items[:] = wanted
    for item in items:
        item.user_properties.append(("face", faces[item]))
        if item.nodeid in RACES:
            item.runtest = partial(try_again, item.runtest)  # type: ignore[method-assign]


class Results:
    """The results of the tests; with xdist, only the main process sees all tests."""

    def __init__(self) -> None:
        self.deselected = 0
        self.excluded: dict[str, str] = {}
        self.idle: list[str] = []
        self.uncollected: dict[str, str] = {}
        self.passed: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected[report.nodeid] = why(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = f"{report.when}: {why(report)}"
        elif report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr)
        elif report.when == "teardown" and report.nodeid not in self.skipped and report.nodeid not in self.failed:
            told = dict(report.user_properties)
            if told["face"] == "own" and NAME.startswith("keel_") and not told["made"]:
                self.idle.append(report.nodeid)
            else:
                self.passed[str(told["face"])] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report excluded tests to the main process, which writes the report."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left out"] = self.deselected, self.excluded
        elif path := os.environ.get("KEEL_UPSTREAM_REPORT"):
            Path(path).write_text(json.dumps(vars(self)), "utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.deselected, self.excluded = getattr(node, "workeroutput", {}).get(
            "left out", (self.deselected, self.excluded)
        )


results = pytest.StashKey[Results]()


def why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the last line of an error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext)[:1000]


def pytest_unconfigure() -> None:
    stand_in.SCHEMAS.drop()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "flaky: of a plugin that tries again, which no test with a saver needs")
    config.stash[results] = Results()
    config.pluginmanager.register(config.stash[results])
