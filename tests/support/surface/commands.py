"""The command line as data: options of commands, and keys of `--json` output.

The commands read a golden store, so that the output depends neither on a clock nor on chance.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import patch

from golden import kinds, loaded, story
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from typer.testing import CliRunner

from langgraph_keel import Keyring, Retention, Workspace, open_saver
from langgraph_keel.cli import app
from langgraph_keel.engine.leases import Watch
from langgraph_keel.keys.keyring import parse_keys
from support.cli_threads import COMMANDS
from support.moving.old_graphs import chat, talk

assert kinds.TYPES  # imported, so that its values can be read

_ABOUT = ("required", "multiple", "nargs", "envvar", "metavar", "hidden", "min", "max")


def parameter_form(parameter: Any, annotation: Any) -> dict[str, Any]:
    """Describe an option or argument.

    Its type is read from the function, because each version of Typer stores it differently.
    """
    form: dict[str, Any] = {
        "kind": parameter.param_type_name,
        "names": [*parameter.opts, *parameter.secondary_opts],
        "type": type_of(annotation),
    }
    default = parameter.default
    if default not in (None, False, (), []) and not callable(default):
        form["default"] = repr(default)
    more = {name: getattr(parameter, name, None) for name in _ABOUT}
    usual = {"nargs": 1, "required": False, "multiple": False, "hidden": False, "metavar": ""}
    return form | {name: value for name, value in more.items() if value is not None and value != usual.get(name)}


def type_of(annotation: Any) -> str:
    parts = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is Literal:
        return "|".join(parts)
    if parts:
        return f"list[{type_of(parts[0])}]" if get_origin(annotation) is list else " | ".join(map(type_of, parts))
    return str(annotation.__name__)


def commands() -> dict[str, Any]:
    found = {}
    for path, command in sorted(COMMANDS.items()):
        hints = get_type_hints(command.callback)
        found[path] = [parameter_form(parameter, hints[parameter.name]) for parameter in command.params]
    return found


# -- their output -----------------------------------------------------------------------------------------------------


def paths(value: Any, where: str = "") -> Iterator[str]:
    """Return the paths of all keys in a JSON value; elements of a list share a path."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"{where}.{key}".lstrip(".")
            yield from paths(part, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for part in value:
            yield from paths(part, f"{where}[]")
    elif where.endswith("[]"):
        yield where


KEYS = f"2026:{b64encode(bytes(range(32))).decode()}"


def asked(directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the arguments of each command that prints JSON, by name, in run order."""
    place = loaded("v1", "sqlite", directory)
    files = loaded("v1", "files", directory)
    with place.open() as saver:
        (waits,), (claimed,), (free,) = map(saver.approvals.pending, ("waits", "claimed", "free question"))
        changed = story.request_of(saver, "changed")
        saver.for_tenant("acme").retention.set_policy(Retention(last=1))
        (died,) = saver.tools.calls("died")
        # Which positions belong to subgraphs differs in each created store.
        root = next(str(each.position) for each in saver.timeline("travel") if each.position > 2 and not each.namespace)
    log = max((directory / "files").glob("threads/*/*.jsonl"), key=lambda path: path.stat().st_size, default=None)
    assert log
    with log.open("ab") as damaged:
        damaged.write(b"not a line of Keel\n{}\n")
    store, tree = ("--url", place.url), ("--url", files.url)
    sealed = ("--url", f"sqlite:///{directory / 'sealed.db'}")
    with open_saver(sealed[1], encryption=Keyring(*parse_keys(KEYS, "KEYS"))) as saver:
        saver.labels.set(saver.put(story.config("t", checkpoint_ns=""), story.checkpoint(1, {}), {}, {}), "named")
    old = str(directory / "langgraph.db")
    with LangGraphSaver.from_conn_string(old) as other:
        talk(other, "old", 1)
    moved = f"sqlite:///{directory / 'moved.db'}"
    (work := directory / "work").mkdir()
    worked = ("--url", f"sqlite:///{directory / 'worked.db'}")
    with open_saver(worked[1], workspace=Workspace(work)) as saver:
        for text in ("before", "after"):
            (work / "plan.md").write_text(text, encoding="utf-8")
            asked_for = {"messages": [("user", text)]}
            chat(saver).invoke(asked_for, story.config("worked"), durability="sync")
        saver.history.note("worked", "move the table", "goal")
        decision = saver.history.note("worked", "stop the writers")
        saver.store().put(("memories", "ada"), "seat", {"kind": "preference"})
    in_work = ("--dir", str(work), *worked)
    return {
        "threads": ("threads", *store),
        "tenants": ("tenants", *store),
        "tenants with usage": ("tenants", "--usage", *store),
        "stats": ("stats", *store),
        "copy": ("copy", place.url, f"sqlite:///{directory / 'copied.db'}"),
        "usage": ("usage", "--by", "status", *store),
        "status": ("status", "waits", *store),
        "info": ("info", *store),
        "history": ("history", "travel", *store),
        "history of a model": ("history", "chat", *store),
        "show": ("show", "travel", *store),
        "timeline": ("timeline", "travel", *store),
        "timeline of tools": ("timeline", "tools", *store),
        "diff": ("diff", "travel", "0", "5", *store),
        "diff of threads": ("diff", "tools", "0", "2", *store),
        "tail": ("tail", "--after", "2020-01-01", *store),
        "provenance": ("provenance", "chat", *store),
        "archive": ("archive", "summarized", *store),
        "archive search": ("archive", "summarized", "--search", "question", *store),
        "import, only shown": ("import", old, "--dry-run", "--url", moved),
        "import": ("import", old, "--url", moved),
        "export": ("export", "--output", str(directory / "export.jsonl"), *store),
        "export to langgraph": (
            "export",
            "--to-langgraph",
            old,
            "--thread",
            "old",
            "--url",
            moved,
        ),
        "schema": ("schema", *store),
        "tools": ("tools", *store),
        "tools of a thread": ("tools", "died", *store),
        "tools, in doubt": ("tools", "--unknown", *store),
        "approvals": ("approvals", *store),
        "approval": ("approval", waits.id, *store),
        "approval that was changed": ("approval", changed.id, *store),
        "audit show": ("audit", "show", *store),
        "audit verify": ("audit", "verify", *store),
        "cache stats": ("cache", "stats", *store),
        "retention show": ("retention", "show", *store),
        "check": ("check", *tree),
        "repair, only shown": ("repair", *tree),
        "repair": ("repair", "--yes", *tree),
        "doctor": ("doctor", "support.upgrades.apps:deployed", *store),
        "work, only shown": ("work", "support.upgrades.apps:deployed", "--dry-run", *store),
        "upgrade, only shown": ("upgrade", "support.upgrades.apps:deployed", "--dry-run", *store),
        "an error": ("show", "no such thread", *store),
        "rewind": ("rewind", "travel", root, *store),
        "fork": ("fork", "travel", root, "another", *store),
        "label": ("label", "travel", root, "named", *store),
        "unlabel": ("unlabel", "travel", "named", *store),
        "settle": ("settle", died.key, "skip", "--thread", "died", *store),
        "approve": ("approve", "--yes", waits.id, "--by", "ann", *store),
        "revise": ("revise", waits.id, "--by", "ann", *store),
        "reject": ("reject", "--yes", claimed.id, "--by", "bob", *store),
        "edit": ("edit", "--yes", changed.id, "--by", "ann", "--args", '{"flight": "LH 3"}', *store),
        "answer": ("answer", "--yes", free.id, "--by", "ann", "--value", '"so"', *store),
        # A policy by age would remove more as the golden store ages.
        "retention set": ("retention", "set", "--keep-last", "5", *store),
        "sweep": ("sweep", *store),
        "tenants, one deleted": ("tenants", "delete", "acme", "--yes", *store),
        "prune, only shown": ("prune", "chat", "--keep-last", "2", "--dry-run", *store),
        "delete, only shown": ("delete", "chat", "--dry-run", *store),
        "prune": ("prune", "chat", "--keep-last", "2", "--yes", *store),
        "erase, only shown": ("erase", "--user", "eve", "--dry-run", *store),
        "erase": ("erase", "--user", "eve", "--yes", *store),
        "reclaim": ("reclaim", *store),
        "keys new": ("keys", "new", "2026"),
        "keys show": ("keys", "show", *sealed),
        "keys rotate": ("keys", "rotate", *sealed),
        "keys renew": ("keys", "renew", *sealed),
        "keys migrate": ("keys", "migrate", *sealed),
        "cache clear": ("cache", "clear", "--nodes", "--yes", *store),
        "retention clear": ("retention", "clear", *store),
        "note": ("note", "worked", "migrate the table", "--because", "the tests pass", *worked),
        "outcome": ("outcome", decision.id, "done", *worked),
        "notes": ("notes", "worked", *worked),
        "handoff": ("handoff", "worked", *worked),
        "journal": ("journal", "worked", *worked),
        "store ls": ("store", "ls", *worked),
        "store ls, an index": ("store", "ls", "--index", *worked),
        "store search": ("store", "search", "memories", "--filter", "kind=preference", *worked),
        "store get": ("store", "get", "memories/ada", "seat", *worked),
        "store export": ("store", "export", str(directory / "items"), *worked),
        "store put": ("store", "put", "memories/ada", "seat", '{"text": "aisle"}', *worked),
        "store import": ("store", "import", str(directory / "items"), *worked),
        "store rm": ("store", "rm", "memories/ada", "seat", "--yes", *worked),
        "hold": ("hold", "--user", "ada", "--reason", "case 17", "--by", "legal", *worked),
        "hold, all": ("hold", *worked),
        "hold, released": ("hold", "--user", "ada", "--release", "--by", "legal", *worked),
        "workspace ls": ("workspace", "ls", "worked", *in_work),
        "workspace diff": ("workspace", "diff", "worked", "0", *in_work),
        "workspace restore": ("workspace", "restore", "worked", "0", "--yes", *in_work),
        "demo": ("demo", "--dir", str(directory / "demo"), "--pace", "0"),
    }


def printed(directory: Path) -> dict[str, list[str]]:
    """Return the paths of the keys in each command's JSON, and its exit code if not 0."""
    found = {}
    for name, words in asked(directory).items():
        env = {"COLUMNS": "80", "NO_COLOR": "1"} | ({"KEEL_KEYS": KEYS} if "sealed.db" in words[-1] else {})
        with patch.object(Watch.__init__, "__defaults__", (lambda: 30 * monotonic(),)):  # shortens the wait of `settle`
            result = CliRunner().invoke(app, [*words, "--json"], env=env)
        assert result.exit_code in (0, 1, 2), (name, words, result.output)
        assert result.stdout.startswith("{"), (name, result.output)
        left = [f"exit {result.exit_code}"] * bool(result.exit_code)
        found[name] = [*left, *sorted(set(paths(json.loads(result.stdout))))]
    return found


def metadata_keys(directory: Path) -> list[str]:
    """Return the metadata keys that Keel adds to checkpoints."""
    with open_saver(f"sqlite:///{directory / 'metadata.db'}", graph_version="7", on_drift="ignore") as saver:
        graph = story.nested(saver)
        graph.invoke({"log": ["a"]}, story.config("t"))
        # In the order of storage, a checkpoint of a subgraph may precede its root's.
        moments = [moment for moment in saver.timeline("t") if not moment.namespace]
        saver.rewind(moments[0])
        saver.fork(moments[1], "u")
        graph.invoke({"log": ["b"]}, saver.fork(moments[1]))
        saver.prune(["t"], strategy=Retention(last=1))
    with open_saver(loaded("v1", "sqlite", directory).url) as saver:
        found = {key for each in saver.list(None) for key in each.metadata}
    with open_saver(f"sqlite:///{directory / 'metadata.db'}") as saver:
        found |= {key for each in saver.list(None) for key in each.metadata}
    return sorted(key for key in found if key.startswith("keel_") or key in ("user_id", "graph_version"))


def surface(directory: Path) -> dict[str, Any]:
    """Return the whole surface."""
    return {
        "commands": commands(),
        "json": printed(directory),
        "metadata": metadata_keys(directory / "metadata"),
    }
