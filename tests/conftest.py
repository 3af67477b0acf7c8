"""Fixtures that several test modules share."""

from __future__ import annotations

import gc
import inspect
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import servers
from hypothesis import given
from hypothesis.strategies import just
from redis import Redis
from servers.server import Server
from support.blocking import no_blocking
from support.cli.waiting_threads import asked
from support.cli_threads import made_store
from support.places import KINDS, Place, file_place, files_place, postgres_place, redis_place
from support.savers import BACKENDS, SAVERS, SERVERS, needing
from support.stores import each_store
from support.tiers import Tiers

from langgraph_keel import KeelSaver
from langgraph_keel.cli import app

# Child processes import the shared helpers, as the tests do (`pythonpath` in pyproject.toml).
_TESTS = Path(__file__).parent
_PATHS = (str(_TESTS), os.environ.get("PYTHONPATH", ""))
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in _PATHS if path)
# A shell starts background commands with SIGINT ignored, and child processes inherit that: `keel tail` would not end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests, and hide all objects from the garbage collector.

    A million objects in each process live to the end: scanning them repeatedly took 50 of the quick tier's 430 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        # At its first example, Hypothesis searches the collector for references to numpy's generators, and warns if
        # there are none.
        given(just(None))(lambda _: None)()
        gc.freeze()


@pytest.fixture(autouse=True)
def _no_blocking(request: pytest.FixtureRequest) -> Iterator[None]:
    """In asynchronous tests, Keel must not block the loop."""
    with no_blocking() if inspect.iscoroutinefunction(getattr(request, "function", None)) else nullcontext():
        yield


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store with a waiting thread, and a resumed and then forked one.

    The waiting thread has a hostile name.
    """
    return made_store(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="session")
def _asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("asked")
    asked(f"sqlite:///{directory / 'agent.db'}")
    return directory


@pytest.fixture
def asked_url(_asked: Path, tmp_path: Path) -> str:
    """The URL of a separate store with the threads of `support.cli.waiting_threads`."""
    copied = shutil.copytree(_asked, tmp_path / "copy")
    return f"sqlite:///{copied / 'agent.db'}"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Runs a command at a terminal with typed input; returns its exit status."""

    def run(said: str, *words: str) -> int:
        os.write(ours, said.encode())
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        return int(str(ended.value.code))

    ours, theirs = pty.openpty()
    with open(theirs) as terminal:
        yield run
    os.close(ours)


@pytest.fixture(scope="module")
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A store of each kind for the tests of a module; see `stores.each_store`."""
    for name in SERVERS:
        needing(name, request)
    with each_store(tmp_path_factory.mktemp("stores")) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.PostgresServer]:
    """The PostgreSQL server that all tests share.

    A test that kills one must use `servers.postgres(own=True)`.
    """
    with servers.or_skip(servers.postgres()) as server, handed_on("PostgreSQL", server.url):
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.RedisServer]:
    """The Redis server that all tests share.

    A test that kills one must use `servers.redis(own=True)`.
    """
    with servers.or_skip(servers.redis()) as server, handed_on("Redis", server.url):
        yield server


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """The URL of a Redis Cluster of three masters that all tests share."""
    with servers.or_skip(servers.redis_cluster()) as url:
        yield url


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_server: servers.PostgresServer) -> Iterator[str]:
    """The URL of a PgBouncer (transaction pooling) in front of `postgres_server`.

    It ignores search paths in URLs.
    """
    with servers.or_skip(servers.pgbouncer(postgres_server.url)) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: servers.PostgresServer) -> Iterator[str]:
    """The URL of `postgres_server` with a new schema in its search path."""
    schema = f"test_{uuid.uuid4().hex[:12]}"
    execute(postgres_server.url, f"CREATE SCHEMA {schema}")
    option = quote(f"-csearch_path={schema}", safe="")
    yield f"{postgres_server.url}{'&' if '?' in postgres_server.url else '?'}options={option}"
    # A test that left a transaction open must not block this forever.
    execute(postgres_server.url, "SET lock_timeout = '10s'", f"DROP SCHEMA {schema} CASCADE")


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def redis_url(redis_server: servers.RedisServer) -> str:
    """The URL of `redis_server`, whose keys all tests share: use `redis_prefix`."""
    return redis_server.url


@pytest.fixture
def redis_prefix(redis_server: servers.RedisServer) -> Iterator[str]:
    """A prefix for a test's keys (or hash tags); these keys are deleted afterwards."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    yield prefix
    with Redis.from_url(redis_server.url) as client:
        for key in client.scan_iter(match=f"*{prefix}*", count=1000):
            client.unlink(key)


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    """A saver on an empty store, on each backend."""
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        yield saver


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store that processes can share, on each backend that has one."""
    if request.param == "sqlite":
        return file_place(tmp_path)
    if request.param == "files":
        return files_place(tmp_path)
    if request.param == "postgres":
        return postgres_place(request.getfixturevalue("postgres_url"))
    return redis_place(request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix"))


@pytest.fixture(params=["postgres", "redis"])
def mortal(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Place]]:
    """A server of the test's own to be killed and restarted, and a store on it.

    The operating system keeps the writes of a killed process, so PostgreSQL need not wait for the disk here.
    """
    with servers.or_skip(servers.postgres(own=True) if request.param == "postgres" else servers.redis(own=True)) as own:
        yield own, Place(request.param, own.url)


@contextmanager
def handed_on(name: str, url: str) -> Iterator[None]:
    """Let child processes use the running server instead of starting another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(servers.SHARED[name], url)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Select the tests of one tier, and store their data in memory if possible.

    Memory is used if there is enough and TMPDIR is not set. The tests sync many thousand times: 56 tests of SQLite's
    contract took 25 s on a disk, and 11 s in memory, under load. tests/power proves from system calls that acknowledged
    data is on the disk, wherever the files are.
    """
    config.pluginmanager.register(Tiers(), "tiers")
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 4 << 30:
        return
    directory = tempfile.mkdtemp(prefix="keel-", dir=memory)
    os.chmod(directory, 0o755)  # root's servers run as another user
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Start the servers before the workers of `pytest -n`, which then share them."""
    _rewrite_asserts(config)
    stack = ExitStack()
    config.add_cleanup(stack.close)
    openings: tuple[AbstractContextManager[Server], ...] = (servers.postgres(), servers.redis())
    for name, opening in zip(("PostgreSQL", "Redis"), openings, strict=True):
        with suppress(servers.NoServer):  # the tests that need it report that
            stack.enter_context(handed_on(name, stack.enter_context(opening).url))


def _rewrite_asserts(config: pytest.Config) -> None:
    """Rewrite the asserts of all tests in two processes before a clone's first run, instead of in each worker."""
    is_done = any(_TESTS.glob(f"engine/__pycache__/test_*.{sys.implementation.cache_tag}-pytest-*"))
    if is_done or sys.dont_write_bytecode or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(_TESTS.rglob("test_*.py"), key=lambda path: path.stat().st_size)
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0"]
    halves = [subprocess.Popen([*words, *half], stdout=subprocess.DEVNULL) for half in (files[::2], files[1::2])]
    for half in halves:
        half.wait()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a prominent list of missing servers, with the number of skipped tests."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    missing = Counter(reason.partition(servers.NOT_TESTED)[2] for reason in reasons if servers.NOT_TESTED in reason)
    for what, count in missing.items():
        terminalreporter.section(
            f"{servers.NOT_TESTED}{count} test{'s' if count > 1 else ''}", sep="!", red=True, bold=True
        )
        terminalreporter.line(what)
