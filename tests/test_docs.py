"""Check every page of the repository: its programs run, its commands and links exist.

* The `python` blocks of a page run in order, as one program in an empty directory.
* A `bash` block runs at its place: `keel` in this process, anything else in bash. A block of `text` directly below it
  must equal the output.
* Blocks that are only shown are fenced as `text` or `console` (or `mermaid`); the `keel` commands in them must exist.

`python tests/write.py commands` updates the reference of the commands in `langgraph_keel/cli/README.md`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psycopg
import pytest
from support.cli.reference import COMMANDS, reference
from typer.testing import CliRunner

import langgraph_keel
from langgraph_keel import open_saver
from langgraph_keel.cli import app

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
COMMANDS_PAGE = ROOT / "langgraph_keel" / "cli" / "README.md"
ROOMS = ("langgraph_keel", "tests", "notebooks")
PAGES = sorted([*ROOT.glob("*.md"), *(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))])
RUN, SHOWN = ("python", "bash", "sql"), ("text", "console", "mermaid", "json", "yaml")


class Block(NamedTuple):
    """A fenced block: its language, its first line, its text, and the output below it."""

    language: str
    line: int
    text: str
    output: str | None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


FENCE = r"^```([^\n]*)\n(.*?)^```$"
BLOCK = re.compile(rf"{FENCE}(?=(?:\n\n```text\n(.*?)^```$)?)", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(each[1], text[: each.start()].count("\n") + 2, each[2], each[3]) for each in BLOCK.finditer(text)]


def prose_of(page: Path) -> str:
    """Return a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def is_ours_to_run(block: Block) -> bool:
    """Return whether a block runs here.

    CI runs the installation of Keel, on a clean clone.
    """
    return block.language in RUN and "pip install" not in block.text


RUNNING = [page for page in PAGES if any(map(is_ours_to_run, blocks_of(page)))]
LONG = [f"langgraph_keel/{room}/README.md" for room in ("backends/files", "recovery", "tenants")]
"""Pages whose programs start several processes."""


# ---- the programs

SERVERS = {
    "postgresql://localhost/agents": "postgres_url",
    "redis+cluster://localhost:7000": "redis_cluster_url",
    "redis://localhost:6379/0": "redis_url",
}
"""The servers of the pages, and their fixtures. Keys of Redis begin with `PREFIX`."""
PREFIX = 'prefix="agents"'


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that puts the tests' servers into a text, starting only these."""

    def swapped(text: str) -> str:
        for shown, fixture in SERVERS.items():
            if shown in text:
                text = text.replace(shown, request.getfixturevalue(fixture))
        if PREFIX in text:
            text = text.replace(PREFIX, f'prefix="{request.getfixturevalue("redis_prefix")}"')
        return text

    return swapped


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (name_of(page) in LONG)) for page in RUNNING], ids=name_of
)
def test_the_programs_of_a_page_run(
    page: Path, own: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEEL_URL", raising=False)
    # A separate module, because classes that a page defines are found by its name.
    program = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", program)
    for block in filter(is_ours_to_run, blocks_of(page)):
        text = own(block.text)
        if block.language == "python":
            code = "\n" * (block.line - 1) + text
            exec(compile(code, name_of(page), "exec"), vars(program))
        elif block.language == "sql":
            with psycopg.connect(own("postgresql://localhost/agents")) as connection:
                connection.execute(text.encode())
        elif is_keel(text):
            run_keel(text, f"{name_of(page)}:{block.line}", monkeypatch)
        else:
            printed = run_bash(text, tmp_path)
            assert block.output in (None, printed)


def is_keel(text: str) -> bool:
    """Return whether a block contains only calls of `keel`, and its URL."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return all(line.startswith(("keel ", "export KEEL_URL=")) for line in lines)


def run_keel(text: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each line in this process: a new process takes 1.5 seconds."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            continue
        result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "120", "NO_COLOR": "1"})
        assert result.exit_code == 0, f"{where}: {line}\n{result.output}"


def run_bash(text: str, directory: Path) -> str:
    names = {f"GIT_{who}_{what}": "ada@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=directory,
        env={**os.environ, **names, "PATH": path, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_has_a_known_language() -> None:
    assert README in RUNNING
    assert len(RUNNING) > 10
    languages = {(name_of(page), block.language) for page in PAGES for block in blocks_of(page)}
    assert {pair for pair in languages if pair[1] not in (*RUN, *SHOWN)} == set()


# ---- the first page


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_ci_runs_the_install_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    commands = (block.text.strip() for block in blocks_of(README) if block.language == "bash")
    first, second = (command for command in commands if "pip install" in command)
    for command in (*first.split(" && "), *second.split(" && ")):
        assert command.removeprefix("pip install ").strip() in script


def test_a_release_publishes_the_tested_build_without_a_token() -> None:
    build, publish = (ROOT / ".ci" / "release.yml").read_text(encoding="utf-8").split("\n  publish:\n")
    assert "run: bash .ci/run\n" in build
    assert "needs: build\n" in publish
    assert "permissions:\n      id-token: write\n" in publish
    assert "secrets." not in build + publish


OPENING = re.compile(r"^\| \[?([^|\]]+)[^|]*\|[^|]*\| `(with \w+\.from_conn_string\(.*?\) as saver:)` \|", re.MULTILINE)
LINES = dict(OPENING.findall(README.read_text(encoding="utf-8")))


@pytest.mark.parametrize("backend", ["Files", "PostgreSQL", "Redis, Valkey", "Redis Cluster"])
def test_the_quick_start_runs_on_other_backends_with_one_line_changed(
    backend: str, own: Callable[[str], str], redis_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = own(LINES[backend])
    name = line.split()[1].partition(".")[0]
    program = "\n".join(block.text for block in blocks_of(README) if block.language == "python")
    program = program.replace(LINES["SQLite"], line).replace("SqliteSaver", name)
    assert program.count(line) == 3
    # Separate threads on the shared server, deleted afterwards.
    threads = {"ada": redis_prefix, "trip": f"{redis_prefix} trip"}
    for shown, own_name in threads.items():
        program = program.replace(f'"{shown}"', repr(own_name))
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(program, "README.md", "exec"), names)
    names["saver"].close()
    url = re.findall(r'"([^"]*)"', line)[0]
    with open_saver(f"files:{url}" if backend == "Files" else url) as saver:
        for name in threads.values():
            assert saver.get_tuple({"configurable": {"thread_id": name}})
            saver.delete_thread(name)


# ---- the commands


BEGIN, END = "<!-- the commands: written by `python tests/write.py commands` -->", "<!-- the end of the commands -->"


def with_reference(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{rest.split(END)[1]}"


def test_every_command_and_option_is_in_the_reference() -> None:
    text = COMMANDS_PAGE.read_text(encoding="utf-8")
    assert text == with_reference(text), "the commands have changed: run `python tests/write.py commands`"


def calls_in(page: Path) -> Iterator[str]:
    """Yield every call of `keel` that a page shows, in blocks and in the text."""
    for block in blocks_of(page):
        if block.language in ("bash", "console"):
            for line in block.text.splitlines():
                yield from re.findall(r"(?:^|\| |&& |\$ )(keel [^|&]*)", line.partition("  #")[0])
    yield from re.findall(r"`(keel [^`]*)`", prose_of(page))


def wrong_with(call: str) -> str:
    """Return the problem of a call of `keel`, or nothing if it is valid."""
    words = [word.strip("[]") for word in re.sub(r"[<>]|--tenant (acme|\"\$name\")", "", call).split()[1:]]
    if words[0].startswith("--"):
        return "" if words[0] in ("--version", "--help", "--install-completion", "--tenant") else "no such option"
    known = [name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS]
    if not known:
        is_group = any(name.startswith(f"{words[0]} ") for name in COMMANDS)
        return "" if is_group and len(words) == 1 else "no such command"
    given = {word.partition("=")[0].rstrip(",;.") for word in words if re.match(r"--?[a-z]", word)}
    return ", ".join(sorted(given - COMMANDS[known[0]].options))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = {call: said for call in calls_in(page) if (said := wrong_with(call))}
    assert wrong == {}


@pytest.mark.parametrize(
    "call",
    ["keel nothing", "keel threads --nothing", "keel cache nothing", "keel --nothing", "keel show a --keep-last 2"],
)
def test_an_unknown_command_is_detected(call: str) -> None:
    assert wrong_with(call)


# ---- the links

LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} (.+?) *#*$", prose_of(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


def leads_nowhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or ROOT not in (target, *target.parents):
        return True
    return bool(anchor) and (target.suffix != ".md" or anchor not in anchors_of(target))


def links_of(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose_of(page))
    return [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_have_targets(page: Path) -> None:
    assert [link for link in links_of(page) if leads_nowhere(page, link)] == []


def test_a_broken_link_is_detected() -> None:
    assert leads_nowhere(README, "nothing.md")
    assert leads_nowhere(README, "#nothing")
    assert leads_nowhere(README, "CHANGELOG.md#nothing")
    assert leads_nowhere(README, "../elsewhere.md")


def test_every_page_is_linked_from_another_one() -> None:
    targets = {
        (page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links_of(page) if link[0] != "#"
    }
    assert [name_of(page) for page in PAGES if page != README and page not in targets] == []


# ---- their content


def test_every_public_name_is_on_a_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md")
    assert [name for name in langgraph_keel.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_no_page_contains_a_local_path() -> None:
    found = {
        name_of(page): re.findall(r"(?<![\w.:/])/(?:home|Users|root|tmp|work)/\w+", page.read_text()) for page in PAGES
    }
    assert {name: paths for name, paths in found.items() if paths} == {}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["commands"])  # the surface: test_public_surface.py
def test_generated_pages_are_up_to_date(what: str) -> None:
    script = Path(__file__).with_name("write.py")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, str(script), what, "--check"], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, f"python tests/write.py {what}\n{done.stderr}"
