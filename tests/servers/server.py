"""What a test gets: a server's URL, where it came from and, of our own, the means to kill it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .choice import How
from .launch import Launched


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: Where it is.
        how: Where it came from.
        version: What it says its version is.
        launched: The process, if we have started it.
    """

    url: str
    how: How
    version: str
    launched: Launched | None = None

    @property
    def owned(self) -> bool:
        """Whether it is ours to kill."""
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
        """Where it runs, and its log and data are."""
        return self._own.directory

    @property
    def pid(self) -> int:
        """The process id; of the one that ran last, if none does."""
        return self._own.pid

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._own.kill()

    def stop(self) -> None:
        """End it orderly."""
        self._own.stop()

    def restart(self) -> None:
        """Start it again, on the same port and with the data it had, after an orderly stop if it runs."""
        self._own.restart()

    @property
    def _own(self) -> Launched:
        assert self.launched, f"the server at {self.url} is not ours to kill (from: {self.how}); ask for own=True"
        return self.launched
