"""What the tables are called, and how they are made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

from langgraph_keel.errors import InvalidInput

TABLES = ("threads", "entries", "items", "floors", "batches", "format", "cells")
INDEXES = ("entries_by_seq", "entries_by_id", "entries_by_run", "cells_by_origin")
PARAMETER = re.compile(r"%\((\w+)\)s")
PARTED = {"schema.sql": ("entries", "items", "floors", "batches"), "cells.sql": ("cells",)}
"""The files that make the tables, the oldest first, and which of their tables may be partitioned."""


def quoted(name: str) -> str:
    """Return a name as SQL reads it, whatever it holds.

    Raises:
        InvalidInput: It is empty, longer than PostgreSQL keeps, or holds a NUL.
    """
    if not name or len(name.encode()) > 63 or "\0" in name:
        raise InvalidInput(f"{name!r} cannot be the name of a schema: use 1 to 63 bytes without NUL")
    return '"' + name.replace('"', '""') + '"'


class Prepared(NamedTuple):
    """A statement as the server reads it (`$1`, `$2`, ...), and the names of its parameters in that order."""

    text: bytes
    names: tuple[str, ...]


def _numbered(text: str) -> Prepared:
    # psycopg would look for the names in the text at every use: it keeps only short statements in mind.
    names = tuple(dict.fromkeys(PARAMETER.findall(text)))
    numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    return Prepared(numbered.encode(), names)


class Tables:
    """The names of the tables, in a schema or wherever the search path leads.

    Args:
        schema: The schema; `None` is the first of the connection's search path.
        partitions: Into how many hash partitions `ddl` divides the tables that grow; 0 is none.
    """

    def __init__(self, schema: str | None = None, partitions: int = 0) -> None:
        if not 0 <= partitions <= 1024:
            raise InvalidInput(f"partitions must be between 0 and 1024, not {partitions}")
        self.schema = schema
        self.partitions = partitions
        self._prefix = f"{quoted(schema)}." if schema is not None else ""
        self._prepared: dict[str, Prepared] = {}

    def prepared(self, text: str) -> Prepared:
        """Return a statement with the names of the tables in it, and its parameters by number."""
        if text not in self._prepared:
            self._prepared[text] = _numbered(self.named(text))
        return self._prepared[text]

    def named(self, text: str) -> str:
        """Return SQL with the names of the tables in it."""
        for name in TABLES:
            text = text.replace(f"{{{name}}}", f"{self._prefix}keel_{name}")
        for name in INDEXES:
            text = text.replace(f"{{{name}}}", f"keel_{name}")
        return text

    @property
    def about(self) -> str:
        """The query that tells what `ddl_for` wants to know."""
        name = (self.schema or "").replace("'", "''")
        return f"SELECT version(), EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{name}')"

    def ddl_for(self, version: str, has_schema: bool, parts: Iterable[str] = PARTED) -> str:
        """Return the statements of some files for this server; see `driver` for which refuse what."""
        lines = self._ddl(parts).splitlines()
        if has_schema:
            # Who owns a schema need not have the right to create one, which the server asks for first.
            lines = [line for line in lines if not line.startswith("CREATE SCHEMA")]
        if "CockroachDB" in version or "-YB-" in version:
            lines = [line for line in lines if "SET STORAGE" not in line]
        text = "\n".join(lines)
        return text.replace(' COLLATE "C"', "") if "CockroachDB" in version else text

    @cached_property
    def ddl(self) -> str:
        """All statements that make the tables."""
        return self._ddl(PARTED)

    def _ddl(self, parts: Iterable[str]) -> str:
        schema = [f"CREATE SCHEMA IF NOT EXISTS {self._prefix[:-1]};"] if self.schema is not None else []
        return self.named("\n".join([*schema, *map(self._part, parts)]))

    def _part(self, file: str) -> str:
        text = files(__package__).joinpath(file).read_text("utf-8")
        divided = " PARTITION BY HASH (thread_id)" if self.partitions else ""
        partitions = [
            f"CREATE TABLE {self._prefix}keel_{table}_{n} PARTITION OF {{{table}}} "
            f"FOR VALUES WITH (MODULUS {self.partitions}, REMAINDER {n});"
            for table in PARTED[file]
            for n in range(self.partitions)
        ]
        return "\n".join([text.replace("{partitioned}", divided), *partitions])
