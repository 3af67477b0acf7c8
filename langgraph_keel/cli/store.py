"""`keel store`: the items that all threads share (`saver.store()`)."""

from __future__ import annotations

import json as jsons
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from langgraph.store.base import InvalidNamespaceError, Item
from rich.text import Text

from langgraph_keel.cli.options import (
    DEFAULT_URL,
    AsJson,
    Url,
    Yes,
    check_store,
    confirm,
    duration,
    open_store,
    open_to_change,
    open_to_read,
)
from langgraph_keel.cli.output import (
    Rows,
    bar,
    console,
    local_time,
    print_answer,
    print_failures,
    print_json,
    print_lines,
)
from langgraph_keel.display.text import count_of, one_line, plain
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, NotFound
from langgraph_keel.store.checks import check_place
from langgraph_keel.store.files import ItemFiles, name_of_file, read_items, write_item
from langgraph_keel.store.records import StoredItem

store = typer.Typer(
    help="List, search and change the items that all threads share (long-term memory).", no_args_is_help=True
)

_ALL = 1_000_000_000
_BATCH = 100  # items that an import compares and writes together
_SHOWN = 50

_PARTS = "Its parts are joined by `/`, such as `memories/ada`. In a part, `%2F` is a `/`, and `%25` is a `%`."
Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help=f"The item's namespace. {_PARTS}")]
Below = Annotated[
    str,
    typer.Argument(metavar="NAMESPACE", help=f"Only items in or below this namespace. {_PARTS}", show_default=False),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The item's key.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="A JSON object; `-` reads it from standard input.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many items.")]
Index = Annotated[
    bool, typer.Option("--index", help="Print all items as a Markdown list, one line each, for a prompt.")
]
Ttl = Annotated[
    str | None, typer.Option("--ttl", metavar="TIME", help="The item's lifetime: 90m, 12h, 7d. Default: unlimited.")
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD=VALUE",
        help="Only items with this value in the field, as JSON or plain text. To compare: `'age={\"$gt\": 3}'`. "
        "Repeatable.",
    ),
]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the files.")]


def namespace_of(word: str) -> tuple[str, ...]:
    """Return the namespace that a command-line argument names; `()` if it is empty."""
    labels = word.split("/") if word else []
    return check_place(tuple(re.sub("%2[Ff]|%25", lambda m: unquote(m[0]), each) for each in labels))


def word_of(namespace: Sequence[str]) -> str:
    """Return the command-line argument that names a namespace."""
    return "/".join(re.sub("/|%(?=2[Ff]|25)", lambda m: f"%{ord(m[0]):X}", label) for label in namespace)


@store.command()
def ls(
    namespace: Below = "", index: Index = False, limit: Limit = _SHOWN, url: Url = DEFAULT_URL, json: AsJson = False
) -> None:
    """List namespaces by name, and items, most recently changed first.

    Example: `keel store ls memories/ada`
    """
    place = namespace_of(namespace)
    with open_to_read(url) as saver:
        items = saver.store()
        if index:
            text = "\n".join(_index_line(each, place) for each in items.search(place, limit=_ALL))
            return print_answer({"index": text}, Text(text), as_json=json)
        spaces = items.list_namespaces(prefix=place, limit=_ALL)
        found = items.search(place, limit=limit + 1)
    if not json and len(spaces) > 1:
        print_lines(Text(plain(word_of(each)), "bold") for each in spaces[:limit])
        print_lines([Text(f"{len(spaces):,} namespaces\n", "dim")])
    _print(found, limit, place, {"namespaces": spaces} if json else None)


@store.command()
def search(
    namespace: Below = "", filters: Filters = None, limit: Limit = _SHOWN, url: Url = DEFAULT_URL, json: AsJson = False
) -> None:
    """List the items that match the filters, most recently changed first.

    Example: `keel store search memories/ada --filter kind=preference`
    """
    place, wanted = namespace_of(namespace), dict[str, Any]()
    for word in filters or ():
        field, mark, text = word.partition("=")
        if not mark or field in wanted:
            raise InvalidInput(f"--filter {word!r}: use FIELD=VALUE, once for each field")
        try:
            wanted[field] = jsons.loads(text)
        except (ValueError, RecursionError):
            wanted[field] = text
    with open_to_read(url) as saver:
        found = saver.store().search(place, filter=wanted, limit=limit + 1)
    _print(found, limit, place, {} if json else None)


def _print(found: Sequence[Item], limit: int, place: tuple[str, ...], answer: dict[str, Any] | None) -> None:
    """Print a page of items, and whether there are more."""
    shown, more = found[:limit], len(found) > limit
    if answer is not None:
        return print_json({**answer, "items": [_json_of(each) for each in shown], "more": more})
    rows = [
        (
            local_time(each.updated_at.isoformat()),
            "" if each.namespace == place else one_line(word_of(each.namespace), 60),
            Text(one_line(each.key, 60), "bold"),
            one_line(jsons.dumps(each.value, ensure_ascii=False), 60),
        )
        for each in shown
    ]
    console().print(Rows(("time", "namespace", "key", "value"), rows, heads=3) if rows else Text("No items.", "dim"))
    if more:
        console().print(Text("… and older ones: --limit shows more", "dim"))


def _json_of(item: Item) -> dict[str, Any]:
    times = {"created_at": item.created_at.isoformat(), "updated_at": item.updated_at.isoformat()}
    return {"namespace": [*item.namespace], "key": item.key, "value": item.value, **times}


def _index_line(item: Item, place: tuple[str, ...]) -> str:
    """Return the line of an item in a memory index.

    It has the key, the first line of the text, and the date.
    """
    value = item.value
    texts = [each for each in (value.get("text"), value.get("content"), *value.values()) if isinstance(each, str)]
    text = next((line for each in texts[:1] for line in each.splitlines() if line.strip()), None)
    name = "/".join([*(word_of([label]) for label in item.namespace[len(place) :]), item.key])
    shown = one_line(jsons.dumps(value, ensure_ascii=False) if text is None else text)
    return f"- **{one_line(name)}**: {shown} ({item.updated_at.astimezone(UTC):%Y-%m-%d})"


@store.command()
def get(namespace: Namespace, key: Key, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show an item.

    Example: `keel store get memories/ada seat`
    """
    place = namespace_of(namespace)
    with open_to_read(url) as saver:
        found = _find(saver, place, key)
    value = plain(jsons.dumps(found.value, indent=2, ensure_ascii=False), keep="\n")
    made, changed = (local_time(at.isoformat()) for at in (found.created_at, found.updated_at))
    print_answer(
        _json_of(found), Text.assemble(value, (f"\ncreated {made}, last changed {changed}", "dim")), as_json=json
    )


@store.command()
def put(
    namespace: Namespace, key: Key, value: Value, ttl: Ttl = None, url: Url = DEFAULT_URL, json: AsJson = False
) -> None:
    """Create an item, or change its value.

    Example: `keel store put memories/ada seat '{"text": "a window seat"}'`
    """
    place, minutes = namespace_of(namespace), None if ttl is None else duration(ttl) / 60
    try:
        given = jsons.loads(sys.stdin.read() if value == "-" else value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the value is not JSON: {error}") from error
    with open_to_change(url) as saver:
        items = saver.store()
        held = items.get(place, key)
        try:
            items.put(place, key, given, ttl=minutes)
        except InvalidNamespaceError as error:  # LangGraph's own, of names that it reserves
            raise InvalidInput(str(error)) from error
    said = "made" if held is None else "changed"
    answer = {"namespace": [*place], "key": key, "done": said}
    print_answer(answer, Text(f"{said} {_shown(place, key)}", "green"), as_json=json)


@store.command()
def rm(namespace: Namespace, key: Key, url: Url = DEFAULT_URL, yes: Yes = False, json: AsJson = False) -> None:
    """Remove an item. Shows the item first, and asks.

    Example: `keel store rm memories/ada seat`
    """
    place = namespace_of(namespace)
    if not yes and (json or not sys.stdin.isatty()):
        raise InvalidInput("nothing was removed: there is no terminal to ask in; add --yes")
    with open_to_change(url) as saver:
        try:
            found = _find(saver, place, key)
            shown, removed = jsons.dumps(found.value, ensure_ascii=False), _json_of(found)
        except CorruptStore as error:
            shown, removed = str(error), {"namespace": [*place], "key": key, "error": str(error)}
        if not yes:
            typer.echo(f"{_shown(place, key)}: {one_line(shown)}", err=True)
            confirm("Remove it?", "Nothing was removed.")
        saver.store().delete(place, key)
    print_answer({"removed": removed}, Text(f"removed {_shown(place, key)}", "green"), as_json=json)


def _find(saver: Any, place: tuple[str, ...], key: str) -> Item:
    found: Item | None = saver.store().get(place, key, refresh_ttl=False)
    if found is None:
        raise NotFound(f"there is no item {key!r:.200} in {word_of(place)!r:.200}")
    return found


def _shown(place: Sequence[str], key: str) -> str:
    return f"{one_line(word_of(place))} {one_line(key)}"


@store.command("export")
def export(directory: Directory, namespace: Below = "", url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Write items to readable, editable files: one JSON file each, in plain text.

    `keel store import` imports them again. The directory must be empty, or not exist yet.

    Example: `keel store export backup memories`
    """
    place, count = namespace_of(namespace), 0
    check_store(url)  # before the directory is created
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InvalidInput(f"{directory} is not empty: name another directory. Nothing was exported")
        then = "The directory is incomplete: remove it."
        with open_to_read(url) as saver, bar("Exporting items", quiet=json, then=then) as tell:
            items, after = ItemFiles(saver.engine.session, OrderedDict()), ""
            while after is not None:
                page, after = saver.engine.run_patiently(items.page(place, after))
                for item, changed in page:
                    (directory / name_of_file(item)).write_bytes(write_item(item, changed))
                    count += 1
                    tell(count, None)
    except KeelError:
        raise  # some are also an OSError
    except OSError as error:
        raise InvalidInput(f"cannot write to {directory}: {error.strerror or error}") from error
    answer = {"directory": str(directory), "items": count}
    print_answer(answer, Text(f"{count_of(count, 'item')} written to {plain(str(directory))}"), as_json=json)


@store.command("import")
def import_(directory: Directory, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Import exported items, also edited ones, unless they changed in the store.

    An item that has changed in the store since the export keeps its value. Such items are listed, and the exit status
    is 1. An item that no longer exists in the store is created again. All files are checked first.

    Example: `keel store import backup`
    """
    files, done = read_items(directory), Counter[str]()
    kept: list[StoredItem] = []
    with open_store(url) as saver, bar("Importing items", quiet=json, keeps=True) as tell:
        items = ItemFiles(saver.engine.session, OrderedDict())
        for start in range(0, len(files), _BATCH):
            batch = files[start : start + _BATCH]
            said = saver.engine.run_patiently(items.bring(batch))
            kept += [item for (item, _), each in zip(batch, said, strict=True) if each == "kept"]
            done.update(said)
            tell(done.total(), len(files))
    answer: dict[str, Any] = {name: done[name] for name in ("made", "changed", "same")}
    answer["kept"] = [{"namespace": [*item.namespace], "key": item.key} for item in kept]
    text = f"{count_of(done['made'], 'item')} created, {done['changed']:,} changed, {done['same']:,} already the same"
    print_answer(answer, Text(text), as_json=json)
    if kept:
        print_failures(
            {}
            if json
            else {
                _shown(each.namespace, each.key): "kept: it has changed in the store since the export" for each in kept
            }
        )
        raise typer.Exit(1)
