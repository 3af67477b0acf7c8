"""No backend stores a key, header, prompt, answer, description or error of a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from support.provenance.models import PROVIDERS, reply_to
from support.provenance.runs import Scene, both
from support.savers import BACKENDS, needing
from support.stores import each_store

KEPT = "secret-that-the-state-holds"


def secret(what: str) -> str:
    return f"secret-{what.replace(' ', '-')}-x5Jq8Vz"


@pytest.fixture(scope="module")
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    for name in BACKENDS:
        needing(name, request)
    directory: Path = tmp_path_factory.mktemp("redaction")
    # Compressed data cannot be searched.
    with pytest.MonkeyPatch.context() as patch, each_store(directory) as stores:
        patch.setattr("langgraph_keel.engine.encoding.bodies.WORTHWHILE", 1 << 40)
        yield stores


@tool
def look(at: str = secret("a default of a tool")) -> str:
    """Look: secret-a-tool-x5Jq8Vz."""
    return at


def answering(request: Any) -> Any:
    """Answer only with content that must not be stored."""
    status, headers, body = reply_to(request)
    body = body.replace("all done", secret("an answer")).replace('"msg_1"', f'"{secret("an id")}"')
    return status, headers | {"x-request-id": secret("a response header")}, body


def refusing(request: Any) -> Any:
    return 401, {}, json.dumps({"error": {"message": secret("an error"), "type": secret("a kind of error")}})


def model(provider: str, reply: Any) -> Any:
    both_have: dict[str, Any] = {
        "api_key": secret("a key"),
        "default_headers": {"Authorization": secret("a header"), "x-team": secret("a team")},
        "base_url": f"https://{secret('a user')}:{secret('a password')}@localhost/{secret('a path')}",
        "metadata": {"owner": secret("metadata of the model")},
        "tags": [secret("a tag of the model")],
    }
    if provider == "openai":
        given = {"extra_body": {"metadata": {"k": secret("a body")}}, "organization": secret("an organization")}
        made = PROVIDERS[provider](
            reply, **both_have, **given, model_kwargs={"safety_identifier": secret("a model_kwarg")}
        )
        return made.bind_tools([look]).bind(user=secret("a user of the model"), extra_headers={"k": secret("one more")})
    made = PROVIDERS[provider](reply, **both_have, model_kwargs={"extra_body": {"k": secret("a model_kwarg")}})
    return made.bind_tools([look]).bind(extra_headers={"k": secret("one more")})


PROMPT = [SystemMessage(secret("a system prompt")), HumanMessage(secret("a prompt"), name="ann", id=secret("an id"))]
CONFIG: Any = {"metadata": {"who": secret("metadata of a call"), "n": 1}, "tags": [secret("a tag")], "run_name": "r"}


def calling(models: list[Any]) -> Any:
    """Call each model plain and streamed, and keep its output out of the state."""

    def ask(state: Any) -> Any:
        errors = []
        for each in models:
            try:
                each.invoke(PROMPT, CONFIG)
                list(each.stream(PROMPT, CONFIG))
            except Exception as error:
                errors.append(type(error).__name__)
        return {"said": [KEPT, *errors]}

    async def aask(state: Any) -> Any:
        errors = []
        for each in models:
            try:
                await each.ainvoke(PROMPT, CONFIG)
                assert [part async for part in each.astream(PROMPT, CONFIG)]
            except Exception as error:
                errors.append(type(error).__name__)
        return {"said": [KEPT, *errors]}

    return both(ask, aask)


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("provider", list(PROVIDERS))
async def test_stored_bytes_contain_no_secret(stores: Any, backend: str, provider: str, face: str) -> None:
    with stores[backend].open() as saver:
        scene = Scene(saver, face, "sync", f"{provider} {face}")
        models = [model(provider, answering), model(provider, refusing)]
        result = await scene.run(scene.compiled(("ask", calling(models))))
        assert len(result["said"]) == 3
        records = await scene.records()
    assert [call.error is None for call in records] == [True, True, False]
    assert [list(call.tools) for call in records] == [["look"]] * 3
    raw = stores[backend].raw()
    assert KEPT.encode() in raw  # so these bytes can be searched
    assert records[0].prompt_hash
    assert records[0].prompt_hash.encode() in raw
    assert b"x5Jq8Vz" not in raw
    assert "x5Jq8Vz" not in repr(records)
