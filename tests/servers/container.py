"""A server in Docker, through testcontainers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from .launch import PATIENCE, ServerFailed


@contextmanager
def container(
    image: str, port: int, command: Sequence[str], ready: Callable[[str, int], str], env: Mapping[str, str]
) -> Iterator[tuple[str, int, str]]:
    """Yield the host, the port, and the result of `ready` once it no longer raises."""
    from testcontainers.core.container import DockerContainer

    made = DockerContainer(image).with_exposed_ports(port).with_command(list(command))
    for name, value in env.items():
        made = made.with_env(name, value)
    with made as started:
        host, mapped = started.get_container_host_ip(), int(started.get_exposed_port(port))
        yield host, mapped, _answer(lambda: ready(host, mapped), image)


def _answer(ready: Callable[[], str], image: str) -> str:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ready()
        except Exception as error:
            if time.monotonic() > until:
                raise ServerFailed(f"{image} does not answer") from error
        time.sleep(0.1)
