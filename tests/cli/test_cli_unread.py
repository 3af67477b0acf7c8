"""The commands of `keel`, for an operator without the application's code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from support.cli_threads import keel
from support.places import Place
from support.shop.stores import left_by_a_shop

from langgraph_keel import RefusedType, Unread
from langgraph_keel.backends.sqlite.store import SqliteStore

# `--url` alone is enough to open these.
BY_URL = pytest.mark.parametrize("place", ["sqlite", "files", "postgres"], indirect=True)
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
ADVICE = "import its module before reading, or add it to types=[...] If you trust it: --import support.shop.models\n"
REASON = ADVICE.removesuffix(" If you trust it: --import support.shop.models\n")


def unread(name: str, stored: Any) -> dict[str, Any]:
    """Return the JSON of a value that could not be read."""
    reason = f"this program has no such class: {REASON}"
    of = {"not_read": f"support.shop.models.{name}", "module": "support.shop.models", "qualname": name}
    return {**of, "reason": reason, "stored": stored}


PAID = unread("Order", {"items": ["tea"], "status": unread("Status", "PAID")})


@pytest.mark.slow
@BY_URL
def test_each_command_shows_values_that_can_be_read(place: Place) -> None:
    url = left_by_a_shop(place).url

    shown = keel("show", "t", "--url", url, COLUMNS="200")
    assert "human  Hello" in shown.stdout
    assert "order  Order, not read" in shown.stdout
    assert "'support.shop.models.Order'" in shown.stdout
    assert shown.stderr.endswith(ADVICE)
    assert (
        " values not read, of support.shop.models.Order, support.shop.models.Status, support.shop.models.Customer"
        in shown.stderr
    )
    assert shown.stderr.count("\n") == 1

    state = keel("show", "t", "--url", url, "--json")
    values = json.loads(state.stdout)["values"]
    assert values["order"] == PAID
    assert [message.get("artifact") for message in values["messages"]] == [None, PAID, None]
    assert values["lines"][0] == "plain"
    assert state.stderr.endswith(ADVICE)

    history = keel("history", "t", "--url", url, "--json")
    rows = json.loads(history.stdout)["checkpoints"]
    assert [row["ran"] for row in rows] == [["pay"], ["begin"], ["__start__"], []]
    assert rows[0]["pending_writes"] == ["lines"]
    assert rows[0]["interrupts"][0]["value"] == {"question": "Send it?", "order": PAID}
    assert (
        history.stderr == "2 values not read, of support.shop.models.Order, support.shop.models.Status: "
        f"this program has no such class: {ADVICE}"
    )

    timeline = keel("timeline", "t", "--url", url, "--json")
    moments = json.loads(timeline.stdout)["moments"]
    assert moments[-1]["not_read"] == ["support.shop.models.Order", "support.shop.models.Status"]
    assert "support.shop.models.Order" in moments[-1]["changes"]["order"]
    assert timeline.stderr.startswith("3 moments with values that were not read, of support.shop.models.")

    diff = keel("diff", "t", "2", "3", "--url", url, "--json")
    edits = {tuple(edit["path"]): edit for edit in json.loads(diff.stdout)["edits"]}
    assert edits["order", "status"]["after"] == unread("Status", "PAID")
    assert edits["basket", "total"]["after"] == 3
    assert diff.stderr.endswith(ADVICE)
    assert "total: 0 → 3" in keel("diff", "t", "2", "3", "--url", url).stdout
    patch = json.loads(keel("diff", "t", "2", "3", "--url", url, "--patch").stdout)
    assert {"op": "replace", "path": "/basket/total", "value": 3} in patch

    export = keel("export", "--url", url)
    lines = [json.loads(line) for line in export.stdout.splitlines()]
    assert {line["thread_id"] for line in lines} == {"called", "t"}
    assert export.stderr == "Wrote 2 threads; skipped: 1 without messages.\n"

    assert "find   done" in keel("tools", "called", "--url", url).stdout
    assert json.loads(keel("provenance", "t", "--url", url, "--json").stdout)["calls"] == []
    assert json.loads(keel("archive", "t", "--url", url, "--json").stdout)["parts"] == []
    waiting = json.loads(keel("approvals", "--url", url, "--json").stdout)["approvals"]
    assert {each["thread_id"] for each in waiting} == {"t", "asked"}
    unfinished = json.loads(keel("threads", "--unfinished", "--url", url, "--json").stdout)["threads"]
    assert {each["thread_id"]: each["state"] for each in unfinished} == {"t": "waits", "asked": "waits"}


@pytest.mark.slow
@BY_URL
def test_an_unread_archived_message_is_shown_and_found(place: Place) -> None:
    url = left_by_a_shop(place, "archive").url
    found = keel("archive", "archived", "--search", "invoice", "--url", url, COLUMNS="200")
    assert "2 messages contain 'invoice', in 1 part" in found.stdout
    assert "An invoice" in found.stdout
    assert "Memo, not read" in found.stdout
    assert '"content": "The invoice of o7"' in found.stdout
    assert "1 value not read, of support.shop.models.Memo" in found.stderr
    part = json.loads(keel("archive", "archived", "--url", url, "--json").stdout)["parts"][0]["id"]
    messages = json.loads(keel("archive", "archived", "--part", part, "--url", url, "--json").stdout)["messages"]
    assert messages[0]["message"]["content"] == "An invoice"
    assert messages[1]["message"]["not_read"] == "support.shop.models.Memo"
    with place.open() as saver:
        kept = saver.raw.archive("archived")
        assert "Memo, not read" in str(kept.search("o7")[0])
        assert [type(message) for message in kept.messages()] == [HumanMessage, Unread]
        with pytest.raises(RefusedType, match=r"archived part .*support\.shop\.models\.Memo"):
            saver.archive("archived").search("o7")


@pytest.mark.slow
@SQLITE
def test_an_export_of_unread_messages_is_refused(place: Place) -> None:
    """A conversation with a missing message would differ, so it is not exported."""
    left_by_a_shop(place)
    done = keel("export", "--url", place.url, "--channel", "lines", status=1)
    assert done.stdout == ""
    assert "channel 'lines': support.shop.models.Customer" in done.stderr


@pytest.mark.slow
@SQLITE
def test_history_reads_no_values(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows only questions, so it reads only values that determine the next nodes."""
    url, wanted = left_by_a_shop(place).url, set[str]()
    read = SqliteStore.read_values

    def read_values(self: Any, entries: Any) -> Any:
        wanted.update(name for entry in entries for name in entry.refs)
        return read(self, entries)

    monkeypatch.setattr(SqliteStore, "read_values", read_values)
    keel("history", "t", "--url", url)
    assert wanted <= {"__start__", "__pregel_tasks", "branch:to:begin", "branch:to:pay", "branch:to:ask"}
    keel("timeline", "t", "--url", url)
    assert {"order", "basket", "messages"} <= wanted
