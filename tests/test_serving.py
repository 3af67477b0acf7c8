"""LangGraph's real API server and client, with Keel's checkpointer and store.

The rest of the server's data is in memory.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from servers import Launched
from servers.launch import running, workspace
from support.places import KINDS, Place
from support.tiers import sized

from langgraph_keel import InvalidInput
from langgraph_keel.serving import checkpointer, store

SETTINGS = {
    "dependencies": ["."],
    "graphs": {"agent": "support.served_graph:graph"},
    "checkpointer": {"path": "langgraph_keel.serving.checkpointer"},
    "store": {"path": "langgraph_keel.serving.store", "ttl": {"default_ttl": 60}},
}


@pytest.fixture
def served(place: Place) -> Place:
    """A store that a URL alone names.

    In Redis, it is another database than that of the other tests.
    """
    return place if place.kind != "redis" else Place("redis", urlsplit(place.url)._replace(path="/9").geturl())


@pytest.fixture
def server(served: Place) -> Iterator[Launched]:
    """`langgraph dev` on a store, not started yet. It needs no licence and no network."""
    environment = (
        f"KEEL_URL={served.url}",
        "KEEL_TYPES=support.served_graph",
        "LANGSMITH_TRACING=false",
        "LANGGRAPH_CLI_NO_ANALYTICS=1",
    )
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port"]
    with workspace("langgraph") as directory:
        (directory / "langgraph.json").write_text(json.dumps(SETTINGS))
        yield Launched(
            directory,
            lambda port: ["env", *environment, *command, str(port)],
            lambda port: httpx.get(f"http://127.0.0.1:{port}/ok").raise_for_status().text,
            signal.SIGINT,
            "queue stats",  # it is logged every second
            is_ours=True,
        )


@contextmanager
def client_of(server: Launched, thread_id: str) -> Iterator[SyncLangGraphClient]:
    """Return a client of a server that knows the thread.

    A server in memory forgets its own table when it is killed.
    """
    with get_sync_client(url=f"http://127.0.0.1:{server.port}") as client:
        client.threads.create(thread_id=thread_id, graph_id="agent", if_exists="do_nothing")
        yield client


def log_of(client: SyncLangGraphClient, thread_id: str) -> Any:
    values: Any = client.threads.get_state(thread_id)["values"]
    return values["log"]


@pytest.mark.slow
@pytest.mark.parametrize("place", sized(KINDS[:1], KINDS[:1], KINDS), indirect=True)
def test_the_api_server_uses_keels_checkpoints_and_items(server: Launched, served: Place) -> None:
    thread_id = str(uuid4())
    given: dict[str, Any] = {"log": ["asked for tea"]}
    run: dict[str, Any] = {"thread_id": thread_id, "assistant_id": "agent"}
    asked = ["asked for tea", "taken"]
    with running(server):
        with client_of(server, thread_id) as client:
            client.runs.wait(**run, input=given)
            state: Any = client.threads.get_state(thread_id)
            assert state["values"] == {"order": {"item": "tea", "is_paid": False}, "log": asked}
            assert [each["value"] for each in state["interrupts"]] == ["pay for it?"]
            assert len(client.threads.get_history(thread_id)) == 3
            client.store.put_item(["people", "ada"], "seat", {"side": "window"})
        server.kill()

        with served.open() as saver:  # a server in memory refuses to prune; its adapter reads the pruned store
            saver.prune([thread_id])
            assert saver.store().get(("people", "ada"), "seat")
        server.start()
        with client_of(server, thread_id) as client:
            order: Any = client.store.get_item(["orders"], "last")
            assert order["value"] == {"item": "tea"}
            found: Any = client.store.search_items(["people"], filter={"side": "window"})
            assert [each["key"] for each in found["items"]] == ["seat"]
            assert log_of(client, thread_id) == asked
            assert len(client.threads.get_history(thread_id)) == 1
            client.runs.wait(**run, command={"resume": "yes"})
            state = client.threads.get_state(thread_id)
            assert state["values"] == {"order": {"item": "tea", "is_paid": True}, "log": [*asked, "paid: yes"]}
            assert (state["next"], state["interrupts"]) == ([], [])
            client.runs.wait(**run, input=given)
            assert log_of(client, thread_id) == [*asked, "paid: yes", *asked]
            copied: Any = client.http.post(f"/threads/{thread_id}/copy", json=None)
            client.threads.delete(thread_id)
    with served.open() as saver:
        stored = {each.thread_id for each in saver.threads()}
    assert copied["thread_id"] in stored
    assert thread_id not in stored


@pytest.mark.parametrize(
    ("url", "types", "said"),
    [
        ("", "", "KEEL_URL is not set"),
        ("memory:", "", "memory:.*each event loop"),
        ("agents", "", "names no store"),
        ("sqlite:///agent.db", "json,no_such_module", "KEEL_TYPES: no_such_module: No module named"),
    ],
)
async def test_invalid_environment_variables_are_named(
    url: str, types: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEL_URL", url)
    monkeypatch.setenv("KEEL_TYPES", types)
    with pytest.raises(InvalidInput, match=said):
        await checkpointer().__aenter__()


async def test_the_store_is_shared_with_the_checkpointer_and_has_the_ttl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEL_URL", f"sqlite:///{tmp_path / 'agent.db'}")
    monkeypatch.setenv("LANGGRAPH_STORE", json.dumps(SETTINGS["store"]))
    async with store() as items, checkpointer() as saver:
        await items.aput(("people", "ada"), "seat", {"side": "window"})
        assert await saver.store().aget(("people", "ada"), "seat")
        assert items.ttl_config == {"default_ttl": 60}
        assert "keel-items" in [thread.name for thread in threading.enumerate()]
    assert "keel-items" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("config", ["[1]", "{", '{"ttl": 5}'])
async def test_an_invalid_store_in_langgraph_json_is_refused(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEL_URL", f"sqlite:///{tmp_path / 'agent.db'}")
    monkeypatch.setenv("LANGGRAPH_STORE", config)
    with pytest.raises(InvalidInput, match=r"LANGGRAPH_STORE|ttl="):
        await store().__aenter__()
