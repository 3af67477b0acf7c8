"""What a run measures: sizes, the two savers, and where they may write."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from .backend import Backend, Pair
from .report import Target
from .shapes import Shape


@dataclass(frozen=True)
class Plan:
    """The options of a run; `calibrate` puts LangGraph's saver in both places, to see the machine's noise.

    `shapes` are those that `cells` measures; all, if there are none.
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
        """The savers by where they stand; "theirs" is not there where LangGraph has none."""
        theirs = {"theirs": self.pair.theirs} if self.pair.theirs else {}
        return {**theirs, "ours": self.ours}

    def stand_in(self, ours: Backend, theirs: Backend) -> Backend:
        return theirs if self.calibrate else ours

    def target(self, name: str) -> Target | None:
        return self.pair.targets.get(name)

    def rounds(self, usual: int) -> int:
        return max(3, usual // 3) if self.quick else usual

    def count(self, usual: int) -> int:
        """How many threads or steps: as usual, or a tenth of that in a quick run."""
        return max(1, usual // 10) if self.quick else usual

    def directory(self, name: str) -> Path:
        """A new directory on the disk, gone when the run ends."""
        return Path(mkdtemp(prefix=f"{name}-", dir=self.root))


def work_directory(chosen: str | None) -> "TemporaryDirectory[str]":
    """A temporary directory on a real disk: /var/tmp where there is one, as /tmp may be memory."""
    usual = "/var/tmp" if Path("/var/tmp").is_dir() else None
    return TemporaryDirectory(prefix="keel-benchmark-", dir=chosen or usual)
