"""`keel provenance`, `keel export`, and models in `keel threads` and `history`."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.cli_threads import EVIL, RAW, keel, keel_json
from support.places import Place
from support.provenance.trajectories import Other, World, config, damage

from langgraph_keel import open_saver

pytestmark = pytest.mark.filterwarnings("ignore::langgraph_keel.errors.DriftWarning")
on_two = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def url(place: Place) -> str:
    """A store with a thread that drifted, a hostile one, and one without a model."""
    world = World(served="m-1\x1b[2J", fails=1, cost=0.25)
    with place.open() as saver:
        world.run(saver, EVIL, label="bad")
        world.run(saver, "trip")
        world.served = "m-2"
        world.run(saver, "trip", label="good")
        builder = StateGraph(Other).add_node("none", lambda state: None).add_edge(START, "none")
        builder.compile(checkpointer=saver).invoke({"notes": ["x"]}, config("plain"))
    return place.url


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- provenance ------------------------------------------------------------------------------------------------


@on_two
def test_provenance_lists_models_and_parameters(url: str) -> None:
    shown = keel("provenance", "trip", "--url", url).stdout
    assert "thread trip · 4 calls of models · 40 → 8 tokens · cost 1.00" in shown
    assert re.search(r"2 +agent +m +seed 7 +10 → 2 +\d\d:\d\d:\d\d", shown)
    assert re.search(r"→ m-2 +temp 0.5 +0.25 +[\d.,]+ m?s", shown)
    assert max(map(len, shown.splitlines())) <= 80
    found = keel_json("provenance", "trip", "--url", url)
    assert [(call["step"], call["served_model"]) for call in found["calls"]] == [
        (1, "m-1\x1b[2J"),
        (3, "m-1\x1b[2J"),
        (6, "m-2"),
        (8, "m-2"),
    ]
    assert [mark["call_id"] for mark in found["drift"]] == [found["calls"][2]["id"]]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_empty_columns_are_omitted(place: Place) -> None:
    with place.open() as saver:
        World(cost=0.25).run(saver, "trip")
    shown = keel("provenance", "trip", "--url", place.url, COLUMNS="140").stdout
    assert re.search(r"agent +m +seed 7 +10 → 2 +\d\d:\d\d:\d\d", shown), shown
    tokens = keel("provenance", "trip", "--url", place.url, COLUMNS="60").stdout
    assert "tokens 10 → 2 · 0.25" in tokens


@on_two
def test_drift_is_shown_where_it_happened(url: str) -> None:
    for columns in ("50", "80", "200"):
        shown = keel("provenance", "trip", "--url", url, COLUMNS=columns).stdout
        order = [found[0] for found in re.finditer(r"m-1\\x1b\[2J|! drift at #7|m-2", shown)]
        assert order == ["m-1\\x1b[2J"] * 2 + ["! drift at #7", "m-1\\x1b[2J", "m-2", "m-2", "m-2"]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("columns", ["30", "80", "200"])
def test_control_characters_are_escaped(url: str, columns: str) -> None:
    commands = (("provenance", EVIL), ("provenance", EVIL, "--full"), ("history", EVIL), ("export",))
    for command in commands:
        done = keel(*command, "--url", url, COLUMNS=columns)
        assert not RAW.search(done.stdout + done.stderr)
        assert "x1b" in done.stdout.replace("\n", "") or "u001b" in done.stdout


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_failed_attempt_and_its_retry_are_listed(url: str) -> None:
    shown = keel("provenance", EVIL, "--url", url).stdout
    assert "→ failed: TimeoutError" in shown
    assert shown.index("failed") < shown.index("attempt 2")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_full_shortens_nothing_and_checkpoint_filters(url: str) -> None:
    [_, _, call, _] = keel_json("provenance", "trip", "--url", url)["calls"]
    shown = keel("provenance", "trip", "--full", "--url", url).stdout
    assert call["checkpoint_id"] in shown
    assert call["prompt_hash"] in shown
    narrowed = keel_json("provenance", "trip", "--checkpoint", call["checkpoint_id"][-8:], "--url", url)
    assert narrowed["calls"] == [call]
    assert [mark["step"] for mark in narrowed["drift"]] == [6]
    error = keel_json("provenance", "trip", "--checkpoint", "00000000", "--url", url, status=1)["error"]
    assert error["code"] == "not_found"


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_numbers_are_not_abbreviated_and_invalid_counts_are_ignored(place: Place) -> None:
    answer, model = AIMessage("ho"), GenericFakeChatModel(messages=iter(()))

    def ask(state: MessagesState) -> dict[str, Any]:
        model.messages = iter([answer])
        return {"messages": [model.bind(seed=1234567890, max_tokens=1_000_000).invoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    with place.open() as saver:
        graph: Any = builder.compile(checkpointer=saver)
        for count in (5, None, "few"):
            usage: Any = {"input_tokens": count, "output_tokens": 2, "total_tokens": 7}
            answer = AIMessage("ho")
            answer.usage_metadata = usage
            graph.invoke({"messages": [("user", "hi")]}, config("odd"))
    shown = keel("provenance", "odd", "--url", place.url, COLUMNS="120").stdout
    assert "5 → 6 tokens" in shown
    assert shown.count("0 → 2") == 2
    assert shown.count("seed 1234567890") == shown.count("max 1000000") == 3
    [line] = lines(keel("export", "--url", place.url).stdout)
    assert (line["usage"]["input_tokens"], line["usage"]["output_tokens"]) == (5, 6)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_threads_without_calls_and_unknown_threads_are_reported(url: str) -> None:
    assert "No model calls recorded for thread plain" in keel("provenance", "plain", "--url", url).stdout
    assert "`keel threads` lists all threads" in keel("provenance", "tripp", "--url", url, status=1).stderr


@on_two
def test_a_list_after_removals_is_marked_incomplete(place: Place, url: str) -> None:
    told = "The list is incomplete: early checkpoints were removed"
    with place.open() as saver:
        saver.prune(["trip", "plain"], strategy="keep_latest")
        World().run(saver, "cut", run_id="first")
        World().run(saver, "cut")
    for thread in ("trip", "plain", "cut"):
        assert told not in keel("provenance", thread, "--url", url, COLUMNS="120").stdout
    assert len(keel_json("provenance", "trip", "--url", url)["calls"]) == 4
    with place.open() as saver:
        saver.delete_for_runs(["first"])
    assert told in keel("provenance", "cut", "--url", url, COLUMNS="120").stdout
    assert len(keel_json("provenance", "cut", "--url", url)["calls"]) == 2


@pytest.mark.parametrize(
    ("option", "similar"), [("--model", None), ("--zzz", None), ("--chekpoint", "--checkpoint"), ("--jsn", "--json")]
)
def test_only_similar_options_are_suggested(option: str, similar: str | None) -> None:
    told = keel("provenance", "t", option, "x", status=2, COLUMNS="200").stderr
    assert f"No such option: {option}" in told
    assert re.findall(r"--\w+", told.partition(option)[2]) == ([similar] if similar else [])


# -- threads and history ---------------------------------------------------------------------------------------


@on_two
def test_threads_by_model(url: str) -> None:
    found = keel_json("threads", "--model", "m-2", "--url", url)["threads"]
    assert [(info["thread_id"], info["models"]) for info in found] == [("trip", ["m", "m-1\x1b[2J", "m-2"])]
    assert len(keel_json("threads", "--model", "m", "--url", url)["threads"]) == 2
    assert "trip" in keel("threads", "--model", "m-2", "--url", url).stdout


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_no_matching_threads_and_no_threads_are_distinguished(url: str, tmp_path: Path) -> None:
    assert keel("threads", "--model", "no\x1b", "--url", url).stdout == f"None of 3 threads in {url} matches\n"
    assert keel_json("threads", "--model", "nope", "--url", url)["threads"] == []
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    with open_saver(empty) as saver:
        saver.setup()
    assert keel("threads", "--model", "nope", "--url", empty).stdout.startswith("No threads in")


@on_two
def test_history_names_the_models(url: str) -> None:
    models = {row["step"]: row["models"] for row in keel_json("history", "trip", "--url", url)["checkpoints"]}
    assert (models[3], models[4], models[8]) == (["m-1\x1b[2J"], [], ["m-2"])
    wide, narrow = (keel("history", "trip", "--url", url, COLUMNS=columns).stdout for columns in ("120", "60"))
    assert re.search(r"9 +\w{8} .* agent · m-2 +done", wide)
    assert "agent · m-2" in narrow


# -- export ----------------------------------------------------------------------------------------------------


@on_two
def test_export_writes_one_line_per_thread(url: str, tmp_path: Path) -> None:
    done = keel("export", "--url", url)
    assert [line["thread_id"] for line in lines(done.stdout)] == ["trip", EVIL]
    assert "Wrote 2 threads; skipped: 1 without messages." in done.stderr
    path = tmp_path / "all.jsonl"
    report = keel_json("export", "--url", url, "--output", str(path))
    assert path.read_text() == done.stdout
    assert report == {"output": str(path), "written": 2, "skipped": {"no messages": 1}, "errors": {}}
    [trip, _] = lines(done.stdout)
    assert (trip["label"], trip["cost"], len(trip["messages"]), trip["steps"]) == ("good", 1.0, 8, 8)
    assert trip["drift"][0]["step"] == 6


@on_two
@pytest.mark.parametrize(
    ("options", "written"),
    [
        (("--label", "bad"), [EVIL]),
        (("--model", "m-2"), ["trip"]),
        (("--max-cost", "0.5"), [EVIL]),
        (("--min-cost", "0.6"), ["trip"]),
        (("--limit", "1"), ["trip"]),
        (("--thread", EVIL, "--thread", "trip"), [EVIL, "trip"]),
        (("--channel", "x"), []),
    ],
    ids=lambda value: value[0].removeprefix("--") if value and isinstance(value, tuple) else "",
)
def test_export_filters_threads(url: str, options: tuple[str, ...], written: list[str]) -> None:
    assert [line["thread_id"] for line in lines(keel("export", *options, "--url", url).stdout)] == written


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_export_counts_threads_excluded_by_filters(url: str, tmp_path: Path) -> None:
    told = keel("export", "--label", "nosuch", "--url", url).stderr
    assert "Wrote 0 threads; skipped: " in told
    assert "2 by the filters" in told
    assert "1 without messages" in told
    told = keel("export", "--thread", "nosuch", "--url", url, status=1).stderr
    assert told == "error: there is no thread 'nosuch'\n"
    told = keel("export", "--thread", "nosuch", "--thread", "trip", "--url", url, status=1).stderr
    assert told.endswith("'nosuch'\nWrote 1 thread.\n")
    path = tmp_path / "none.jsonl"  # the command creates it
    told = keel("export", "--thread", "nosuch", "--output", str(path), "--url", url, status=1).stderr
    assert told.endswith(f"'nosuch'\nWrote 0 threads to {path}.\n")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_an_output_file_is_replaced_atomically_with_overwrite(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "all.jsonl"
    path.parent.mkdir()
    path.write_text("mine")
    assert "--overwrite" in keel("export", "--url", url, "--output", str(path), status=2).stderr
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["langgraph_keel.cli.provenance"], "as_json", lambda line: 1 / 0)
        keel("export", "--url", url, "--output", str(path), "--overwrite", status=1)
    assert path.read_text() == "mine"
    keel("export", "--url", url, "--output", str(path), "--overwrite")
    assert len(lines(path.read_text())) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask()
    assert os.listdir(path.parent) == ["all.jsonl"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_unwritable_outputs_are_refused(url: str, tmp_path: Path) -> None:
    told = keel("export", "--url", url, "--output", str(tmp_path), "--overwrite", status=2).stderr
    assert "is not a file" in told
    nowhere = str(tmp_path / "none" / "all.jsonl")
    assert "cannot write" in keel("export", "--url", url, "--output", nowhere, status=2).stderr
    assert keel_json("export", "--url", url, status=2)["error"]["code"] == "invalid_input"
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    told = keel_json("export", "--url", missing, "--output", str(tmp_path / "x.jsonl"), status=1)
    assert told["error"]["code"] == "not_found"
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_export_writes_through_a_symbolic_link(url: str, tmp_path: Path) -> None:
    link, target = tmp_path / "link.jsonl", tmp_path / "far" / "target.jsonl"
    target.parent.mkdir()
    link.symlink_to(target)
    keel("export", "--url", url, "--output", str(link))  # to a file that does not exist yet
    assert len(lines(target.read_text())) == 2
    assert "--overwrite" in keel("export", "--url", url, "--output", str(link), status=2).stderr
    keel("export", "--url", url, "--output", str(link), "--overwrite", "--limit", "1")
    assert (link.is_symlink(), len(lines(target.read_text()))) == (True, 1)
    assert os.listdir(target.parent) == ["target.jsonl"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO")
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_export_writes_to_a_fifo(url: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        told = keel("export", "--url", url, "--output", str(fifo)).stderr
        assert [line["thread_id"] for line in lines(reader.read())] == ["trip", EVIL]
    assert "Wrote 2 threads" in told
    assert os.listdir(tmp_path).count("fifo") == 1
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs /dev/stdout")
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_export_writes_to_dev_stdout(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "langgraph_keel.cli", "export", "--url", url, "--output", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert [line["thread_id"] for line in lines(done.stdout.decode())] == ["trip", EVIL]
    with (tmp_path / "log").open("ab") as log:
        log.write(b"before\n")
        log.flush()
        subprocess.run(command, stdout=log, stderr=subprocess.DEVNULL, timeout=60, check=True)
    assert (tmp_path / "log").read_bytes() == b"before\n" + done.stdout
    refused = subprocess.run([*command, "--json"], capture_output=True, timeout=60)
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (2, "invalid_input")


TERMINATED = """
import os, signal, sys
from langgraph_keel.cli import main, provenance as export
def as_json(line):
    print(*os.listdir(os.path.dirname(sys.argv[-1])), flush=True)
    signal.raise_signal(getattr(signal, os.environ["ENDED_BY"]))
    return ""
export.as_json = as_json
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_terminated_export_removes_its_partial_file(url: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / "out" / "all.jsonl"
    path.parent.mkdir()
    command = [sys.executable, "-c", TERMINATED, "export", "--url", url, "--output", str(path)]
    done = subprocess.run(command, capture_output=True, timeout=60, env=os.environ | {"ENDED_BY": name})
    assert re.fullmatch(rb"\.all\.jsonl\.\w+\.part\n", done.stdout)  # it existed when the signal came
    assert done.returncode in (128 + getattr(signal, name), 1 if name == "SIGINT" else None)
    assert b"Traceback" not in done.stderr
    assert os.listdir(path.parent) == []


@on_two
def test_damaged_threads_are_reported_and_the_rest_is_exported(place: Place, tmp_path: Path) -> None:
    with place.open() as saver:
        for thread in ("a", "b", "c"):
            World().run(saver, thread)
    damage(place)
    path = tmp_path / "all.jsonl"
    done = keel("export", "--url", place.url, "--output", str(path), status=1)
    assert re.search(r"error: thread 'b'.*header does not decode", done.stderr)
    assert "1 that cannot be read" in done.stderr
    assert [line["thread_id"] for line in lines(path.read_text())] == ["c", "a"]
    report = keel_json("export", "--url", place.url, "--output", str(path), "--overwrite", status=1)
    assert (report["written"], report["errors"]["b"]["code"]) == (2, "corrupt_store")
    assert keel("export", "--url", place.url, "--thread", "a", "--thread", "nobody", status=1).stdout.count("\n") == 1


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_pipe_receives_only_lines(url: str) -> None:
    command = [sys.executable, "-m", "langgraph_keel.cli", "export", "--url", url]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=60)
    assert [line["thread_id"] for line in lines(done.stdout.decode("ascii"))] == ["trip", EVIL]
    assert b"\x1b" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_export_shows_a_bar_in_a_terminal(url: str) -> None:
    ours, theirs = os.openpty()
    impatient = "from langgraph_keel.cli import main, output; output.PATIENCE = -1; main()"
    command = [sys.executable, "-c", impatient, "export", "--url", url]
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
        os.close(theirs)
        shown = terminal.read(1 << 16)
    assert len(lines(done.stdout.decode())) == 2
    assert b"Reading threads" in shown
    assert b"3/3" in shown
