"""The cost of encryption: SQLite with a keyring, compared with SQLite without one."""

from importlib import import_module
from pathlib import Path
from typing import Any

from .backend import Backend, Pair
from .sqlite import PAIR as PLAIN
from .targets import SEALED


def _sealed(directory: Path) -> Any:
    keel = import_module("langgraph_keel")
    keyring = keel.Keyring(keel.LocalKey("benchmark", bytes(range(32))))
    return keel.SqliteSaver(directory / "checkpoints.db", encryption=keyring)


PAIR = Pair(
    ours=Backend("keel-sealed", _sealed, _sealed), theirs=PLAIN.ours, targets=SEALED, measures=("cells", "turns")
)
