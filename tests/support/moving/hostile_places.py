"""Tampered stores of files, PostgreSQL and Redis.

`support.moving.hostile_stores` has those of SQLite. An edit needs no secret: each changed line gets a valid checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg
from redis import Redis

from langgraph_keel.engine.encoding.bodies import frame, raw_frame
from support.moving.hostile_stores import EVIL
from support.places import Place

_RUNS = 200_000
_DEEP = "[" * 100_000 + "]" * 100_000

Edit = Callable[[Place], object]


def _bomb() -> bytes:
    """Return a row of 30 KB that decompresses to 400 MB."""
    return frame(b"\x91\xc6" + (400 << 20).to_bytes(4, "big") + bytes(400 << 20))


# -- files -------------------------------------------------------------------------------------------------------------


def _thread(place: Place) -> Path:
    return Path(place.url.removeprefix("files:")) / "threads" / EVIL


def _log(place: Place) -> Path:
    return _thread(place) / "log.jsonl"


def _sealed(fields: Mapping[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (text, crc32(text))


def _lines(change: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]], place: Place) -> None:
    log = _log(place)
    records = [json.loads(line) for line in log.read_bytes().splitlines()]
    for record in records:
        del record["crc"]
    log.write_bytes(b"".join(_sealed(new) for record in records for new in change(record)))


def _with(kind: str, **fields: Any) -> Edit:
    """Return an edit that changes fields of all records of a kind."""
    return partial(_lines, lambda record: [{**record, **(fields if record["k"] == kind else {})}])


def _put_in_place(make: Callable[[Path], object]) -> Edit:
    """Return an edit that replaces a log by something else."""

    def edit(place: Place) -> None:
        log = _log(place)
        log.unlink()
        make(log)

    return edit


def _cell(make: Callable[[Path], object]) -> Edit:
    def edit(place: Place) -> None:
        (path,) = (_thread(place) / "cells" / "labels").iterdir()
        make(path)

    return edit


def _make_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


def _rewrite_cell(path: Path, **fields: Any) -> None:
    record = json.loads(path.read_bytes())
    del record["crc"]
    path.write_bytes(_sealed({**record, **fields}))


FILES: Mapping[str, Edit] = {
    "an id that is a number": _with("ckpt", id=5),
    "an empty id": _with("ckpt", id=""),
    "a parent that is a list": _with("ckpt", parent=[1]),
    "a number that is text": _with("ckpt", seq="x"),
    "a number that goes back": _with("ckpt", seq=1),
    "a time that is a number": _with("ckpt", at=5),
    "channels that are a list": _with("ckpt", ch=[1]),
    "a kind of value that is none": _with("ckpt", ch={"list": {"x": [[0, 1]]}}),
    "a value without items": _with("ckpt", ch={"list": {"whole": []}}),
    "a run that ends before it begins": _with("ckpt", ch={"list": {"list": [[5, 3]]}}),
    "a run of 2**62 items": _with("ckpt", ch={"list": {"list": [[0, 2**62]]}}),
    "200,000 runs": _with("ckpt", ch={"list": {"list": [[0, 1]] * _RUNS}}),
    "a header that is a number": _with("ckpt", head=5),
    "a header in a file elsewhere": _with("ckpt", head={"$blob": "../../../../etc/passwd"}),
    "an item with a huge number": _with("item", n=2**63),
    "an item that is deep": _with("item", v=json.loads("[" * 900 + "]" * 900), n=0),
    "items that are gone": partial(_lines, lambda record: [] if record["k"] == "item" else [record]),
    "a kind of record that is a method": _with("item", k="check_format"),
    "a task that is a number": _with("writes", task=5),
    "writes that are a number": _with("writes", items=5),
    "an epoch with dots": _with("thread", epoch="a.b"),
    "ghosts of nothing": partial(_lines, lambda record: [record, {"k": "gone", "seq": 5, "ghosts": 5}]),
    "a record that is twice": partial(_lines, lambda record: [record, record]),
    "a pipe": _put_in_place(_make_pipe),
    "a link to a device": _put_in_place(lambda path: path.symlink_to("/dev/zero")),
    "a link to another thread": _put_in_place(lambda path: path.symlink_to("../zzz/log.jsonl")),
    "a file of 4 TB with nothing in it": _put_in_place(_make_sparse),
    "a cell that is a pipe": _cell(_make_pipe),
    "a cell whose token is a number": _cell(partial(_rewrite_cell, token=5)),
    "deep JSON": _put_in_place(lambda path: path.write_text(_DEEP + "\n")),
}

# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def _sql(statement: str, make: Callable[[], bytes] | None = None) -> Edit:
    def edit(place: Place) -> None:
        with psycopg.connect(place.url) as connection:
            where = statement if "origin" in statement else f"{statement} WHERE thread_id = '{EVIL}'"
            connection.execute(where.encode(), [make()] if make else None)

    return edit


POSTGRES: Mapping[str, Edit] = {
    "an empty header": _sql("UPDATE keel_entries SET header = ''"),
    "a header that is text": _sql("UPDATE keel_entries SET header = 'x'"),
    "a header of 900 MB": _sql("UPDATE keel_entries SET header = %s", lambda: frame(bytes(900 << 20))),
    "channels that are NULL": _sql("UPDATE keel_entries SET channels = '{NULL,NULL}'"),
    "channels in two dimensions": _sql("UPDATE keel_entries SET channels = '{{a,b},{c,d}}'"),
    "kinds of values that are none": _sql("UPDATE keel_entries SET kinds = 'xx'"),
    "values without items": _sql("UPDATE keel_entries SET kinds = '11'"),
    "a run that ends before it begins": _sql("UPDATE keel_entries SET los = '{5}', his = '{3}'"),
    "a run of 2**31 - 1 items": _sql("UPDATE keel_entries SET his = '{2147483647}'"),
    "runs that are NULL": _sql("UPDATE keel_entries SET los = '{NULL}'"),
    "runs in two dimensions": _sql("UPDATE keel_entries SET los = '{{0}}', his = '{{4}}', owners = '{{1}}'"),
    "runs of no channel": _sql("UPDATE keel_entries SET owners = '{2}', kinds = '22'"),
    "200,000 runs": _sql(
        f"UPDATE keel_entries SET owners = array_fill(1, ARRAY[{_RUNS}]), los = array_fill(0, ARRAY[{_RUNS}]), "
        f"his = array_fill(1, ARRAY[{_RUNS}])"
    ),
    "a row of -1 items": _sql("UPDATE keel_items SET count = -1"),
    "rows of 400 MB that take 30 KB": _sql("UPDATE keel_items SET count = 1, body = %s", _bomb),
    "a row that is text": _sql("UPDATE keel_items SET body = 'x'"),
    "rows that are gone": _sql("DELETE FROM keel_items"),
    "writes that are text": _sql("UPDATE keel_batches SET body = 'x'"),
    "a cell whose key is a path": _sql("UPDATE keel_cells SET key = '../../X'"),
    "a cell whose header is text": _sql("UPDATE keel_cells SET header = 'x'"),
    "a request under another key": _sql(f"UPDATE keel_cells SET key = 'zz' || key WHERE origin = '{EVIL}'"),
    "a request that is text": _sql(f"UPDATE keel_cells SET header = 'x' WHERE origin = '{EVIL}'"),
}

# -- Redis -------------------------------------------------------------------------------------------------------------


def _keys(client: Any, place: Place, kind: str) -> bytes:
    (key,) = client.keys(f"{place.options['prefix']}:*:{kind}:{EVIL}")
    return bytes(key)


def _fields(prefix: bytes, change: Callable[[bytes, bytes], tuple[bytes, bytes] | None], kind: str = "thread") -> Edit:
    """Return an edit that changes or deletes the fields whose names match a prefix."""

    def edit(place: Place) -> None:
        with Redis.from_url(place.url) as opened:
            client: Any = opened
            key = _keys(client, place, kind)
            for field, value in client.hgetall(key).items():
                if field.startswith(prefix):
                    client.hdel(key, field)
                    if (new := change(field, value)) is not None:
                        client.hset(key, *new)

    return edit


def _value(prefix: bytes, value: bytes, kind: str = "thread") -> Edit:
    return _fields(prefix, lambda field, _: (field, value), kind)


def _words(place: int, word: bytes) -> Edit:
    """Return an edit that changes a word of each checkpoint's line, with its checksum."""

    def change(field: bytes, value: bytes) -> tuple[bytes, bytes]:
        line, _, header = value.partition(b"\n")
        words = line.split(b" ", 8)[1:]
        words[place] = word
        text = b" ".join(words)
        return field, b"%s %s\n%s" % (sha1(text).hexdigest()[:8].encode(), text, header)

    return _fields(b"entry:", change)


def _header(make: Callable[[], bytes]) -> Edit:
    return _fields(b"entry:", lambda field, value: (field, value.partition(b"\n")[0] + b"\n" + make()))


def _other_type(kind: str) -> Edit:
    def edit(place: Place) -> None:
        with Redis.from_url(place.url) as opened:
            client: Any = opened
            key = _keys(client, place, kind)
            client.delete(key)
            client.rpush(key, b"x")

    return edit


REDIS: Mapping[str, Edit] = {
    "an id that is no UTF-8": _words(2, b"%ff"),
    "an empty id": _words(2, b""),
    "a parent that is no number": _words(3, b"#x"),
    "a run that is no UTF-8": _words(4, b"%ff"),
    "a token with dots": _words(6, b"a.b.c"),
    "a state that is none": _words(0, b"9"),
    "a run that ends before it begins": _words(7, b"list:2:5-3"),
    "a run of a thousand billion items": _words(7, b"list:2:0-999999999999999"),
    "a kind of value that is none": _words(7, b"list:9:0-4"),
    "a value without items": _words(7, b"list:1"),
    "refs that are none": _words(7, b":::"),
    "200,000 runs": _words(7, b"list:2:" + b",".join([b"0-1"] * _RUNS)),
    "a header that is text": _header(lambda: b"x"),
    "a header of 900 MB": _header(lambda: frame(bytes(900 << 20))),
    "a thread that is text": _value(b"thread", b"x"),
    "a head that is text": _value(b"head:", b"x"),
    "rows of no items": _value(b"item:", b"0 x"),
    "a row that claims 2**32 - 1 items": _value(b"item:", b"4294967295 " + raw_frame(b"\xdd\xff\xff\xff\xff\x01")),
    "rows of 400 MB that take 30 KB": _fields(b"item:", lambda field, _: (field, b"1 " + _bomb())),
    "rows that are gone": _fields(b"item:", lambda *_: None),
    "an end that is text": _value(b"end:", b"x"),
    "writes that are text": _value(b"write:", b"x"),
    "a task that is no UTF-8": _value(b"write:", b"%ff %ff x"),
    "a key of another type": _other_type("thread"),
    "cells of another type": _other_type("cells"),
    "names of another type": _other_type("names"),
    "a cell that is text": _value(b"", b"x", "cells"),
    "a cell that expires never": _value(b"", b"token x \nx", "cells"),
}

COSTS_THE_THREAD: Mapping[tuple[str, str], Edit] = {
    (kind, what): edit
    for kind, edits in {"files": FILES, "postgres": POSTGRES, "redis": REDIS}.items()
    for what, edit in edits.items()
}
"""Edits that make the edited thread unreadable, and no other, by kind of place."""


def _circle(place: Place) -> None:
    """Make each checkpoint the parent of the one before it.

    Readers and copies must not loop forever.
    """
    edits: Mapping[str, Edit] = {
        "files": _with("ckpt", parent="2"),
        "postgres": _sql("UPDATE keel_entries SET parent = '2'"),
        "redis": _words(3, b"#3"),
    }
    edits[place.kind](place)


CIRCLE: Edit = _circle
