"""Cells in PostgreSQL: races with another writer, the cost of a hit, lost replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import servers
from support.backends.postgres_puts import rows, run, with_options
from support.saver_parts import driver_of

from langgraph_keel import PostgresSaver
from langgraph_keel.backends.postgres import store as cells
from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.testing.contract_cells import cell
from langgraph_keel.testing.faults import Counter, with_tap

SHELF, SHARED = Shelf("t", "tool"), Shelf(None, "tool")
TRANSACTION_ID = "SELECT txid_current_if_assigned()"


def verb(saver: Any, name: str, *args: Any) -> Any:
    return saver.engine.run(getattr(saver.engine.session.store, name)(*args))


def swap(saver: Any, expected: str | None, new: Cell | None, shelf: Shelf = SHELF, key: str = "k") -> Swapped:
    swapped: Swapped = verb(saver, "swap_cell", shelf, key, expected, new)
    return swapped


def held(saver: Any, shelf: Shelf = SHELF, key: str = "k") -> Cell | None:
    found: Cell | None = verb(saver, "read_cells", shelf, [key]).get(key)
    return found


@pytest.fixture
def saver(postgres_url: str) -> Iterator[PostgresSaver]:
    with PostgresSaver(postgres_url) as saver:
        saver.setup()
        yield saver


# -- during another writer's transaction -------------------------------------------------------------------------------


@contextmanager
def transaction(url: str) -> Iterator[tuple[psycopg.Connection[Any], PostgresSaver]]:
    """Yield a connection in a transaction that stays open, and a saver on it."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1")
        yield connection, PostgresSaver(connection)


def meets(url: str, ending: str, theirs: Callable[[Any], Any], ours: Callable[[], Any]) -> Any:
    """Run `ours` until a transaction of `theirs` blocks it, end that, return the result."""
    with transaction(url) as (connection, other), ThreadPoolExecutor(1) as pool:
        theirs(other)
        waiting = pool.submit(ours)
        blocked = f"SELECT 1 FROM pg_stat_activity WHERE {connection.info.backend_pid} = ANY (pg_blocking_pids(pid))"
        while not rows(url, blocked):
            assert not waiting.done()
        getattr(connection, ending)()
        return waiting.result(20)


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_one_of_two_claims_of_an_empty_cell_wins(
    postgres_url: str, saver: PostgresSaver, ending: str, level: str
) -> None:
    url = with_options(postgres_url, f"-cdefault_transaction_isolation={level.replace(' ', chr(92) + ' ')}")
    with PostgresSaver(url) as second:
        swapped = meets(
            postgres_url, ending, lambda other: swap(other, None, cell("1")), lambda: swap(second, None, cell("2"))
        )
    assert swapped == (Swapped(False, cell("1")) if ending == "commit" else Swapped(True))
    assert held(saver) == cell("1" if ending == "commit" else "2")


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("new", [cell("3"), cell("1", b"renewed"), None], ids=["taken over", "renewed", "emptied"])
@pytest.mark.parametrize("winner", [cell("2"), None], ids=["after a take-over", "after a release"])
def test_a_swap_of_the_holder_races_with_another_swap(
    postgres_url: str, saver: PostgresSaver, winner: Cell | None, new: Cell | None, ending: str, level: str
) -> None:
    """A swap that keeps its token must not mistake the other swap for its own."""
    swap(saver, None, cell("1"))
    url = with_options(postgres_url, f"-cdefault_transaction_isolation={level.replace(' ', chr(92) + ' ')}")
    with PostgresSaver(url) as second:
        swapped = meets(postgres_url, ending, lambda other: swap(other, "1", winner), lambda: swap(second, "1", new))
    if ending == "rollback" or winner is new is None:
        assert swapped == Swapped(True)
        assert held(saver) == new
    else:
        assert swapped == Swapped(False, winner)
        assert held(saver) == winner


def test_a_swap_that_lost_a_race_takes_two_round_trips(postgres_url: str, saver: PostgresSaver) -> None:
    counter = Counter()
    counted = with_tap(saver, counter)
    meets(postgres_url, "commit", lambda other: swap(other, None, cell("1")), lambda: swap(counted, None, cell("2")))
    assert counter.taken() == 2
    assert swap(counted, None, cell("2")) == Swapped(False, cell("1"))
    assert counter.taken() == 1


@pytest.mark.parametrize("theirs", [cell("2", origin="t"), cell("2", origin="u")], ids=["own", "of another"])
@pytest.mark.parametrize("shelf", [SHELF, SHARED], ids=["of the thread", "shared"])
def test_a_deletion_races_with_a_swap(postgres_url: str, saver: PostgresSaver, shelf: Shelf, theirs: Cell) -> None:
    """The changed row for which it waits is deleted, too; another thread's is not."""
    swap(saver, None, cell("1", origin="t"), shelf)
    meets(postgres_url, "commit", lambda other: swap(other, "1", theirs, shelf), lambda: saver.delete_thread("t"))
    assert held(saver, shelf) == (theirs if shelf is SHARED and theirs.origin != "t" else None)


# -- the cost of a hit -------------------------------------------------------------------------------------------------

REFUSED = [(None, cell("2")), ("0", cell("2")), ("0", None), (None, None), (None, cell("1"))]


@pytest.mark.parametrize(("expected", "new"), REFUSED, ids=["claim", "replace", "empty", "look", "again"])
def test_a_swap_without_effect_writes_and_locks_nothing(
    postgres_url: str, saver: PostgresSaver, expected: str | None, new: Cell | None
) -> None:
    """A transaction that writes or locks a row gets an id, whose commit is synced."""
    swap(saver, None, cell("1"))
    with transaction(postgres_url) as (connection, inside):
        swapped = swap(inside, expected, new)
        assert swapped == (Swapped(True) if new == cell("1") else Swapped(False, cell("1")))
        assert connection.execute(TRANSACTION_ID).fetchone() == (None,)
        swap(inside, "1", cell("2"))
        assert connection.execute(TRANSACTION_ID).fetchone() != (None,)


@pytest.mark.parametrize(("expected", "new"), REFUSED, ids=["claim", "replace", "empty", "look", "again"])
def test_a_swap_without_effect_does_not_wait_for_locks(
    postgres_url: str, saver: PostgresSaver, expected: str | None, new: Cell | None
) -> None:
    swap(saver, None, cell("1"))
    with transaction(postgres_url) as (_, other):
        swap(other, "1", cell("9"))
        with PostgresSaver(with_options(postgres_url, "-clock_timeout=100ms")) as quick:
            assert swap(quick, expected, new).cell == (None if new == cell("1") else cell("1"))


@pytest.mark.parametrize("partitions", [0, 4])
@pytest.mark.parametrize("shares", ["n", "n % 3"], ids=["of many threads", "of few"])
def test_a_deletion_uses_indexes(postgres_url: str, shares: str, partitions: int) -> None:
    """The number of shared cells does not matter."""
    fill = f"INSERT INTO keel_cells SELECT '', 'tool', 'k' || n, 't', 'o' || {shares}, NULL, 0, NULL, NULL, '', ''"
    with PostgresSaver(postgres_url, partitions=partitions) as saver, psycopg.connect(postgres_url) as connection:
        saver.setup()
        swap(saver, None, cell("1"))
        swap(saver, None, cell("1", origin="t"), SHARED)
        connection.execute(f"{fill} FROM generate_series(1, 5000) n; ANALYZE keel_cells".encode())
        statement = driver_of(saver).tables.prepare(cells.DELETE_OF_THREAD)
        assert statement.names == ("thread",)
        lines = psycopg.RawCursor(connection).execute(b"EXPLAIN (ANALYZE) " + statement.text, ["t"]).fetchall()
        plan = "\n".join(line for (line,) in lines)
        assert "Rows Removed" not in plan
        assert "origin" in plan
        assert connection.execute("SELECT count(*) FROM keel_cells").fetchone() == (5000,)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a\0b", "\1", "x\0" * 400, "é" * 200, "~" + "x" * 400, "'; --"])
def test_a_thread_of_any_name_can_have_and_share_cells(saver: PostgresSaver, name: str) -> None:
    of_thread = Shelf(name, "tool")
    mine, shared = cell("1"), cell("2", origin=name)
    swap(saver, None, mine, of_thread)
    swap(saver, None, shared, SHARED)
    swap(saver, None, cell("3", origin=name + "x"), SHARED, "other")
    swap(saver, None, cell("4", origin=name), Shelf("another thread", "tool"))
    assert held(saver, of_thread) == mine
    assert swap(saver, None, cell("9"), SHARED) == Swapped(False, shared)
    assert verb(saver, "list_cells", SHARED, "k", None, 5)[0][1].origin == name
    saver.delete_thread(name)
    assert held(saver, of_thread) is None
    assert [key for key, _ in verb(saver, "list_cells", SHARED, "", None, 5)] == ["other"]
    assert held(saver, Shelf("another thread", "tool")) == cell("4", origin=name)


@pytest.mark.parametrize("size", [20, 400, 600, 5000])
def test_cells_are_read_back_byte_for_byte(postgres_url: str, saver: PostgresSaver, size: int) -> None:
    """A small frame is stored in a shorter form."""
    new = cell("1", (b'{"type": "tool", "content": "additional_kwargs response_metadata tool_call_id"}' * 99)[:size])
    swap(saver, None, new)
    assert held(saver) == new
    ((stored,),) = rows(postgres_url, "SELECT length(body) FROM keel_cells")
    assert stored < len(new.body) if size in (400, 600) else stored == len(new.body)


# -- on the wire -------------------------------------------------------------------------------------------------------


@pytest.fixture
def proxied(postgres_url: str, saver: PostgresSaver) -> Iterator[tuple[servers.Proxy, PostgresSaver]]:
    parts = urlsplit(postgres_url)
    assert parts.hostname
    assert parts.port
    with (
        servers.proxy(parts.hostname, parts.port) as between,
        PostgresSaver(between.url_for(postgres_url), timeout=20) as through,
    ):
        held(through)
        yield between, through


def test_a_hit_and_a_miss_take_one_round_trip_each(proxied: tuple[servers.Proxy, PostgresSaver]) -> None:
    proxy, saver = proxied

    def call(n: int) -> list[int]:
        before = proxy.round_trips
        assert swap(saver, None, cell("1"), key=f"k{n}").done
        assert swap(saver, "1", cell("2", b"result" * 9999), key=f"k{n}").done
        assert not swap(saver, None, cell("3"), key=f"k{n}").done
        assert swap(saver, "2", None, key=f"k{n}").done
        return [proxy.round_trips - before]

    assert [call(n) for n in range(4)] == [[4]] * 4


@pytest.mark.parametrize("cut", ["cut_before_reply", "cut_before_request"])
@pytest.mark.parametrize(
    ("expected", "new"), [(None, cell("2")), ("1", cell("2")), ("1", None)], ids=["claim", "replace", "empty"]
)
def test_a_swap_is_recognized_after_a_lost_reply(
    proxied: tuple[servers.Proxy, PostgresSaver], cut: str, expected: str | None, new: Cell | None
) -> None:
    proxy, saver = proxied
    if expected:
        swap(saver, None, cell("1"))
    getattr(proxy, cut)()
    assert swap(saver, expected, new) == Swapped(True)
    assert held(saver) == new


def test_cells_work_behind_pgbouncer(pgbouncer_url: str) -> None:
    """With transaction pooling, one of many wins, and none receives another's reply."""
    with PostgresSaver(pgbouncer_url, schema="cells_behind", prepare_threshold=None) as saver:
        try:
            with ThreadPoolExecutor(12) as pool:
                swapped = list(pool.map(lambda n: swap(saver, None, cell(f"n{n}"), key=f"k{n % 20}"), range(200)))
            assert sum(reply.done for reply in swapped) == 20
            assert all(reply.cell == held(saver, key=f"k{n % 20}") for n, reply in enumerate(swapped) if not reply.done)
        finally:
            run(pgbouncer_url, "DROP SCHEMA cells_behind CASCADE")
