"""Interfaces that programs rely on are unchanged: see `public_surface.json`.

It does not matter where the package defines them. `python tests/write.py surface` records an intended change, which is
reviewed in the diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_threads import COMMANDS
from support.surface import commands as public_commands
from support.surface import names as public_names
from test_golden import differences

pytestmark = pytest.mark.slow

SNAPSHOT = Path(__file__).parent / "public_surface.json"


def made(directory: Path) -> dict[str, Any]:
    (directory / "metadata").mkdir()
    return public_names.surface() | public_commands.surface(directory)


def written(surface: dict[str, Any]) -> str:
    return json.dumps(surface, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


# A single test, since the surface takes 20 seconds, and xdist would compute it once per process for several tests.
def test_the_public_surface_is_unchanged(tmp_path: Path) -> None:
    was, now = json.loads(SNAPSHOT.read_text("utf-8")), json.loads(written(made(tmp_path)))
    found = list(differences(was, now, "surface"))
    assert found == [], "\n".join(found)
    # Every command that prints JSON was run.
    for path, command in COMMANDS.items():
        if any("--json" in parameter.opts for parameter in command.params):
            assert any(name == path or name.startswith((f"{path} ", f"{path},")) for name in now["json"]), path


def test_the_public_surface_names_no_internal_module() -> None:
    text = json.dumps({key: part for key, part in json.loads(SNAPSHOT.read_text("utf-8")).items() if key != "json"})
    assert "langgraph_keel." not in text.replace("langgraph_keel.testing", "")
