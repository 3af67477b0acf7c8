"""PgBouncer, in transaction pooling mode, in front of a PostgreSQL server."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from .choice import NoServer, on_path
from .launch import Launched, runnable, running, workspace
from .postgres import version_of

MISSING = "PgBouncer: no pgbouncer on this machine. There is no wheel of it: install the package `pgbouncer`."
# `options` (such as a search path) belong to the connection, which a transaction pool shares: PgBouncer 1.18 can only
# ignore them. So a test behind it needs to name its schema, or its own database.
SETTINGS = """\
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits,options,search_path
"""


@contextmanager
def pgbouncer(postgres_url: str, *, pool_size: int = 20) -> Iterator[str]:
    """Launch PgBouncer in transaction pooling mode; return its URL.

    Args:
        postgres_url: The server behind it. Every client becomes this URL's user.
        pool_size: Maximum connections to the server, for each user and database.

    Raises:
        NoServer: If the machine has no pgbouncer.
        ServerFailed: If it does not start.
    """
    program = on_path("pgbouncer")
    if program is None:
        raise NoServer(MISSING)
    parts = conninfo_to_dict(postgres_url)
    user, database = (quote(str(parts.get(key, "postgres")), safe="") for key in ("user", "dbname"))

    def url(port: int) -> str:
        return f"postgresql://{user}@127.0.0.1:{port}/{database}"

    target = " ".join(
        f"{key}={_quoted(str(parts[key]))}" for key in ("host", "port", "user", "password") if key in parts
    )
    with (
        workspace("pgbouncer") as directory,
        running(_launched(program, directory, target, pool_size, url)) as launched,
    ):
        yield url(launched.port)


def _launched(program: Path, directory: Path, target: str, pool_size: int, url: Callable[[int], str]) -> Launched:
    settings = directory / "pgbouncer.ini"

    def command(port: int) -> list[str | Path]:
        settings.write_text(SETTINGS.format(target=target, port=port, pool_size=pool_size))
        settings.chmod(0o644)
        return [runnable(program, directory, program), settings]

    # To the server, through PgBouncer. SIGQUIT ends every version of PgBouncer immediately.
    return Launched(directory, command, lambda port: version_of(url(port)), signal.SIGQUIT, "process up")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
