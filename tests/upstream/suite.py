"""LangGraph's own tests: fetched from the package index, run in a process of their own.

They come in the source distribution of the langgraph that is installed, and stay outside the repository.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import langgraph_keel

# Room for a slow machine: a run takes about a minute on two cores that do nothing else.
TIMEOUT = 1400
TEST_TIMEOUT = 120
# Where several of these runs go on at once, each has one worker.
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2

CANNOT_FETCH = """\
Cannot fetch langgraph {version}'s source distribution, which holds LangGraph's own tests.
pip must reach a package index that has langgraph-{version}.tar.gz; or name, in KEEL_UPSTREAM_CACHE,
a directory that already has that file. pip said:
{output}"""


class UpstreamUnavailableError(Exception):
    """LangGraph's tests can't be had, or don't run at all."""


def fetch(cache: Path) -> Path:
    """The directory with LangGraph's tests, fetched and unpacked below `cache` unless it is there."""
    version = importlib.metadata.version("langgraph")
    unpacked = cache / f"langgraph-{version}"
    if not unpacked.is_dir():
        archive = cache / f"langgraph-{version}.tar.gz"
        if not archive.is_file():
            download(version, cache)
        unpack(archive, unpacked)
    return unpacked


def download(version: str, into: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    source = ["--no-deps", "--no-binary", "langgraph", f"langgraph=={version}"]
    done = subprocess.run([*pip, "download", "--dest", into, *source], capture_output=True, text=True)
    if done.returncode != 0:
        raise UpstreamUnavailableError(CANNOT_FETCH.format(version=version, output=done.stderr.strip()))


def unpack(archive: Path, target: Path) -> None:
    """Only the tests and their settings: what they test is the langgraph that is installed."""
    with tempfile.TemporaryDirectory(dir=target.parent) as directory, tarfile.open(archive) as tar:
        needed = (f"{target.name}/tests/", f"{target.name}/pyproject.toml")
        members = [member for member in tar.getmembers() if member.name.startswith(needed)]
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        tar.extractall(directory, members)
        move(Path(directory, target.name), target)


def move(source: Path, target: Path) -> None:
    """In one step; another process may have been quicker, with the same files."""
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise


@dataclass(frozen=True)
class Outcome:
    """What became of LangGraph's tests with one saver."""

    passed: dict[str, int]
    skipped: dict[str, str]
    failed: dict[str, str]
    deselected: int
    excluded: dict[str, str]
    idle: list[str]
    seconds: float = 0.0

    def __str__(self) -> str:
        faces = ", ".join(f"{count} {face}" for face, count in sorted(self.passed.items()))
        counts = f"{sum(self.passed.values())} passed ({faces}), {len(self.failed)} failed, "
        rest = f"{len(self.skipped)} skipped, {self.deselected} without a saver, {self.seconds:.0f} s"
        rest += "".join(f"\n  left out: {test}: {why}" for test, why in self.excluded.items())
        return counts + rest


def run(suite: Path, saver: str, *, strict: bool, workers: int = WORKERS) -> Outcome:
    """Runs the tests that use a checkpointer with the saver that the plugin knows by this name."""
    began = time.monotonic()
    spread = ["-n", str(workers)] if workers > 1 else ["-p", "no:xdist"]
    outcome = pytest_run(suite, ["tests", *spread], saver, strict=strict)
    return replace(outcome, seconds=time.monotonic() - began)


def pytest_run(suite: Path, arguments: Sequence[str], saver: str, *, strict: bool) -> Outcome:
    options = ["-q", "-p", "upstream.plugin", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT}"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        env = environment(saver, report, strict=strict)
        done = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, timeout=TIMEOUT)
        return outcome_of(done, report)


def environment(saver: str, report: Path, *, strict: bool) -> dict[str, str]:
    """Ours, without what would change how LangGraph or a pytest inside a pytest behaves."""
    # To rewrite and compile the tests takes longer than half of the backends take to run them: it is done once.
    foreign = ("LANGGRAPH_", "LANGCHAIN_", "LANGSMITH_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    tests = Path(__file__).parents[1]
    ours = [tests, tests / "support", Path(langgraph_keel.__file__).parents[1], env.get("PYTHONPATH")]
    env["PYTHONPATH"] = os.pathsep.join(str(path) for path in ours if path)
    env |= {"KEEL_UPSTREAM_SAVER": saver, "KEEL_UPSTREAM_REPORT": str(report)}
    return env | ({"LANGGRAPH_STRICT_MSGPACK": "true"} if strict else {})


def outcome_of(done: subprocess.CompletedProcess[str], report: Path) -> Outcome:
    """Anything but "all passed" and "some failed" means that the tests did not all run."""
    outcome = Outcome(**json.loads(report.read_text("utf-8"))) if report.is_file() else None
    if outcome is None or done.returncode != (1 if outcome.failed else 0):
        said = done.stdout[-5000:] + done.stderr[-5000:]
        raise UpstreamUnavailableError(f"LangGraph's tests did not run:\n{said}")
    return outcome
