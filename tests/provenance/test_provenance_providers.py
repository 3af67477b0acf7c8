"""The records of two providers' classes: plain and streamed calls, by both faces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from support.provenance.models import PROVIDERS, reply_to
from support.provenance.runs import ASK, Scene, both
from support.savers import each_face

from langgraph_keel import MemorySaver, ModelCall
from langgraph_keel.provenance.capture import hash_prompt

SERVED = {"openai": "gpt-4o-2024-08-06", "anthropic": "claude-test-20260101"}
ASKED = {"openai": "gpt-4o", "anthropic": "claude-test"}
each_provider = pytest.mark.parametrize("provider", list(PROVIDERS))


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


@pytest.fixture
def saver() -> Iterator[MemorySaver]:
    with MemorySaver() as saver:
        yield saver


def asking(model: Any, is_streamed: bool, given: Any = ASK) -> Any:
    def ask(state: Any) -> Any:
        parts = list(model.stream(given)) if is_streamed else [model.invoke(given)]
        return {"said": ["".join(str(part.text) for part in parts)]}

    async def aask(state: Any) -> Any:
        parts = [part async for part in model.astream(given)] if is_streamed else [await model.ainvoke(given)]
        return {"said": ["".join(str(part.text) for part in parts)]}

    return both(ask, aask)


async def record_of(saver: MemorySaver, model: Any, face: str = "sync", is_streamed: bool = False) -> ModelCall:
    """Return the record of a single call that succeeded."""
    scene = Scene(saver, face, "sync", f"t{len(list(saver.threads()))}")
    result = await scene.run(scene.compiled(("ask", asking(model, is_streamed))))
    assert result["said"] == ["hello", "all done"]
    (record,) = await scene.records()
    return record


@each_face
@each_provider
async def test_streamed_and_plain_calls_have_equal_records(saver: MemorySaver, provider: str, face: str) -> None:
    # `ChatAnthropic` does not expose the stop words of its constructor.
    model = PROVIDERS[provider](temperature=0.5, top_p=0.9, max_tokens=64).bind(stop=["END"])
    plain, streamed = [await record_of(saver, model, face, is_streamed) for is_streamed in (False, True)]
    for call in (plain, streamed):
        assert (call.provider, call.model, call.served_model) == (provider, ASKED[provider], SERVED[provider])
        assert call.system_fingerprint == {"openai": "fp_oa"}.get(provider)
        assert (call.temperature, call.top_p, call.max_tokens, call.stop) == (0.5, 0.9, 64, ("END",))
        assert {name: call.usage[name] for name in ("input_tokens", "output_tokens", "total_tokens")} == {
            "input_tokens": 9,
            "output_tokens": 4,
            "total_tokens": 13,
        }
        assert call.finish_reason == {"openai": "stop", "anthropic": "end_turn"}[provider]
        assert call.versions.keys() >= {"langchain-core", f"langchain-{provider}"}
        assert call.seconds
        assert call.started_at > "2026"
        assert (call.node, call.step, call.attempt, call.error, call.cached) == ("ask", 1, 1, None, False)
    assert plain.answer_hash == streamed.answer_hash
    assert plain.prompt_hash == streamed.prompt_hash


@pytest.mark.parametrize("how", ["given", "bound", "in the call", "model_kwargs", "extra_body"])
async def test_a_seed_is_recorded_in_every_place_it_can_be_set(saver: MemorySaver, how: str) -> None:
    ways: dict[str, Any] = {"given": {"seed": 7}, "extra_body": {"extra_body": {"seed": 7}}}
    if how == "model_kwargs":
        with pytest.warns(UserWarning, match="seed"):
            model: Any = PROVIDERS["openai"](model_kwargs={"seed": 7})
    else:
        model = PROVIDERS["openai"](**ways.get(how, {}))
    if how in ("bound", "in the call"):
        model = model.bind(seed=7)
    assert (await record_of(saver, model)).seed == 7


async def test_bound_parameters_override_those_of_the_model(saver: MemorySaver) -> None:
    model = PROVIDERS["openai"](temperature=0.5, seed=1).bind(model="gpt-4o-mini", temperature=0.0, seed=0)
    record = await record_of(saver, model)
    assert (record.model, record.temperature, record.seed) == ("gpt-4o-mini", 0.0, 0)


@each_provider
async def test_tools_are_recorded_with_names_and_hashes(saver: MemorySaver, provider: str) -> None:
    model = PROVIDERS[provider]()
    one = await record_of(saver, model.bind_tools([look]))
    same = await record_of(saver, model.bind_tools([look]))
    other = await record_of(saver, model.bind_tools([look.model_copy(update={"description": "Look away."})]))
    assert list(one.tools) == list(other.tools) == ["look"]
    assert one.tools == same.tools != other.tools
    assert (await record_of(saver, model)).tools == {}


async def test_parameters_are_recorded_by_their_own_names(saver: MemorySaver) -> None:
    record = await record_of(
        saver, PROVIDERS["openai"](frequency_penalty=0.1, logit_bias={1: 2}, extra_body={"top_k": 4, "user": "ann"})
    )
    assert record.parameters == {"frequency_penalty": 0.1, "top_k": 4}


@each_face
@each_provider
async def test_a_failed_request_is_recorded_without_its_message(saver: MemorySaver, provider: str, face: str) -> None:
    def refuse(request: Any) -> Any:
        return 429, {}, json.dumps({"error": {"message": "SECRET is over its quota", "type": "rate"}})

    scene = Scene(saver, face, "sync", "t")
    with pytest.raises(Exception, match="SECRET"):
        await scene.run(scene.compiled(("ask", asking(PROVIDERS[provider](refuse), False))))
    (record,) = await scene.records()
    assert str(record.error).endswith("RateLimitError")
    assert (record.served_model, record.model) == (None, ASKED[provider])
    assert "SECRET" not in str(record)


async def test_only_metadata_keys_of_langchain_are_read(saver: MemorySaver) -> None:
    """The user's own keys may have any name."""
    names = ("model", "model_name", "temperature", "max_tokens", "stop", "seed", "top_p", "tools", "effort", "top_k")
    own = {name: ["SECRET"] if name in ("stop", "tools") else "SECRET" for name in names} | {"seed": 5, "top_p": 0.5}
    silent = GenericFakeChatModel(messages=iter([AIMessage("all done")])).with_config(metadata=own, tags=["SECRET"])
    record = await record_of(saver, silent)
    assert (record.model, record.seed, record.top_p, record.temperature, record.parameters) == (
        None,
        None,
        None,
        None,
        {},
    )
    assert "SECRET" not in str(record)


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), True, "7", [7]])
async def test_invalid_numbers_are_ignored(saver: MemorySaver, odd: Any) -> None:
    silent = GenericFakeChatModel(messages=iter([AIMessage("all done")])).bind(seed=odd, temperature=odd)
    record = await record_of(saver, silent)
    assert (record.seed, record.temperature) == (None, None)


async def test_a_reported_cost_is_recorded(saver: MemorySaver) -> None:
    def dear(request: Any) -> Any:
        status, headers, body = reply_to(request)
        said = json.loads(body)
        return status, headers, json.dumps(said | {"usage": said["usage"] | {"cost": 0.25}})

    record = await record_of(saver, PROVIDERS["openai"](dear))
    assert record.cost == 0.25
    assert not record.cached


def test_a_prompt_hash_ignores_message_ids() -> None:
    def prompt(mark: str, text: str = "hello") -> Any:
        called: Any = [{"name": "look", "args": {"at": 1}, "id": f"call {mark}"}]
        block: Any = {"type": "tool_use", "id": f"call {mark}", "name": "look", "input": {"at": 1}}
        return [
            SystemMessage("be good", id=f"s{mark}"),
            HumanMessage(text, id=f"h{mark}"),
            AIMessage([block], tool_calls=called, id=f"a{mark}"),
            ToolMessage("seen", tool_call_id=f"call {mark}", id=f"t{mark}"),
        ]

    assert hash_prompt(prompt("1")) == hash_prompt(prompt("2"))
    one, other = hash_prompt(prompt("1")), hash_prompt(prompt("1", "goodbye"))
    assert one["system_hash"] == other["system_hash"]
    assert one["prompt_hash"] != other["prompt_hash"]


def test_a_prompt_hash_ignores_random_ids_of_a_provider() -> None:
    def prompt(mark: str, file: str = "file-1") -> Any:
        searched: Any = {"type": "web_search_call", "id": f"ws {mark}", "status": "completed"}
        read: Any = {"type": "file", "source_type": "id", "id": file}
        return [AIMessage([searched, read, {"type": "text", "text": "so", "id": f"msg {mark}"}])]

    assert hash_prompt(prompt("1")) == hash_prompt(prompt("2"))
    assert hash_prompt(prompt("1")) != hash_prompt(prompt("1", "file-2"))
    assert hash_prompt(prompt("1")) != hash_prompt([AIMessage("so")])
