"""The memory tools of langmem on a store."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.savers import each_backend, each_face
from support.store.opened import opened

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses old import paths of LangGraph
    langmem: Any = import_module("langmem")


@each_backend
@each_face
def test_langmem_tools_create_update_search_and_delete(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(backend, tmp_path, request) as place:
        tools = [
            make(namespace=("memories", "{langgraph_user_id}"), store=place.open().store())
            for make in (langmem.create_manage_memory_tool, langmem.create_search_memory_tool)
        ]
        manage, search = tools

        def call(tool: Any, person: str, **arguments: Any) -> Any:
            config = {"configurable": {"langgraph_user_id": person}}
            return tool.invoke(arguments, config) if face == "sync" else asyncio.run(tool.ainvoke(arguments, config))

        def found(person: str) -> list[str]:
            return [each["value"]["content"] for each in json.loads(call(search, person, query="where to sit"))]

        made = call(manage, "ada", content="a window seat")
        call(manage, "ada", content="no nuts")
        call(manage, "bob", content="an aisle seat")
        assert found("ada") == ["no nuts", "a window seat"]
        assert found("bob") == ["an aisle seat"]
        (memory,) = re.findall(r"[0-9a-f-]{36}", made)
        call(manage, "ada", content="the front row", action="update", id=memory)
        assert found("ada") == ["the front row", "no nuts"]
        call(manage, "ada", action="delete", id=memory)
        assert found("ada") == ["no nuts"]
        assert found("eve") == []
