"""Measure 8, `floors`: what the server takes for the least that could be asked of it, through the same client.

A committed INSERT of one row, and `SELECT 1`, each prepared by the client, on one connection with nothing around it.
"""

import psycopg

from .plan import Plan
from .postgres import database
from .report import Row
from .timing import interleaved, timed


def measure(plan: Plan) -> list[Row]:
    url = database(plan.directory("floors"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE floor (body bytea NOT NULL)")
        took = interleaved(
            plan.rounds(301),
            {
                "a committed INSERT of one row": lambda: timed(
                    connection.execute, "INSERT INTO floor VALUES (%s)", [b"x" * 500]
                )[0],
                "a round trip (SELECT 1)": lambda: timed(lambda: connection.execute("SELECT 1").fetchone())[0],
            },
        )
    return [Row("floors", f"the floor: {what}", None, milliseconds, "ms") for what, milliseconds in took.items()]
