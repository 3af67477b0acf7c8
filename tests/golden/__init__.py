"""Stores as former versions wrote them, kept here, and read back by every later one: see `__main__` for the writer.

`v1/` was written by cb368ff, before modules moved: classes of Keel's own stand in it under `langgraph_keel.core...`.
Never write a version anew; a change of what is stored adds another beside it.
"""

from golden.kept import KINDS, VERSIONS, expected, loaded
from golden.seen import aseen, seen

__all__ = ["KINDS", "VERSIONS", "aseen", "expected", "loaded", "seen"]
