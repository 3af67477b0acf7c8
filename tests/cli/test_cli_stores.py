"""`keel info`, `check`, `delete`, and filters of `keel threads`, on every backend."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.backends.damage import spots_of
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.cli.waiting_threads import config, graph, questions
from support.cli_threads import keel, keel_json
from support.places import Place
from typer.testing import CliRunner

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, StoreClosed, open_saver
from langgraph_keel.approvals.plans import find_waiting_threads
from langgraph_keel.cli import app
from langgraph_keel.engine.entries import is_trigger
from langgraph_keel.testing.faults import Counter, with_tap

START: Any = {"told": None}


def fill(saver: KeelSaver) -> None:
    """Create Ada's waiting thread, Bob's finished one, and one without an owner."""
    graph(saver).invoke(START, config("customer-5"))
    graph(saver).invoke(START, config("customer-17", "bob"))
    (request,) = saver.approvals.pending("customer-17")
    saver.approvals.approve(request.id, by="ann")
    graph(saver).invoke(saver.approvals.resume("customer-17"), config("customer-17", "bob"))
    questions(saver).invoke(START, {"configurable": {"thread_id": "internal"}})


def ids(saver: KeelSaver, **wanted: Any) -> list[str]:
    return sorted(info.thread_id for info in saver.threads(**wanted))


# -- threads


def test_filters_of_threads_are_combined_with_and(place: Place) -> None:
    with place.open() as saver:
        fill(saver)
        later = datetime.now(UTC) + timedelta(seconds=60)
        assert ids(saver, match="customer-*") == ["customer-17", "customer-5"]
        assert ids(saver, owner="ada") == ["customer-5"]
        assert {info.thread_id: info.owner for info in saver.threads()} == {
            "customer-5": "ada",
            "customer-17": "bob",
            "internal": "",
        }
        assert ids(saver, waiting=True) == ["customer-5", "internal"]
        assert ids(saver, waiting=True, match="customer-*", owner="ada") == ["customer-5"]
        assert ids(saver, waiting=True, owner="bob") == []
        assert ids(saver, since=later) == []
        assert len(ids(saver, since=later - timedelta(hours=1))) == 3
        assert len(list(saver.threads(1, match="customer-*"))) == 1


def test_threads_are_filtered_without_reading_states(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.open() as saver:
        fill(saver)

        def refuse(*_: object) -> Any:
            raise AssertionError("a state was read")

        def read_values(entries: Any) -> Any:
            assert all(map(is_trigger, (name for entry in entries for name in entry.refs)))
            return (yield from read(entries))

        store = saver.engine.session.store
        read = store.read_values
        for verb in ("read_entry", "read_graph"):
            monkeypatch.setattr(store, verb, refuse)
        monkeypatch.setattr(store, "read_values", read_values)  # values that determine the next nodes, and writes
        assert ids(saver, match="c*", owner="ada", waiting=True, since=datetime(2020, 1, 1)) == ["customer-5"]


async def test_the_asynchronous_face_applies_the_same_filters() -> None:
    async with MemorySaver() as saver:
        await asyncio.to_thread(fill, saver)
        assert [info.thread_id async for info in saver.athreads(match="customer-*", waiting=True)] == ["customer-5"]
        assert (await saver.ainfo()).threads == 3
        assert [finding async for finding in saver.acheck()] == []


def test_since_must_be_a_datetime() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidInput, match="datetime"):
        next(saver.threads(since="yesterday"))  # type: ignore[arg-type]


@pytest.fixture
def url(tmp_path: Path) -> str:
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver:
        fill(saver)
    return where


def test_keel_threads_accepts_the_filters(url: str) -> None:
    def found(*options: str) -> list[str]:
        return sorted(each["thread_id"] for each in keel_json("threads", "--url", url, *options)["threads"])

    assert found("--match", "customer-*", "--waiting", "--since", "1h") == ["customer-5"]
    assert found("--owner", "bob", "--since", "2020-01-01") == ["customer-17"]
    assert found("--since", "2999-01-01") == []
    assert found("--until", "2020-01-01") == []
    assert found("--status", "waiting", "--match", "c*") == ["customer-5"]
    assert found("--where", "user_id=bob", "--where", "source=loop") == ["customer-17"]
    assert found("--node", "nobody") == found("--error", "ValueError") == found("--label", "x") == []
    first = keel_json("threads", "--url", url, "--limit", "1")["threads"][0]
    after = keel_json("threads", "--url", url, "--after", first["cursor"])["threads"]
    assert [first["thread_id"], *(each["thread_id"] for each in after)] == [
        each["thread_id"] for each in keel_json("threads", "--url", url)["threads"]
    ]
    shown = keel("threads", "--limit", "1", "--url", url).stdout
    assert shown.endswith("--json prints the cursors that --after takes\n")
    assert first["cursor"] not in shown
    assert (
        "with other filters"
        in keel("threads", "--after", first["cursor"], "--owner", "a", "--url", url, status=2).stderr
    )
    assert "KEY=VALUE" in keel("threads", "--where", "x", "--url", url, status=2).stderr
    assert "must be one of incomplete" in keel("threads", "--status", "busy", "--url", url, status=2).stderr
    counts = keel_json("threads", "--count", "--url", url)
    assert counts["threads"] == sum(counts["statuses"].values()) == sum(counts["days"].values()) == 3
    assert {"ada", "bob"} <= {*counts["owners"]}
    assert "3 threads" in keel("threads", "--count", "--url", url).stdout
    assert found("--unfinished", "--match", "int*") == ["internal"]
    assert "matches" in keel("threads", "--owner", "nobody", "--url", url).stdout
    assert "give an age" in keel("threads", "--since", "yesterday", "--url", url, status=2).stderr
    shown = keel("threads", "--url", url).stdout
    assert "owner" in shown
    assert "ada" in shown
    assert "more" not in shown
    assert "--limit" in keel("threads", "--unfinished", "--limit", "1", "--url", url).stdout


def test_waiting_threads_are_marked(url: str) -> None:
    facts = {each["thread_id"]: each["facts"] for each in keel_json("threads", "--url", url)["threads"]}
    assert facts == {
        "customer-5": {"waits": "for a person"},
        "customer-17": {},
        "internal": {"waits": "for a person"},
    }
    shown = keel("threads", "--url", url, COLUMNS="120").stdout
    assert shown.count("for a person") == 2
    assert shown.split()[:3] == ["thread", "status", "next"]
    assert "for a person" not in keel("threads", "--match", "customer-17", "--url", url).stdout


def test_a_decided_thread_is_not_waiting(url: str) -> None:
    with open_saver(url) as saver:
        (request,) = saver.approvals.pending("customer-5")
        saver.approvals.approve(request.id, by="ann")
    shown = keel("threads", "--url", url, COLUMNS="120").stdout.splitlines()
    status = {line.split()[0]: line.split()[1] for line in shown if line[:8] in ("customer", "internal")}
    assert (status["customer-5"], status["internal"]) == ("decided", "waiting")
    (info,) = keel_json("threads", "--match", "customer-5", "--url", url)["threads"]
    assert (info["status"], info["facts"]) == ("waiting", {})
    assert "was decided" in keel("threads", "--unfinished", "--url", url).stdout


def test_a_long_id_is_shortened_in_tables(tmp_path: Path) -> None:
    url, name = f"sqlite:///{tmp_path / 'keel.db'}", "ä" * 2000
    with open_saver(url) as saver:
        graph(saver).invoke(START, config(name))
    for command in ("threads", "approvals"):
        assert len(keel(command, "--url", url).stdout.splitlines()) < 12
    assert keel_json("threads", "--url", url)["threads"][0]["thread_id"] == name


def test_marking_waiting_threads_takes_two_trips(place: Place) -> None:
    with place.open() as saver:
        fill(saver)
        counter = Counter()
        engine = with_tap(saver, counter).engine
        assert engine.run(find_waiting_threads(engine.session, {"customer-5", "customer-17"})) == {"customer-5"}
        assert counter.taken() == 2


# -- info


def test_info_describes_a_store_and_its_contents(place: Place) -> None:
    with place.open() as saver:
        fill(saver)
        found = saver.info()
    assert (found.threads, found.waiting, found.format) == (3, 2, 1)
    assert found.checkpoints == 7
    assert found.backend in place.url
    assert found.durability not in ("", "unknown")
    assert (found.size is None) is (place.kind == "redis")
    assert "***" in found.place or "@" not in found.place


def test_info_reports_the_format_after_the_first_put(place: Place) -> None:
    with place.open() as saver:
        saver.put(config_for("t"), checkpoint_of("00000001", {"v": 1}), METADATA, {})
        assert saver.info().format == 1


def test_keel_info(url: str) -> None:
    assert keel_json("info", "--url", url)["threads"] == 3
    shown = keel("info", "--url", url).stdout
    for words in ("sqlite", "format", "on disk", "2 requests", "3 with 7 checkpoints"):
        assert words in shown


# -- check


def test_keel_check(tmp_path: Path, url: str) -> None:
    assert keel("check", "--url", url).stdout == "OK: 3 threads, 7 checkpoints read, no damage.\n"
    assert keel_json("check", "--url", url) == {"findings": [], "clean": True}
    with spots_of(Place("sqlite", url)) as spots:
        spot = next(each for each in spots if each.kind == "entries.header")
        number = int(spot.where.rpartition(" ")[2]) >> 32
        spot.write(spot.value[:-1] + b"\x00")
    before = (tmp_path / "agent.db").read_bytes()
    shown = keel("check", "--url", url, status=1).stdout
    assert "its header does not decode" in shown
    found = keel_json("check", "--url", url, status=1)
    assert found["clean"] is False
    names = {1: "customer-5", 2: "customer-17", 3: "internal"}
    assert [(each["kind"], each["thread_id"]) for each in found["findings"]] == [("lost", names[number])]
    assert (tmp_path / "agent.db").read_bytes() == before


def test_check_on_a_closed_store_raises_store_closed(place: Place) -> None:
    with place.open() as saver:
        fill(saver)
        check = saver.check()
        saver.close()
        with pytest.raises(StoreClosed):
            list(check)


# -- delete


def test_delete_shows_and_asks(url: str, typed: Callable[..., int]) -> None:
    assert "Would remove 1 whole thread" in keel("delete", "customer-5", "--dry-run", "--url", url).stdout
    assert "--yes" in keel("delete", "customer-5", "--url", url, status=2).stderr
    assert typed("n\n", "delete", "customer-5", "--url", url) == 1
    with open_saver(url) as saver:
        assert len(ids(saver)) == 3
    assert "`keel threads` lists all threads" in keel("delete", "customer5", "--yes", "--url", url, status=1).stderr
    assert typed("y\n", "delete", "customer-5", "--url", url) == 0
    assert keel_json("delete", "internal", "--yes", "--url", url)["deleted"] == 1
    with open_saver(url) as saver:
        assert ids(saver) == ["customer-17"]
        assert list(saver.approvals.pending()) == []


# -- which store


def test_an_error_without_a_store_explains_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEEL_URL", raising=False)
    told = keel("threads", status=1).stderr
    assert "there is no Keel store" in told
    assert "agent.db" in told
    assert "--url URL, or set KEEL_URL" in told
    assert "[not_found]" not in told
    assert keel_json("threads", status=1)["error"]["code"] == "not_found"
    for words in (["show", "t"], ["approvals"], ["check"], ["info"], ["rewind", "t", "1"]):
        assert "set KEEL_URL" in keel(*words, status=1).stderr
    assert "KEEL_URL" not in keel("threads", "--url", "other.db", status=1).stderr
    assert list(tmp_path.iterdir()) == []


def test_a_path_names_the_store_at_that_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_saver("files:agents") as saver:
        fill(saver)
    for name in ("agent.db", str(tmp_path / "agent.db"), "agents", "agents/"):
        assert len(keel_json("threads", "--url", name)["threads"]) == 3
    assert len(keel_json("threads")["threads"]) == 3  # agent.db is the default
    shutil.move("agent.db", "other")
    assert CliRunner().invoke(app, ["threads"], env={"KEEL_URL": "other"}).exit_code == 0
    told = keel("threads", "--url", "nothing", status=2).stderr
    assert "'nothing' names no store, and no file or directory of that name was found: use sqlite:///" in told


def test_open_saver_accepts_paths_like_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_saver("trip.db") as saver:
        fill(saver)
    (tmp_path / "agents").mkdir()
    with open_saver("agents") as saver:
        fill(saver)
    for name in ("trip.db", "agents"):
        with open_saver(name, read_only=True) as saver:
            assert (len(ids(saver)), saver.info().backend) == (3, "sqlite" if name == "trip.db" else "files")
    with pytest.raises(InvalidInput, match="'trip' names no store, and no file or directory of that name was found"):
        open_saver("trip")


async def test_open_saver_accepts_a_path_in_a_running_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_saver("trip.db") as saver:
        assert (await saver.ainfo()).backend == "sqlite"
    with pytest.raises(InvalidInput, match="names no store"):
        open_saver(".")


def test_keel_status(url: str) -> None:
    assert keel("status", "customer-17", "--url", url).stdout == "thread 'customer-17' is idle: it takes new input.\n"
    assert keel_json("status", "customer-5", "--url", url)["state"] == "waits"
    # It may have been killed before its first checkpoint. Threads of other customers are not named.
    new = "thread 'customer-55' has no checkpoint yet: it takes its first input.\n"
    assert keel("status", "customer-55", "--url", url).stdout == new
