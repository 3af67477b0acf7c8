"""Typical states of agents, and the change of one step: short and long, wide and nested.

A step copies the values that it changes and shares the rest, like a node that returns a new value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .graphs import message, text

Values = dict[str, Any]
Patch = list[dict[str, Any]]
"""The change of a step as a JSON Patch (RFC 6902): about the minimum to store."""


@dataclass(frozen=True)
class Shape:
    """The initial channels of a thread, and the change of a step.

    Attributes:
        name: Name in `--shapes` and in targets.
        label: Name in the table.
        first: Returns the initial channels.
        change: Takes the channels and the number of the step; returns the new values and their patch.
        threads: Number of threads that the steps rotate through, so that a growing state keeps about its nominal size.
    """

    name: str
    label: str
    first: Callable[[], Values]
    change: Callable[[Values, int], tuple[Values, Patch]]
    threads: int = 1


def chat(count: int, threads: int = 16) -> Shape:
    """Return the shape of a chat of `count` messages; each step adds one."""

    def change(values: Values, step: int) -> tuple[Values, Patch]:
        said = values["messages"]
        new = message(len(said))
        return {"messages": [*said, new]}, [{"op": "add", "path": "/messages/-", "value": new.model_dump()}]

    return Shape(
        f"chat-{count}",
        f"chat of {count} messages",
        lambda: {"messages": [message(index) for index in range(count)]},
        change,
        threads,
    )


# -- wide ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """A channel's value as an object of an application class."""

    owner: str
    notes: str
    balance: int = 0


def _text_of(index: int, step: int) -> str:
    return text(f"{index} {step}", 2000)


def _dict_of(index: int, step: int) -> Values:
    parts = {f"part-{part}": text(f"{index} {part}", 200) for part in range(10)}
    return {**parts, f"part-{step % 10}": text(f"{index} {step}", 200), "revision": step}


def _object_of(index: int, step: int) -> Account:
    return Account(text(f"owner {index}", 40), text(f"{index} {step}", 1900), step)


def _wide(kind: str, value_of: Callable[[int, int], Any]) -> Shape:
    def change(_: Values, step: int) -> tuple[Values, Patch]:
        name, value = f"channel-{step % 50:02}", value_of(step % 50, step)
        shown = value.__dict__ if isinstance(value, Account) else value
        return {name: value}, [{"op": "replace", "path": f"/{name}", "value": shown}]

    return Shape(
        f"wide-{kind}",
        f"50 channels of 2 KB ({kind}), one changes",
        lambda: {f"channel-{index:02}": value_of(index, 0) for index in range(50)},
        change,
    )


# -- nested ----------------------------------------------------------------------------------------------------------


def _document() -> Values:
    """Return 1 MB: 10 chapters of 10 sections of 10 paragraphs of 10 sentences of 100 characters."""
    return {
        "document": {
            "title": text("title", 60),
            "chapters": [
                {"name": f"chapter {chapter}", "sections": [_section(chapter, section) for section in range(10)]}
                for chapter in range(10)
            ],
        }
    }


def _section(chapter: int, section: int) -> Values:
    return {
        "heading": text(f"{chapter} {section}", 40),
        "paragraphs": [
            [{"text": text(f"{chapter} {section} {place} {nth}", 90), "marks": []} for nth in range(10)]
            for place in range(10)
        ],
    }


def _edit_document(values: Values, step: int) -> tuple[Values, Patch]:
    at = ("document", "chapters", step % 10, "sections", 3 * step % 10, "paragraphs", 7 * step % 10, 9 * step % 10)
    return _set(values, (*at, "text"), text(f"step {step}", 90))


def _set(values: Values, path: Sequence[str | int], value: Any) -> tuple[Values, Patch]:
    """Return the path's channel with a new value at the end of the path; the rest is shared."""
    patch = [{"op": "replace", "path": "/" + "/".join(map(str, path)), "value": value}]
    return {str(path[0]): _replaced(values[str(path[0])], path[1:], value)}, patch


def _replaced(node: Any, path: Sequence[str | int], value: Any) -> Any:
    if not path:
        return value
    copied = node.copy()
    copied[path[0]] = _replaced(node[path[0]], path[1:], value)
    return copied


def _records() -> Values:
    return {"records": [_record(index) for index in range(500)]}


def _record(index: int) -> Values:
    tags = [f"tag-{index % 7}", f"tag-{index % 11}"]
    return {"id": f"record-{index}", "name": text(f"{index}", 40), "tags": tags, "score": index / 7, "seen": 0}


def _edit_record(values: Values, step: int) -> tuple[Values, Patch]:
    return _set(values, ("records", 37 * step % 500, "seen"), step)


def _todos() -> Values:
    todos = [{"content": text(f"todo {index}", 80), "status": "pending"} for index in range(20)]
    return {"todos": todos}


def _edit_todos(values: Values, step: int) -> tuple[Values, Patch]:
    todos, at = values["todos"], step // 2 % 20
    if step % 10 == 9:
        new = {"content": text(f"todo {20 + step}", 80), "status": "pending"}
        return {"todos": [*todos, new]}, [{"op": "add", "path": "/todos/-", "value": new}]
    return _set(values, ("todos", at, "status"), "in_progress" if step % 2 else "completed")


def _files() -> Values:
    return {"files": {f"src/module_{index:02}.py": _lines(index) for index in range(50)}}


def _lines(index: int) -> str:
    return "\n".join(text(f"{index} {line}", 40) for line in range(200))


def _edit_file(values: Values, step: int) -> tuple[Values, Patch]:
    name, start = f"src/module_{7 * step % 50:02}.py", 17 * step % 190
    lines = values["files"][name].split("\n")
    new = [text(f"step {step} {line}", 40) for line in range(3)]
    lines[start : start + 2] = new
    patch = [
        {"op": "replace", "path": f"/files/{name}/lines/{start + nth}", "value": line} for nth, line in enumerate(new)
    ]
    return {"files": {**values["files"], name: "\n".join(lines)}}, patch


def _long_text() -> Values:
    return {"draft": text("draft", 200_000)}


def _edit_text(values: Values, step: int) -> tuple[Values, Patch]:
    draft, at, new = values["draft"], 7919 * step % 190_000, text(f"step {step}", 60)
    patch = [{"op": "replace", "path": f"/draft/{at}", "value": new}]
    return {"draft": draft[:at] + new + draft[at + 40 :]}, patch


CHATS = tuple(chat(count) for count in (10, 50, 100, 1000))
WIDE = tuple(_wide(*each) for each in (("text", _text_of), ("dict", _dict_of), ("object", _object_of)))
NESTED = (
    Shape("document", "a document of 1 MB, one sentence changes", _document, _edit_document),
    Shape("records", "a list of 500 records, one changes", _records, _edit_record),
    Shape("todos", "a list of todos, one changes", _todos, _edit_todos),
    Shape("files", "50 files of 200 lines, three lines change", _files, _edit_file),
    Shape("text", "a text of 200 KB, edited in the middle", _long_text, _edit_text),
)
SHAPES = {shape.name: shape for shape in (*CHATS, *WIDE, *NESTED)}
