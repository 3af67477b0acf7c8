"""A store that an application has left, to whoever has none of its code (`support.shop.application` has it)."""

from __future__ import annotations

import json
import subprocess
import sys

from support.places import Place


def left_by_a_shop(place: Place, *more: str) -> Place:
    """Have a process of the application write threads: `t`, `asked` and `called`; or, given "archive", `archived`."""
    assert "support.shop.models" not in sys.modules
    command = [sys.executable, "-m", "support.shop.application", place.url, json.dumps(dict(place.options)), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return place
