"""Options of a run: sizes, the two savers, and their directory."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from .backend import Backend, Pair
from .report import Target
from .shapes import Shape


@dataclass(frozen=True)
class Plan:
    """The options of a run. `calibrate` compares LangGraph's saver with itself, to see the machine's noise.

    `shapes` limits the shapes that `cells` measures; empty means all.
    """

    pair: Pair
    root: Path
    messages: int = 1000
    quick: bool = False
    calibrate: bool = False
    shapes: tuple[Shape, ...] = ()

    @property
    def ours(self) -> Backend:
        return self.stand_in(self.pair.ours, self.pair.theirs or self.pair.ours)

    @property
    def sides(self) -> dict[str, Backend]:
        """Savers by side; "theirs" is missing if LangGraph has no saver for the backend."""
        theirs = {"theirs": self.pair.theirs} if self.pair.theirs else {}
        return {**theirs, "ours": self.ours}

    def stand_in(self, ours: Backend, theirs: Backend) -> Backend:
        return theirs if self.calibrate else ours

    def target(self, name: str) -> Target | None:
        return self.pair.targets.get(name)

    def rounds(self, usual: int) -> int:
        return max(3, usual // 3) if self.quick else usual

    def count(self, usual: int) -> int:
        """Return the number of threads or steps: `usual`, or a tenth of it in a quick run."""
        return max(1, usual // 10) if self.quick else usual

    def directory(self, name: str) -> Path:
        """Create a directory that is deleted at the end of the run."""
        return Path(mkdtemp(prefix=f"{name}-", dir=self.root))


def work_directory(chosen: str | None) -> "TemporaryDirectory[str]":
    """Return a temporary directory on a real disk: in /var/tmp if it exists, because /tmp may be in memory."""
    usual = "/var/tmp" if Path("/var/tmp").is_dir() else None
    return TemporaryDirectory(prefix="keel-benchmark-", dir=chosen or usual)
