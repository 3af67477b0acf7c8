"""Test suites of other projects: LangGraph, its packages, and dependent packages.

A suite comes from the source distribution of the installed version, or from its repository if that has no tests. It
runs in a separate process, and is stored outside this repository.
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

# Enough for a slow machine: a run takes about a minute on two idle cores.
TIMEOUT = 1400
TEST_TIMEOUT = 120
# If several of these runs are concurrent, each has one worker.
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


# Replaces their stores by ours.
STORE_PLUGIN = "upstream.stores"
STORE_OPTIONS = "-p", STORE_PLUGIN


class UpstreamUnavailableError(Exception):
    """A suite is not available, or does not run at all."""


@dataclass(frozen=True)
class Suite:
    """The tests of an installed package."""

    package: str
    arguments: tuple[str, ...] = ("tests",)
    # For a package whose source distribution has no tests: its repository, and the folder in it.
    repository: str = ""
    folder: str = ""

    @property
    def title(self) -> str:
        return f"{self.package}:stores" if STORE_PLUGIN in self.arguments else self.package

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            needed = "pip install -r tests/upstream/requirements.txt"
            raise UpstreamUnavailableError(f"{self.package} is not installed: {needed}") from None


LANGGRAPH = Suite("langgraph")
# Suites that `pip install '.[dev]'` provides and that run in seconds: CI runs these.
PACKAGES = (
    # The other files do not use savers, and need further packages.
    Suite("langgraph-checkpoint", ("tests/test_memory.py",)),
    Suite("langgraph-checkpoint-sqlite"),
    Suite("langgraph-checkpoint-postgres"),
    Suite("langgraph-prebuilt"),
)
# Their tests of stores, with Keel's store instead of theirs.
STORES = tuple(
    Suite(package, (*(f"tests/{name}.py" for name in files), *STORE_OPTIONS))
    for package, files in {
        "langgraph-checkpoint": ("test_store",),
        "langgraph-checkpoint-sqlite": ("test_store", "test_async_store"),
        "langgraph-checkpoint-postgres": ("test_store", "test_async_store"),
    }.items()
)
DEEPAGENTS = "https://github.com/langchain-ai/deepagents", "libs/deepagents"
NO_SYRUPY = "-p", "no:syrupy"  # one of its options has the same name as one of theirs
# Suites that need tests/upstream/requirements.txt.
UPON_IT = (
    Suite("langchain", ("tests/unit_tests/agents",)),  # each test under blockbuster
    Suite("deepagents", ("tests/unit_tests", *NO_SYRUPY), *DEEPAGENTS),
    Suite("langgraph-swarm"),
    Suite("langchain-mcp-adapters"),
)
STORES_UPON_IT = (
    Suite(
        "deepagents",
        (
            "tests/unit_tests/backends/test_store_backend.py",
            "tests/unit_tests/backends/test_store_backend_async.py",
            *(*NO_SYRUPY, *STORE_OPTIONS),
        ),
        *DEEPAGENTS,
    ),
)


def fetch(suite: Suite, cache: Path) -> Path:
    """Return the directory with the tests, fetched below `cache` if they are missing."""
    name = f"{suite.package.replace('-', '_')}-{suite.version}"
    fetched = cache / name
    if not fetched.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            if suite.repository:
                source = clone(suite, Path(directory, "clone")) / suite.folder
            else:
                source = unpack(suite, cache / f"{name}.tar.gz", Path(directory))
            keep_tests(source, Path(directory, "kept"), fetched)
    return fetched


def clone(suite: Suite, into: Path) -> Path:
    tag = f"{suite.package}=={suite.version}"
    obtain(suite, ["git", "clone", "--quiet", "--depth=1", f"--branch={tag}", suite.repository, str(into)])
    return into


def unpack(suite: Suite, archive: Path, into: Path) -> Path:
    if not archive.is_file():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
        source = ["--no-deps", "--no-binary", suite.package, f"{suite.package}=={suite.version}"]
        obtain(suite, [*pip, "download", "--dest", str(archive.parent), *source])
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        tar.extractall(into)
    return into / archive.name.removesuffix(".tar.gz")


def obtain(suite: Suite, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise UpstreamUnavailableError(
            f"Cannot fetch the tests of {suite.package} {suite.version}. They must be within reach of `{command[0]}`, "
            "or in a directory that KEEL_UPSTREAM_CACHE names: as the source distribution, or unpacked in\n"
            f"{suite.package.replace('-', '_')}-{suite.version}. It said:\n{done.stderr.strip()}"
        )


def keep_tests(source: Path, kept: Path, target: Path) -> None:
    """Keep only the tests and their settings: they test the installed package."""
    kept.mkdir()
    for name in ("tests", "pyproject.toml"):
        (source / name).rename(kept / name)
    try:
        kept.rename(target)
    except OSError:  # another process was quicker, with the same files
        if not target.is_dir():
            raise


@dataclass(frozen=True)
class Outcome:
    """The results of a suite with one saver."""

    passed: dict[str, int]
    skipped: dict[str, str]
    failed: dict[str, str]
    deselected: int
    excluded: dict[str, str]
    idle: list[str]
    uncollected: dict[str, str]
    seconds: float = 0.0

    def __str__(self) -> str:
        faces = ", ".join(f"{count} {face}" for face, count in sorted(self.passed.items()))
        counts = f"{sum(self.passed.values())} passed ({faces}), {len(self.failed)} failed, "
        rest = f"{len(self.skipped)} skipped, {self.deselected} without a saver, {self.seconds:.0f} s"
        rest += "".join(f"\n  left out: {test}: {why}" for test, why in self.excluded.items())
        return counts + rest


def run(suite: Suite, cache: Path, saver: str, *, strict: bool = False, workers: int = WORKERS) -> Outcome:
    """Run the tests that use a checkpointer with the plugin's saver of this name."""
    where = fetch(suite, cache)
    began = time.monotonic()
    spread = ["-n", str(workers)] if workers > 1 else ["-p", "no:xdist"]
    outcome = pytest_run(where, [*suite.arguments, *spread], saver, strict=strict)
    return replace(outcome, seconds=time.monotonic() - began)


def pytest_run(where: Path, arguments: Sequence[str], saver: str, *, strict: bool) -> Outcome:
    options = ["-q", "-p", "upstream.plugin", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT}"]
    # If it is unset, pytest-asyncio warns, which is an error in some suites.
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        env = environment(saver, report, strict=strict)
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=TIMEOUT)
        return outcome_of(done, report)


def environment(saver: str, report: Path, *, strict: bool) -> dict[str, str]:
    """Return our environment, without variables that affect LangGraph or pytest."""
    # Bytecode is stored, because rewriting and compiling the tests takes longer than running them on half of the
    # backends.
    foreign = ("LANGGRAPH_", "LANGCHAIN_", "LANGSMITH_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    tests = Path(__file__).parents[1]
    ours = [tests, Path(langgraph_keel.__file__).parents[1], env.get("PYTHONPATH")]
    env["PYTHONPATH"] = os.pathsep.join(str(path) for path in ours if path)
    env |= {"KEEL_UPSTREAM_SAVER": saver, "KEEL_UPSTREAM_REPORT": str(report)}
    return env | ({"LANGGRAPH_STRICT_MSGPACK": "true"} if strict else {})


def outcome_of(done: subprocess.CompletedProcess[str], report: Path) -> Outcome:
    """Return the results; raise unless all tests ran ("all passed" or "some failed")."""
    outcome = Outcome(**json.loads(report.read_text("utf-8"))) if report.is_file() else None
    if outcome is None or outcome.uncollected or done.returncode != (1 if outcome.failed else 0):
        said = done.stdout[-5000:] + done.stderr[-5000:]
        raise UpstreamUnavailableError(f"The tests did not run:\n{said}")
    return outcome


@dataclass(frozen=True)
class Compared:
    """A suite with LangGraph's saver, and with one of ours."""

    theirs: Outcome
    ours: Outcome
    only_ours: dict[str, str]
    """The tests that fail with Keel only, and their errors."""


def compare(suite: Suite, cache: Path, saver: str) -> Compared:
    theirs, ours = run(suite, cache, "langgraph_memory"), run(suite, cache, saver)
    # The name of the saver is a parameter of some tests.
    only = {test: why for test, why in ours.failed.items() if test.replace(saver, "memory") not in theirs.failed}
    return Compared(theirs, ours, only)
