"""Run the whole contract on broken stores, and print the tests that fail on each.

`python tests/write.py catching [STORE ...]`
"""

from __future__ import annotations

import sys

from broken import BROKEN
from broken.running import NAMES, failure

if __name__ == "__main__":
    for store in sys.argv[1:] or BROKEN:
        print(store, *(name for name in NAMES if failure(name, BROKEN[store], seconds=20)), sep="\n    ")
