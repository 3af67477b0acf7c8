"""Run a measurement in its own process: `python -m tests.benchmarks.child NAME JSON` prints JSON."""

import json
import multiprocessing
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
"""Starts children from a process that has imported the savers, but opened none."""
PROCESSES.set_forkserver_preload(["tests.benchmarks.savers"])


def in_child(name: str, **arguments: Any) -> Any:
    """Return the result of a job of `_jobs`, run in a new process."""
    command = [sys.executable, "-m", __spec__.name, name, json.dumps(arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def _jobs() -> dict[str, Callable[..., Any]]:
    from . import chat, memory

    return {"chat": chat.job, "memory": memory.job}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(_jobs()[sys.argv[1]](**json.loads(sys.argv[2]))))
