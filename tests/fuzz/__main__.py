"""The command line of the fuzzers, and the process that supervises one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

import servers  # noqa: E402

from fuzz import trials  # noqa: E402

KINDS = ("serde", "sqlite", "files", "postgres", "redis", "stores", "imports")
SERVERS: dict[str, Any] = {"postgres": ("PostgreSQL", servers.postgres), "redis": ("Redis", servers.redis)}


def main() -> int:
    """Run one trial, the trials of a worker, or workers until the time has passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("KEEL_FUZZ_SECONDS", "60")))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=sys.maxsize, help="at most so many, whatever time is left")
    parser.add_argument("--trial", type=int, help="run this trial only, and show its traceback")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return trials.work(asked.kind, asked.seed, range(asked.first, asked.trials), asked.seconds, asked.worker)
    with TemporaryDirectory() as directory:
        return supervise(asked, Path(directory))


def supervise(asked: argparse.Namespace, directory: Path) -> int:
    """Run workers one after another.

    A trial that hangs or uses too much memory ends its worker.
    """
    progress, since, first, wrong = directory / "progress", monotonic(), asked.trial or 0, 0
    while (left := asked.seconds - (monotonic() - since)) > 0 and first < asked.trials:
        ended = run_worker(asked, first, left, progress)
        trial = int(progress.read_text() or -1)
        if trial < 0:
            return 1  # it has not started, and has printed why
        wrong += ended != 0
        if ended not in (0, trials.FOUND):
            print(f"{asked.kind}: trial {trial} of seed {asked.seed} ended its process ({ended})", flush=True)
        first = trial + 1
        if asked.trial is not None:
            break
    print(f"{asked.kind}: {first} trials of seed {asked.seed}, {'FAILED' if wrong else 'all right'}", flush=True)
    return min(wrong, 1)


def run_worker(asked: argparse.Namespace, first: int, seconds: float, progress: Path) -> int:
    """Run a worker, with its own server if it needs one; return its exit status."""
    progress.write_text("")
    if asked.trial is not None:
        seconds = 0
    name, opening = SERVERS.get(asked.kind, ("", None))
    with opening(own=True) if opening else nullcontext() as server:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
        if server:
            environment[servers.SHARED[name]] = server.url
        words = [
            "--seed",
            str(asked.seed),
            "--trials",
            str(asked.trials),
            "--first",
            str(first),
            "--seconds",
            str(seconds),
            "--worker",
            str(progress),
        ]
        command = [sys.executable, "-m", "fuzz", asked.kind, *words]
        return subprocess.run(command, cwd=TESTS, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
