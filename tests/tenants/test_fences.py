"""The second fence: a database user with access to one tenant's data only."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any, TypedDict
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Identifier
from redis import Redis
from redis.exceptions import NoPermissionError
from servers import PostgresServer
from support.savers import postgres_saver

from langgraph_keel import AccessDenied, KeelSaver, PostgresSaver, RedisSaver


class State(TypedDict):
    n: int


def chat(saver: KeelSaver) -> Any:
    graph: Any = StateGraph(State).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    return graph.compile(checkpointer=saver)


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": "ada"}}


def with_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}"))


class Fenced:
    """A PostgreSQL store with two tenants, and a role with access to one of them."""

    def __init__(self, url: str, saver: PostgresSaver, role: str) -> None:
        self.url, self.saver, self.role = url, saver, role
        self.schema = str(saver.ddl).split('"')[1]

    def connect(self) -> Any:
        return psycopg.connect(with_user(self.url, self.role, "secret"), autocommit=True)

    def open(self) -> PostgresSaver:
        return PostgresSaver(with_user(self.url, self.role, "secret"), schema=self.schema)


@pytest.fixture
def fenced(postgres_server: PostgresServer) -> Iterator[Fenced]:
    url, role = postgres_server.url, f"tenant_{token_hex(4)}"
    with postgres_saver() as saver, psycopg.connect(url, autocommit=True) as admin:
        for tenant in ("acme", "beta"):
            chat(saver.for_tenant(tenant)).invoke({"n": 1}, at("t"))
            saver.for_tenant(tenant).retention.set_policy([])
        admin.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(Identifier(role)))
        for _ in range(2):  # it may be run again
            admin.execute(saver.for_tenant("acme").grants(role).encode())
        yield Fenced(url, saver, role)
        admin.execute(SQL("DROP OWNED BY {0}").format(Identifier(role)))
        admin.execute(SQL("DROP ROLE {}").format(Identifier(role)))


def test_a_database_role_can_use_its_tenant(fenced: Fenced) -> None:
    with fenced.open() as saver:
        ours = saver.for_tenant("acme")
        assert chat(ours).invoke({"n": 5}, at("t")) == {"n": 6}
        ours.copy_thread("t", "u")
        ours.prune(["t"])
        assert sorted(each.thread_id for each in ours.threads()) == ["t", "u"]
        assert ours.approvals.pending() == []
        assert sorted(ours.retention.erase("ada", reclaim=False).threads) == ["t", "u"]


def test_a_database_role_cannot_reach_other_tenants(fenced: Fenced) -> None:
    with fenced.open() as saver:
        assert (list(saver.threads()), saver.tenants.list()) == ([], ["acme"])
        theirs = saver.for_tenant("beta")
        assert (list(theirs.threads()), theirs.get_tuple(at("t"))) == ([], None)
        theirs.delete_thread("t")
        with pytest.raises(AccessDenied):
            chat(theirs).invoke({"n": 1}, at("new"))
    assert fenced.saver.for_tenant("beta").get_tuple(at("t"))
    assert [each.thread_id for each in fenced.saver.for_tenant("beta").threads()] == ["t"]


TRIES = [
    "INSERT INTO {schema}.keel_threads VALUES (chr(31) || 'beta' || chr(31) || 'x', 1, 1, 0, '', NULL)",
    "UPDATE {schema}.keel_threads SET thread_id = chr(31) || 'beta' || chr(31) || 'x'",
    "INSERT INTO {schema}.keel_cells (thread_id, kind, key, token, header, body) "
    "SELECT '', 'k', chr(31) || 'beta' || chr(31) || '', 't', '', ''",
    "SET row_security = off; SELECT * FROM {schema}.keel_threads",
    "ALTER TABLE {schema}.keel_threads DISABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON {schema}.keel_threads USING (true)",
    "SET ROLE postgres",
    "TRUNCATE {schema}.keel_entries",
    "DELETE FROM {schema}.keel_format",
    "UPDATE {schema}.keel_format SET format = 99",
    "INSERT INTO {schema}.keel_format VALUES (99)",
    "SELECT * FROM {schema}.keel_format FOR UPDATE",
    "LOCK TABLE {schema}.keel_format",
    "TRUNCATE {schema}.keel_format",
    "DROP TABLE {schema}.keel_format",
    "CREATE TABLE {schema}.keel_other (a int)",
    "CREATE FUNCTION {schema}.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE TRIGGER mine BEFORE INSERT ON {schema}.keel_cells EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE INDEX ON {schema}.keel_cells (key)",
]


@pytest.mark.parametrize("statement", TRIES)
def test_no_statement_escapes_the_role_of_a_tenant(fenced: Fenced, statement: str) -> None:
    with fenced.connect() as connection, pytest.raises(InsufficientPrivilege), connection.transaction():
        connection.execute(statement.replace("{schema}", fenced.schema))
    with PostgresSaver(fenced.url, schema=fenced.schema) as saver:  # as another process
        assert saver.for_tenant("beta").get_tuple(at("t"))


def test_temporary_tables_do_not_affect_other_sessions(fenced: Fenced) -> None:
    with fenced.connect() as connection:
        connection.execute("CREATE TEMP TABLE keel_format (format int)")
        connection.execute("CREATE TEMP TABLE keel_threads (LIKE pg_class)")
        with PostgresSaver(fenced.url, schema=fenced.schema) as saver, fenced.open() as theirs:
            assert saver.for_tenant("beta").get_tuple(at("t"))
            assert theirs.for_tenant("acme").get_tuple(at("t"))


@pytest.mark.parametrize("table", ["threads", "entries", "items", "floors", "batches", "cells"])
def test_a_role_cannot_read_change_or_delete_rows_of_others(fenced: Fenced, table: str) -> None:
    name = f"{fenced.schema}.keel_{table}"
    with psycopg.connect(fenced.url) as admin, fenced.connect() as connection:
        mine = "thread_id LIKE chr(31) || 'acme' || chr(31) || '%'"
        mine = f"({mine} OR key LIKE chr(31) || 'acme' || chr(31) || '%')" if table == "cells" else mine
        others = f"SELECT count(*), coalesce(sum(hashtext({table}::text)), 0) FROM {name} {table} WHERE NOT {mine}"
        before = admin.execute(others.encode()).fetchone()
        assert connection.execute(f"SELECT count(*) FROM {name} WHERE NOT {mine}".encode()).fetchone() == (0,)
        connection.execute(f"UPDATE {name} SET thread_id = thread_id".encode())
        connection.execute(f"DELETE FROM {name}".encode())
        assert admin.execute(others.encode()).fetchone() == before


def test_a_redis_user_reaches_only_its_tenant(redis_url: str, redis_prefix: str) -> None:
    """As `tenants/README.md` documents."""
    user = f"acme{token_hex(4)}"
    space = f"acme#{redis_prefix}:*"
    rights = f"resetchannels +@all -@admin -@dangerous +info +config|get ~{space} &{space}"
    with Redis.from_url(redis_url) as admin, RedisSaver(redis_url, prefix=redis_prefix, durability="any") as saver:
        chat(saver.for_tenant("beta")).invoke({"n": 1}, at("t"))
        format_key = (
            "%R" if int(admin.info("server")["redis_version"].split(".")[0]) >= 7 else ""
        ) + f"~{redis_prefix}:keel"
        admin.execute_command("ACL", "SETUSER", user, "on", ">secret", *rights.split(), format_key)
        try:
            url = with_user(redis_url, user, "secret")
            with RedisSaver(url, prefix=redis_prefix, durability="any") as theirs:
                ours = theirs.for_tenant("acme")
                assert chat(ours).invoke({"n": 1}, at("t")) == {"n": 2}
                assert [each.thread_id for each in ours.threads()] == ["t"]
                with pytest.raises(AccessDenied):
                    theirs.for_tenant("beta").get_tuple(at("t"))
                with pytest.raises(AccessDenied):
                    theirs.get_tuple(at("t"))
            with Redis.from_url(url) as client, pytest.raises(NoPermissionError):
                client.get(f"beta:{redis_prefix}:anything")
            assert saver.for_tenant("beta").get_tuple(at("t"))
        finally:
            admin.execute_command("ACL", "DELUSER", user)
            for key in admin.scan_iter(match=f"acme#{redis_prefix}:*", count=1000):
                admin.unlink(key)
