"""A large copy takes little memory, and completes although it is often killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tiers import sized

from langgraph_keel import open_saver
from langgraph_keel.testing.rig import at, checkpoint_of

MEGABYTES = sized(8, 16, 1000)
_STEPS, _ITEM = 10, 100_000


def fill(url: str) -> None:
    """Store threads of one megabyte each, with incompressible growing lists."""
    with open_saver(url) as saver:
        for number in range(MEGABYTES):
            config, values = at(f"thread {number}"), list[bytes]()
            for step in range(_STEPS):
                values = [*values, os.urandom(_ITEM)]
                checkpoint = checkpoint_of(f"{step:04}", {"list": values}, channel_versions={"list": step + 1})
                config = saver.put(config, checkpoint, {"step": step}, {"list": step + 1})  # type: ignore[arg-type]


def copy(source: str, target: str) -> None:
    """Copy in this process, and print its peak memory in megabytes."""
    with open_saver(source, read_only=True) as theirs, open_saver(target) as ours:
        report = theirs.moving.copy_to(ours)
    # Not `ru_maxrss`, which a child inherits from its parent; this is the peak of this process alone.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(report.is_done, report.copied, report.same, int(peak) // 1000)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_killed_large_copy_completes_in_little_memory(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/a.db", f"files:{tmp_path}/b"
    fill(source)
    words = [sys.executable, __file__, source, target]
    threads = tmp_path / "b" / "threads"
    for part in range(1, 4):
        child = subprocess.Popen(words)
        while child.poll() is None and not (threads.exists() and len(os.listdir(threads)) >= part * MEGABYTES // 5):
            time.sleep(0.01)  # until it has copied part of it
        child.kill()
        child.wait()
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "True"
    assert int(told[1]) + int(told[2]) == MEGABYTES
    assert int(told[-1]) < 200
    print(told)


if __name__ == "__main__":
    copy(*sys.argv[1:])
