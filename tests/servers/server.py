"""A server's URL and source, and the means to kill it if the tests started it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .choice import How
from .launch import Launched


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: Its address.
        how: Its source.
        version: The version that it reports.
        launched: The process, if we have started it.
    """

    url: str
    how: How
    version: str
    launched: Launched | None = None

    @property
    def owned(self) -> bool:
        """Whether we may kill it."""
        return self.launched is not None

    @property
    def host(self) -> str:
        """The host of the URL."""
        return urlsplit(self.url).hostname or "localhost"

    @property
    def port(self) -> int:
        """The port of the URL."""
        port = urlsplit(self.url).port
        assert port, f"{self.url} has no port"
        return port

    @property
    def directory(self) -> Path:
        """Its working directory, with its log and data."""
        return self._own.directory

    @property
    def pid(self) -> int:
        """The id of the current process, or else of the last one."""
        return self._own.pid

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._own.kill()

    def stop(self) -> None:
        """Stop it cleanly."""
        self._own.stop()

    def restart(self) -> None:
        """Start it again on the same port with its data, after stopping it if it runs."""
        self._own.restart()

    @property
    def _own(self) -> Launched:
        assert self.launched, f"the server at {self.url} is not ours to kill (from: {self.how}); ask for own=True"
        return self.launched
