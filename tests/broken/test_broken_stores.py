"""The tests are tested: every store that is wrong on purpose makes the contract fail, and the right one does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from broken.__main__ import BROKEN

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_the_contract_catches_every_wrong_store() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broken"], cwd=TESTS, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    caught = json.loads(done.stdout)
    assert caught["control"][0] == "", "the contract fails on the store that is right"
    assert caught["control"][1] > 200
    assert [store for store in BROKEN if not caught[store][0]] == []
    assert len(BROKEN) >= 14
