"""`keel approve`, `reject`, `edit` and `answer`, on questions of real graphs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from support.cli.waiting_threads import ARGS, asked, config, graph, id_of, questions, waiting, went_on
from support.cli_threads import EVIL, keel, keel_json
from support.tool_graphs import Killed, Scripted, answers, calls, hello
from typer.testing import CliRunner

from langgraph_keel import ToolCache, open_saver, request_approval
from langgraph_keel.cli import app
from langgraph_keel.tools import hook


@pytest.fixture
def url(asked_url: str) -> str:
    return asked_url


@pytest.mark.parametrize("scheme", ["sqlite:///", "files:"])
def test_an_approval_lets_the_agent_act(scheme: str, tmp_path: Path) -> None:
    where = asked(f"{scheme}{tmp_path / 'agents'}")
    name = id_of(where, "trip")
    shown = keel("approve", name[:14], "--by", "bob", "--reason", "still good", "--yes", "--url", where).stdout
    assert (
        shown.index('"flight": "LH 1"') < shown.index("about to approve") < shown.index("approved: book of thread trip")
    )
    assert "graph.invoke(saver.approvals.resume('trip'), config)" in shown
    assert waiting(where, "trip") == []
    (found,) = waiting(where, "trip", "--status", "approved")
    assert (found["decision"]["by"], found["decision"]["reason"]) == ("bob", "still good")
    assert went_on(where, "trip", graph, 1500) == ("approve", "bob", "still good", ARGS)
    again = keel("approve", name[:14], "--by", "bob", "--reason", "still good", "--yes", "--url", where).stdout
    assert "The agent has already used this decision" in again[again.index("consumed: book of thread trip") :]
    assert "resume" not in again


def test_the_reviewer_comes_from_the_environment(url: str) -> None:
    name = id_of(url, "trip")
    assert "--by" in CliRunner().invoke(app, ["reject", name, "--url", url]).output
    result = CliRunner().invoke(app, ["reject", name, "--url", url, "--json"], env={"KEEL_REVIEWER": "ann"})
    assert json.loads(result.stdout)["decision"]["by"] == "ann"
    told = went_on(url, "trip", graph, 1500)
    assert told[:2] == ("reject", "ann")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (("approve", "--by", "eve"), "not_allowed", "'eve' is not among its approvers (ann, bob)"),
        (("answer", "--value", "7", "--by", "ann"), "not_allowed", "allows approve, reject, edit, not answer"),
        (("approve", "--by", " "), "invalid_input", "by must name the reviewer"),
        (("edit", "--args", "{", "--by", "ann"), "invalid_input", "--args '{': Expecting property name"),
        (("edit", "--args", "NaN", "--by", "ann"), "invalid_input", "NaN is not JSON"),
        (("edit", "--args", "@/nowhere", "--by", "ann"), "invalid_input", "No such file"),
    ],
)
def test_a_refused_decision_is_explained_and_changes_nothing(url: str, command: Any, code: str, told: str) -> None:
    verb, *options = command
    name = id_of(url, "trip")
    status = 2 if code == "invalid_input" else 1
    result = keel(verb, name, *options, "--url", url, status=status)
    assert told in result.stderr
    assert result.stdout == ""
    assert keel_json(verb, name, *options, "--url", url, status=status)["error"]["code"] == code
    assert id_of(url, "trip") == name


def test_only_the_first_of_two_decisions_counts(url: str) -> None:
    name = id_of(url, "trip")
    assert keel_json("approve", name, "--by", "ann", "--url", url)["status"] == "approved"
    assert keel_json("reject", name, "--by", "bob", "--url", url, status=1)["error"]["code"] == "already_decided"
    assert keel_json("approve", name, "--by", "ann", "--url", url)["status"] == "approved"  # the same decision again
    assert "ann approved this on" in keel("reject", name, "--by", "bob", "--url", url, status=1).stderr
    assert went_on(url, "trip", graph, 1500)[:2] == ("approve", "ann")


def test_a_superseded_request_is_not_decided(url: str) -> None:
    name = id_of(url, EVIL)
    with open_saver(url) as saver:
        saver.timeline(EVIL).rewind(0)
    told = keel_json("approve", name, "--by", "ann", "--url", url, status=1)["error"]
    assert (told["code"], "superseded" in told["message"]) == ("already_decided", True)


@pytest.mark.parametrize("is_file", [False, True])
def test_edit_changes_arguments(url: str, is_file: bool, tmp_path: Path) -> None:
    path, text = tmp_path / "args.json", json.dumps({**ARGS, "flight": "LH 2"})
    path.write_text(text, encoding="utf-8")
    given = ("edit", id_of(url, "trip"), "--args", f"@{path}" if is_file else text, "--by", "ann", "--yes")
    shown = keel(*given, "--url", url).stdout
    assert "arguments: 1 changed\n" in re.sub(" +\n", "\n", shown)
    assert "~ flight: LH [-1-]{+2+}" in shown
    assert "edited: book of thread trip" in shown
    assert went_on(url, "trip", graph, 1500) == ("edit", "ann", "", {**ARGS, "flight": "LH 2"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("by train", "by train"),
        ('{"by": ["train", 1]}', {"by": ["train", 1]}),
        ("null", None),
        ("NaN", "NaN"),
        ("[", "["),
    ],
)
def test_an_answer_is_json_or_text(url: str, given: str, told: Any) -> None:
    shown = keel("answer", id_of(url, EVIL), "--value", given, "--by", "ann", "--yes", "--url", url).stdout
    assert "answered: the question of thread" in shown
    assert went_on(url, EVIL, questions) == told


# ---- an agent of LangChain's, with its middleware


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def agent(saver: Any, *more: Any) -> Any:
    script = [calls(("pay", {"amount": 100}, "a"), ("pay", {"amount": 7}, "b"))]
    gate = HumanInTheLoopMiddleware({"pay": True})
    return create_agent(Scripted(script=script), [pay], middleware=[gate, *more], checkpointer=saver)


def test_questions_of_one_step_are_decided_separately(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver:
        agent(saver).invoke(hello(), config("paying"))
    ids = {request["args"]["amount"]: request["id"] for request in waiting(where)}
    page = keel("approval", ids[7], "--url", where).stdout
    assert "question 2 of 2" in page
    first = keel("edit", ids[100], "--args", '{"amount": 50}', "--by", "ann", "--yes", "--url", where).stdout
    assert f"continues when these requests are decided, too: {ids[7][:14]}" in first
    assert "resume(" not in first
    last = keel("reject", ids[7], "--by", "ann", "--reason", "not twice", "--yes", "--url", where).stdout
    assert "saver.approvals.resume('paying')" in last
    with open_saver(where) as saver:
        said = answers(agent(saver).invoke(saver.approvals.resume("paying"), config("paying"), durability="sync"))
        tools = next(each.position for each in saver.timeline("paying") if "tools" in each.next)
    assert str(said["a"].content).endswith("paid 50")
    assert (said["b"].status, "not twice" in str(said["b"].content)) == ("error", True)
    shown = " ".join(keel("show", "paying", str(tools), "--url", where).stdout.split())
    assert "→ pay(amount=100), edited to pay(amount=50) → pay(amount=7)" in shown


@pytest.mark.parametrize("way", ["fork", "earlier fork", "fork of a fork", "rewind"])
def test_a_repeated_question_names_calls_made_since(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a reviewer would pay again, unaware of the first time.

    Two payments began in one millisecond.
    """
    monkeypatch.setattr(hook, "iso_time", lambda at: "2026-11-28T12:00:00.000+00:00")
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver, ToolCache(saver) as cache:
        made = agent(saver, cache.middleware())
        made.invoke(hello(), config("paying"), durability="sync")
        assert "called pay" not in keel("approval", waiting(where)[0]["id"], "--url", where).stdout
        for request in saver.approvals.pending("paying"):
            saver.approvals.approve(request.id, by="ann")
        made.invoke(saver.approvals.resume("paying"), config("paying"), durability="sync")
        moments = saver.timeline("paying")
        asks = next(each.position for each in moments if "after_model" in "".join(each.next))
        at = moments[asks - (way == "earlier fork")]
        thread_id = "paying" if way == "rewind" else "fork"
        if way == "rewind":
            saver.rewind(at.config)
        elif way == "fork of a fork":
            saver.fork(at.config, "middle")
            saver.fork(config("middle"), thread_id)
            assert "that 'paying' called after this point: pay" in str(saver.status(thread_id))
        else:
            saver.fork(at.config, thread_id)
        made.invoke(None, config(thread_id), durability="sync")
    again, name = "with an approval, it is called again", "'paying', of the same history,"
    if way == "rewind":
        again, name = "an equal call is answered with its result, one with other arguments is made", "'paying'"
    shown = " ".join(keel("approval", waiting(where)[0]["id"], "--url", where).stdout.split())
    assert shown.count(f"Thread {name} called pay at") == shown.count(f"(done): {again}") == 2


def test_a_tool_that_asks_itself_acts_again_after_a_rewind_and_everything_says_so(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool
    def refund(amount: int) -> str:
        """Refund."""
        assert request_approval("refund", {"amount": amount}).approved
        paid.append(amount)
        return "refunded"

    def decide() -> None:
        (request,) = saver.approvals.pending("paying")
        saver.approvals.approve(request.id, by="ann")
        made.invoke(saver.approvals.resume("paying"), config("paying"), durability="sync")

    def shown(*words: str) -> str:
        return " ".join(keel(*words, "--url", where).stdout.split())

    where, script = f"sqlite:///{tmp_path / 'agent.db'}", [calls(("refund", {"amount": 40}, "a"))]
    with open_saver(where) as saver, ToolCache(saver) as cache:
        gate = cache.middleware()
        made: Any = create_agent(Scripted(script=script), [refund], middleware=[gate], checkpointer=saver)
        made.invoke(hello(), config("paying"), durability="sync")
        decide()
        steps = [str(moment.position) for moment in saver.timeline("paying") if moment.next][-2:]
        warned = [shown("fork", "paying", step, f"fork {step}") for step in steps]
        rewound = shown("rewind", "paying", steps[0])
        assert "used no person's answer" in shown("status", "paying")
        made.invoke(None, config("paying"), durability="sync")
        approval = shown("approval", waiting(where, "paying")[0]["id"])
        decide()
    # The first fork asks again, and the second has the result.
    assert [each for each in warned if "may act on an approval" in each] == []
    assert "those that used a person's answer: they ask again, and run again if approved" in rewound
    assert "(done): with an approval, it is called again" in approval
    assert paid == [40, 40]


def test_fork_warns_of_an_approval_while_another_call_of_the_tool_has_finished(tmp_path: Path) -> None:
    """Of two approved payments, one was made, and the other was cut off."""

    @tool("pay")
    def pay_once(amount: int) -> str:
        """Pay."""
        if amount == 7:
            raise Killed
        return "paid"

    where, script = f"sqlite:///{tmp_path / 'agent.db'}", [calls(*(("pay", {"amount": n}, str(n)) for n in (100, 7)))]
    with open_saver(where) as saver, ToolCache(saver) as cache:
        gates = [HumanInTheLoopMiddleware({"pay": True}), cache.middleware()]
        made: Any = create_agent(Scripted(script=script), [pay_once], middleware=gates, checkpointer=saver)
        made.invoke(hello(), config("paying"), durability="sync")
        for request in saver.approvals.pending("paying"):
            saver.approvals.approve(request.id, by="ann")
        with pytest.raises(Killed):
            made.invoke(saver.approvals.resume("paying"), config("paying"), durability="sync")
        cache.close()
        assert {call.state for call in saver.tools.calls("paying")} == {"done", "unknown"}
    shown = " ".join(keel("fork", "paying", "-1", "other", "--url", where).stdout.split())
    assert shown.count("may act on an approval") == 2


# ---- a terminal


@pytest.mark.parametrize(("said", "status"), [("n\n", 1), ("\n", 1), ("\x04", 1), ("y\n", 0)], ids=repr)
def test_approve_asks_for_confirmation_in_a_terminal(
    url: str, typed: Any, capfd: pytest.CaptureFixture[str], said: str, status: int
) -> None:
    name = id_of(url, "trip")
    assert typed(said, "approve", name, "--by", "ann", "--url", url) == status
    out, err = capfd.readouterr()
    assert ("Approve? [y/N]" in err, '"flight": "LH 1"' in out) == (True, True)
    assert ("approved: book" in out, bool(waiting(url, "trip"))) == (status == 0, status == 1)


def test_approve_without_a_terminal_needs_confirmation(url: str) -> None:
    told = keel("approve", id_of(url, "trip"), "--by", "ann", "--url", url, status=2)
    assert "nothing was decided: there is no terminal" in told.stderr
    assert len(waiting(url, "trip")) == 1


@pytest.mark.parametrize("option", ["--yes", "--json"])
def test_approve_with_yes_or_json_asks_nothing(
    url: str, typed: Any, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    assert typed("", "approve", id_of(url, "trip"), "--by", "ann", "--url", url, option) == 0
    assert (capfd.readouterr().err, waiting(url, "trip")) == ("", [])
