"""A Ctrl-C in the middle of an operation of a file store."""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from langgraph_keel import FileSaver
from langgraph_keel.backends.files import disk
from langgraph_keel.testing.rig import at, checkpoint_of


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux says so which files are open")
@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_leaves_no_file_open(tmp_path: Path) -> None:
    """Python raises a signal's exception when a C call returns.

    The test does so at each such return in turn.
    """
    place, numbers = str(Path(disk.__file__).parent), count()

    def put() -> None:
        found = saver.get_tuple(at("t"))
        checkpoint: Any = checkpoint_of(f"{next(numbers):08}", {"text": "x" * 5000})
        saver.put(found.config if found else at("t"), checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})

    def put_interrupted(turn: int) -> bool:
        """Return whether there were that many returns."""
        left = turn

        def watch(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if event == "c_return" and frame.f_code.co_filename.startswith(place):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt

        try:
            sys.setprofile(watch)
            put()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    with FileSaver(tmp_path / "store") as saver:
        put()
        before = os.listdir("/proc/self/fd")
        turns = next(turn for turn in count(1) if not put_interrupted(turn))
        assert turns > 50
        assert len(os.listdir("/proc/self/fd")) == len(before)
        put()
        assert list(saver.check()) == []
