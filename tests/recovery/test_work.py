"""`keel work` in a separate process and terminal: signals and refusals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support.places import Place, file_place
from support.recovery.children import INPUT, config_of, killed, steps_in
from typer.testing import CliRunner

from langgraph_keel import KeelSaver, MemorySaver
from langgraph_keel.cli import app

WORK = [sys.executable, "-m", "langgraph_keel.cli", "work"]
# The program: step 3 prints that it has started, and continues once the test writes to a pipe.
SHOP = """
import os
from pathlib import Path
from langgraph.checkpoint.memory import InMemorySaver
from support.recovery.children import five
from langgraph_keel import MemorySaver, open_saver

steps = Path(os.environ["STEPS"])
saver = open_saver(os.environ["STORE"], recoverable=True)

def bad(state):
    raise ValueError("no such order")

graph = five(saver, steps)
bare = five(None, steps)
foreign = five(InMemorySaver(), steps)
unmarked = five(MemorySaver(), steps)
failing = graph.copy()
failing.nodes = {**graph.nodes, "3": graph.nodes["3"].copy({"bound": five})}

def make(saver):
    return five(saver, steps)

def slow():
    from support.recovery import children as recovery_children
    write = recovery_children.write
    def wait(path, line):
        write(path, line)
        if line.endswith("3"):
            print("in step 3", flush=True)
            with open(os.environ["GO"]) as pipe:
                pipe.read()
    recovery_children.write = wait
    return graph
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return file_place(tmp_path)


@pytest.fixture
def steps(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of steps, next to a program whose thread "t" was killed in step 2."""
    (tmp_path / "shop.py").write_text(SHOP)
    path = tmp_path / "steps"
    os.mkfifo(tmp_path / "go")
    tests = Path(__file__).parent.parent
    paths = [str(tmp_path), str(tests), os.environ.get("PYTHONPATH", "")]
    given = {"STEPS": str(path), "STORE": place.url, "GO": str(tmp_path / "go"), "PYTHONPATH": os.pathsep.join(paths)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KEEL_URL", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    killed(place, path, deadly="2")
    yield path
    if "shop" in sys.modules:
        sys.modules.pop("shop").saver.close()


def keel_work(*words: str) -> Any:
    return CliRunner().invoke(app, ["work", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})


# -- signals -----------------------------------------------------------------------------------------------------------


CONTAINER = ["unshare", *(() if os.getuid() == 0 else ("--user",)), "--pid", "--fork"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "inside"), [(signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGTERM, CONTAINER)])
def test_a_signal_ends_keel_work_after_its_step(steps: Path, place: Place, number: int, inside: Sequence[str]) -> None:
    """Also as PID 1, for which the kernel drops signals without a handler."""
    if inside and subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("the kernel refuses a namespace of processes (unshare --pid)")
    words = [*inside, *WORK, "shop:slow", "--json"]
    worker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "in step 3\n"
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    pid = int(children[0]) if inside else worker.pid
    shown = CliRunner().invoke(app, ["threads", "--unfinished", "--url", place.url], env={"COLUMNS": "200"}).output
    assert ("process 1 on " if inside else f"process {pid} on ") in shown
    os.kill(pid, number)
    Path("go").write_text("go")
    began = monotonic()
    said, logged = worker.communicate(timeout=120)
    assert monotonic() - began < 20  # below a second on an idle machine; it does not wait for the grace time
    assert (worker.returncode, said, steps_in(steps)) == (0, "", "1223")
    records = [json.loads(line) for line in logged.splitlines()]
    assert {each["thread_id"] for each in records} == {"t"}
    assert "attempt 1 of 3" in records[0]["said"]
    assert signal.Signals(number).name in records[-1]["said"]
    other = subprocess.run([*WORK, "shop:graph", "--once"], capture_output=True, text=True, check=True)
    assert (other.stdout, steps_in(steps)) == ("1 thread continued.\n", "122345")


def test_keel_work_shows_progress_in_a_terminal_until_ctrl_c(steps: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [*WORK, "shop:graph"])
    shown = b""
    while b"1 continued, 0 failed" not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # Linux reports a closed terminal in this way
        pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
    assert os.waitstatus_to_exitcode(status) == 0
    assert "'t' was continued (attempt 1)" in lines
    assert "1 thread continued." in lines
    assert "Traceback" not in lines
    assert "{" not in lines  # no log records


# -- what it prints ----------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_threads_and_changes_nothing(steps: Path, place: Place) -> None:
    with place.open(recoverable=True) as saver:
        gate(saver, steps)
    for graph in ("shop:graph", "shop:bare", "shop:make"):
        url = () if graph == "shop:graph" else ("--url", place.url)
        shown = keel_work(graph, "--dry-run", *url)
        assert (shown.exit_code, shown.output.splitlines()) == (
            0,
            [
                "continue 't' before 2: attempt 1",
                "leave 'gate': stopped at a breakpoint before 2: graph.invoke(None, config) passes it.",
            ],
        )
        rows = json.loads(keel_work(graph, "--dry-run", "--json", *url).output)["threads"]
        assert [(row["thread_id"], row["state"], row["takes"]) for row in rows] == [
            ("t", "cut off", True),
            ("gate", "stopped", False),
        ]
    assert steps_in(steps) == "12"
    assert keel_work("shop:graph", "--once", "--match", "other*").output == "0 threads continued.\n"
    assert [json.loads(keel_work("shop:graph", "--once", "--json").stdout)] == [
        {"thread_id": "t", "attempts": 1, "error": None}
    ]


def gate(saver: KeelSaver, steps: Path) -> None:
    from support.recovery.children import five

    five(saver, steps, interrupt_before_nodes=["2"]).invoke(INPUT, config_of("gate"))


def test_a_failed_thread_is_reported_with_its_attempts(steps: Path, place: Place) -> None:
    ended = keel_work("shop:failing", "--once")
    assert (ended.exit_code, ended.stdout) == (1, "0 threads continued, 1 failed.\n")
    shown = CliRunner().invoke(app, ["threads", "--unfinished", "--url", place.url], env={"COLUMNS": "200"})
    assert "1 attempt to recover it (workers give up after --attempts), last error: TypeError(" in shown.output
    said = json.loads(CliRunner().invoke(app, ["status", "t", "--json", "--url", place.url]).output)
    assert (said["state"], said["attempts"]) == ("failed", 1)
    assert said["attempt_error"].startswith("TypeError(")


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere:graph"], "No module named 'nowhere'"),
        (["shop:nothing"], "module shop has no nothing"),
        (["shop"], "not of the form MODULE:GRAPH"),
        (["shop:steps"], "not a graph"),
        (["shop:Path"], "not a graph"),
        (["shop:foreign"], "InMemorySaver, which is not a saver of Keel"),
        (["shop:unmarked"], "recoverable=True"),
        (["shop:graph", "--url", "sqlite:///other.db"], "leave --url out"),
        (["shop:graph", "--attempts", "0"], "--attempts"),
    ],
)
def test_invalid_graphs_and_options_are_refused(steps: Path, words: list[str], said: str) -> None:
    ended = keel_work(*words, "--once")
    assert (ended.exit_code, steps_in(steps)) == (2, "12")
    assert said in " ".join(ended.output.split())
    assert not Path("other.db").exists()


def test_a_missing_store_is_not_created(steps: Path) -> None:
    ended = keel_work("shop:bare", "--once", "--url", "sqlite:///other.db")
    assert (ended.exit_code, Path("other.db").exists()) == (1, False)


def test_keel_work_for_a_tenant_skips_other_threads(steps: Path, place: Place) -> None:
    for words in (["shop:graph"], ["shop:bare", "--url", place.url]):
        ended = CliRunner().invoke(app, ["--tenant", "acme", "work", *words, "--once"])
        assert (ended.exit_code, ended.output) == (0, "0 threads continued.\n")
    assert steps_in(steps) == "12"


def test_recover_polls_a_memory_saver_once(steps: Path) -> None:
    with MemorySaver(recoverable=True) as saver:
        assert list(saver.recover(__import__("shop").make(saver), timeout=0)) == []
