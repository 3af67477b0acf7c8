"""A sample of each fuzzer.

`python -m tests.fuzz KIND --seconds 3600` runs one for an hour.
"""

from __future__ import annotations

import os
import subprocess
import sys
from random import randrange

import pytest
from support.tiers import sized

from fuzz import __main__ as fuzzers

TRIALS = sized(6, 6, 2000)
SERDE_TRIALS = sized(500, 500, 300_000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", fuzzers.KINDS)
def test_fuzzed_data_is_read_or_refused_with_a_named_error(kind: str) -> None:
    trials = SERDE_TRIALS if kind == "serde" else TRIALS
    bound = ["--trials", str(trials), "--seconds", "500"]
    if seconds := os.environ.get("KEEL_FUZZ_SECONDS"):
        bound = ["--seconds", seconds]
    seed = sized(0, 0, randrange(1 << 30))  # a run must not fail at random, except a full one, which looks for faults
    command = [sys.executable, "-m", "fuzz", kind, *bound, "--seed", str(seed)]
    done = subprocess.run(command, cwd=fuzzers.TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
