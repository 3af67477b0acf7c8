"""Stores as former versions wrote them, kept here, and read back by every later one: see `__main__` for the writer.

From 0.1.0 on, no version is written again: a change of what is stored adds another beside it.
"""

from golden.kept import KINDS, VERSIONS, expected, loaded
from golden.seen import aseen, seen

__all__ = ["KINDS", "VERSIONS", "aseen", "expected", "loaded", "seen"]
