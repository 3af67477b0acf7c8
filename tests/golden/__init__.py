"""Stores written by earlier versions, which every later version must read.

`__main__` writes them. From 0.1.0 on, no version is written again; a change of the stored format adds another version.
"""

from golden.kept import KINDS, VERSIONS, expected, loaded
from golden.seen import aseen, seen

__all__ = ["KINDS", "VERSIONS", "aseen", "expected", "loaded", "seen"]
