"""The demo agent's chat model: it decides by script, from nothing but the messages that it is given."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

CUSTOMER = "Harbor Foods"
TASK = (
    f"{CUSTOMER} asks for its outage credit for July. Find the outages, work out the credit by our policy, "
    "book it once and write to them, check the ledger and write the report."
)
Call = tuple[str, dict[str, str]]


def _results(messages: Sequence[BaseMessage], tool: str) -> list[str]:
    return [str(item.content) for item in messages if isinstance(item, ToolMessage) and item.name == tool]


def _find(_: Sequence[BaseMessage]) -> list[Call]:
    queries = (f"outage {CUSTOMER}", "credit policy percent", f"account {CUSTOMER} monthly")
    return [("search_notes", {"query": query}) for query in queries]


def _read(messages: Sequence[BaseMessage]) -> list[Call]:
    names = "\n".join(_results(messages, "search_notes")).split("\n")
    return [("read_note", {"name": name}) for name in dict.fromkeys(names)]


def _work_out(messages: Sequence[BaseMessage]) -> list[Call]:
    notes = "\n".join(_results(messages, "read_note"))
    half_hours = " + ".join(f"ceil({minutes} / 30)" for minutes in re.findall(r"Downtime: (\d+)", notes))
    percent, fee = re.findall(r"(\d+) percent", notes)[0], re.findall(r"fee: ([\d.]+)", notes)[0]
    return [("calculate", {"expression": f"({half_hours}) * {percent} / 100 * {fee}"})]


def _book(messages: Sequence[BaseMessage]) -> list[Call]:
    amount = _results(messages, "calculate")[-1]
    text = f"Dear {CUSTOMER},\n\nwe credit you {amount} EUR for the outages in July.\n"
    return [("book_credit", {"customer": CUSTOMER, "amount": amount}), ("write_letter", {"text": text})]


def _check(_: Sequence[BaseMessage]) -> list[Call]:
    return [("check_ledger", {"customer": CUSTOMER})]


def _report(messages: Sequence[BaseMessage]) -> list[Call]:
    notes = [note.splitlines() for note in _results(messages, "read_note") if "Downtime" in note]
    lines = [f"- {note[0]}: {note[2].lower()}" for note in notes]
    checked = _results(messages, "check_ledger")[-1]
    text = "\n".join([f"# Outage credit for {CUSTOMER}, July", "", *lines, "", f"In the ledger: {checked}.", ""])
    return [("write_report", {"text": text})]


SCRIPT = (_find, _read, _work_out, _book, _check, _report)
KILLABLE_TURNS = len(SCRIPT)


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the model's next message: tool calls made from what the messages say, or the final answer."""
    turn = sum(isinstance(message, AIMessage) for message in messages)
    if turn >= len(SCRIPT):
        return AIMessage(f"Done: {_results(messages, 'book_credit')[-1]}; {_results(messages, 'write_report')[-1]}.")
    calls = SCRIPT[turn](messages)
    made = [
        {"name": name, "args": args, "id": f"call-{turn + 1}-{place}", "type": "tool_call"}
        for place, (name, args) in enumerate(calls, 1)
    ]
    return AIMessage("", tool_calls=made)


class ScriptedModel(BaseChatModel):
    """A chat model that decides by script; each call counts as paid for the moment it begins."""

    journal: Any
    pace: float

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        """Return the model itself: the script knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        turn = 1 + sum(isinstance(message, AIMessage) for message in messages)
        self.journal.write("model_paid", turn=turn, read=len(messages))
        time.sleep(self.pace)
        message = answer(messages)
        asks = [call["name"] for call in message.tool_calls]
        self.journal.write("model_answered", turn=turn, asks=asks, text=message.text)
        return ChatResult(generations=[ChatGeneration(message=message)])
