"""Opening a database: are Keel's tables there, of a format this version reads, and if not, may they be made?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from langgraph_keel.core.plan import Plan
from langgraph_keel.errors import NewerFormat, NotAKeelStore, NotFound, NotSetUp, StoreError
from langgraph_keel.postgres.tables import PARTED, Tables

FORMAT = 1
MISSING = {"42P01", "3F000"}  # undefined_table, invalid_schema_name
FOREIGN = {"42703", "42883"}  # undefined_column, undefined_function (an operator for other types)
DENIED = {"42501", "25006"}  # insufficient_privilege, read_only_sql_transaction
# Somebody else creates the same at this moment, and was first: unique_violation and internal_error ("tuple concurrently
# updated") of the catalogs, duplicate table, object and schema, serialization_failure, deadlock_detected.
RIVALLED = {"23505", "XX000", "42P07", "42710", "42P06", "40001", "40P01"}
TRIES = 8

Rows: TypeAlias = list[Any]


def opened(tables: Tables, where: str, *, create: bool, read_only: bool) -> Plan[str, Rows, None]:
    """Make sure that the tables are there: yields SQL to be run as it stands, and is sent its rows.

    Raises:
        NotFound: Not all are, and `read_only`.
        NotSetUp: Not all are, and they shall not or may not be created.
        NewerFormat: A newer Keel made them.
        NotAKeelStore: Tables of these names belong to something else.
    """
    for _ in range(TRIES):
        missing = yield from _missing(tables, where)
        if not missing:
            return
        what = "there are no tables of Keel" if "schema.sql" in missing else "an older Keel made no keel_cells"
        if read_only:
            raise NotFound(f"{where}: {what}")
        if not create:
            raise NotSetUp(f"{where}: {what}: call setup(), or {_how(tables)}")
        yield from _create(tables, where, missing, what)
    raise NotAKeelStore(
        f"{where}: a table or type with the name of one of Keel's ({', '.join(_names(tables))}) is there, "
        "but keel_format is not: use another schema="
    )


def _missing(tables: Tables, where: str) -> Plan[str, Rows, Sequence[str]]:
    """Return the files of `PARTED` that are still to be run."""
    formats = yield from _asked(tables, where, "format", "SELECT format FROM {format}")
    if formats is None:
        return [*PARTED]
    _check_format(formats, where)
    cells = yield from _asked(tables, where, "cells", "SELECT token FROM {cells} LIMIT 0")
    return ["cells.sql"] if cells is None else []


def _asked(tables: Tables, where: str, table: str, query: str) -> Plan[str, Rows, Rows | None]:
    """Return the rows of a query, `None` if its table is not there."""
    try:
        rows = yield tables.named(query)
    except StoreError as error:
        state = _sqlstate(error)
        if state in MISSING:
            return None
        if state in FOREIGN:
            raise NotAKeelStore(f"{where}: the table keel_{table} is not Keel's: use another schema=") from error
        raise
    return rows


def _sqlstate(error: StoreError) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def _check_format(rows: Rows, where: str) -> None:
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise NotAKeelStore(f"{where}: the table keel_format is not Keel's: use another schema=")
    if rows[0][0] > FORMAT:
        raise NewerFormat(
            f"{where}: written in format {rows[0][0]}, and this Keel knows {FORMAT}: upgrade langgraph-keel"
        )


def _create(tables: Tables, where: str, missing: Sequence[str], what: str) -> Plan[str, Rows, None]:
    try:
        ((version, has_schema),) = yield tables.about
        yield tables.ddl_for(version, has_schema, missing)
    except StoreError as error:
        state = _sqlstate(error)
        if state in DENIED:
            text = f"{where}: {what}, and this user may not create them ({error}): {_how(tables)}"
            raise NotSetUp(text) from error
        if state not in RIVALLED:
            raise


def _how(tables: Tables) -> str:
    first = next(line for line in tables.ddl.splitlines() if line.startswith("CREATE"))
    return (
        "let somebody who may run the statements that `keel schema --url postgresql://... --print` prints "
        f"(the first is `{first.rstrip(' (')}`)"
    )


def _names(tables: Tables) -> list[str]:
    prefix = f"{tables.schema}." if tables.schema else ""
    return [f"{prefix}keel_{name}" for name in ("threads", "entries", "items", "floors", "batches", "cells")]
