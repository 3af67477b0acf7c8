"""A Redis Cluster of three masters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis

from .launch import PATIENCE, ServerFailed
from .redis import DURABLE, launched_redis, own_redis

SLOTS = 16_384
OPTIONS = (*DURABLE, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-node-timeout", "5000")


@contextmanager
def redis_cluster(masters: int = 3) -> Iterator[str]:
    """Launch a cluster; return the URL of a node, `redis+cluster://127.0.0.1:port`.

    Raises:
        NoServer: If there is no Redis program.
        ServerFailed: If it does not start.
    """
    _, program = own_redis()
    with ExitStack() as stack:
        ports = [stack.enter_context(launched_redis(program, OPTIONS)).port for _ in range(masters)]
        nodes = [stack.enter_context(Redis(port=port, socket_timeout=10)) for port in ports]
        _join(nodes, ports)
        _wait(nodes)
        yield f"redis+cluster://127.0.0.1:{ports[0]}"


def _join(nodes: Sequence[Redis], ports: Sequence[int]) -> None:
    """Assign its share of the slots to every node, and join the others to the first."""
    for number, node in enumerate(nodes):
        first, end = (SLOTS * part // len(nodes) for part in (number, number + 1))
        # Redis 7 has ADDSLOTSRANGE.
        command(node, "CLUSTER ADDSLOTS", *range(first, end))
        command(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
    for port in ports[1:]:
        command(nodes[0], "CLUSTER MEET", "127.0.0.1", port)


def _wait(nodes: Sequence[Redis]) -> None:
    until = time.monotonic() + PATIENCE
    while not all(_is_whole(node, len(nodes)) for node in nodes):
        if time.monotonic() > until:
            raise ServerFailed(f"the Redis Cluster is not whole: {[cluster_info(node) for node in nodes]}")
        time.sleep(0.05)


def command(node: Any, *words: object) -> Any:
    """Send commands to one node only."""
    return node.execute_command(*words)


def cluster_info(node: Redis) -> dict[str, str]:
    """Return the result of CLUSTER INFO on a node."""
    answer = command(node, "CLUSTER INFO")
    if isinstance(answer, dict):
        return answer
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    return dict(line.split(":", 1) for line in text.split())


def _is_whole(node: Redis, count: int) -> bool:
    info = cluster_info(node)
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(count)
