"""Real servers for the tests, and a TCP proxy that breaks connections.

    with servers.postgres() as server: psycopg.connect(server.url)

There are PostgreSQL, Redis, Redis Cluster and PgBouncer. `choice` decides where a server comes from; `launch` runs
those that are not running already, in a temporary directory.
"""

from .choice import ENVIRONMENT, SHARED, NoServer
from .cluster import redis_cluster
from .launch import Launched, ServerFailed, free_port
from .pgbouncer import pgbouncer
from .postgres import PostgresServer, postgres
from .proxy import Proxy, proxy
from .redis import DURABLE, VOLATILE, RedisServer, redis
from .server import Server
from .skipping import NOT_TESTED, or_skip, required

__all__ = [
    "DURABLE",
    "ENVIRONMENT",
    "NOT_TESTED",
    "SHARED",
    "VOLATILE",
    "Launched",
    "NoServer",
    "PostgresServer",
    "Proxy",
    "RedisServer",
    "Server",
    "ServerFailed",
    "free_port",
    "or_skip",
    "pgbouncer",
    "postgres",
    "proxy",
    "redis",
    "redis_cluster",
    "required",
]
