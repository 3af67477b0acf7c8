"""Notify workers in other processes of decisions, by LISTEN and NOTIFY."""

from __future__ import annotations

from langgraph_keel.backends.postgres.connection import AsyncConnection, Connection
from langgraph_keel.backends.postgres.driver import PostgresDriver

_NOTIFY = b"SELECT pg_notify('keel_approvals', '')"
_LISTEN = b"LISTEN keel_approvals"
# For cancel requests, a pooler gives its clients other process ids than the server's.
_BACKEND = b"SELECT pg_backend_pid()"


def notify(driver: PostgresDriver) -> None:
    """Notify other processes that a reviewer has decided."""

    def act(connection: Connection) -> None:
        # In the user's transaction, an error would undo more than the notice.
        if connection.autocommit:
            connection.execute(_NOTIFY, prepare=False)

    driver.retry(act)


async def anotify(driver: PostgresDriver) -> None:
    """Like `notify`, without blocking the running loop."""

    async def act(connection: AsyncConnection) -> None:
        if connection.autocommit:
            await connection.execute(_NOTIFY, prepare=False)

    await driver.aretry(act)


class Listening:
    """A connection that listens."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wait(self, seconds: float) -> None:
        """Wait for a notice, at most `seconds`."""
        for _ in self._connection.notifies(timeout=seconds, stop_after=1):
            pass

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class AsyncListening:
    """Like `Listening`, for a running loop."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def wait(self, seconds: float) -> None:
        """Like `Listening.wait`."""
        async for _ in self._connection.notifies(timeout=seconds, stop_after=1):
            pass

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


# LISTEN needs its own connection to one session of the server. Behind PgBouncer with transaction pooling it would run
# in any session, and no notice would arrive. There, and with the user's own connection or pool, workers poll.


def listen(driver: PostgresDriver) -> Listening | None:
    """Start to listen; `None` if notices cannot arrive."""
    if driver.own is None:
        return None
    connection = driver.own.connect()
    try:
        row = connection.execute(_BACKEND).fetchone()
        if row and row[0] == connection.info.backend_pid:
            connection.execute(_LISTEN)
            return Listening(connection)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


async def alisten(driver: PostgresDriver) -> AsyncListening | None:
    """Like `listen`, for the running loop."""
    if driver.own is None:
        return None
    connection = await driver.own.aconnect()
    try:
        row = await (await connection.execute(_BACKEND)).fetchone()
        if row and row[0] == connection.info.backend_pid:
            await connection.execute(_LISTEN)
            return AsyncListening(connection)
    except BaseException:
        await connection.close()
        raise
    await connection.close()
    return None
