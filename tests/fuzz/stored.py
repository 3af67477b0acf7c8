"""Damage a small store through its backend's client, and read it in every way."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote
from zlib import crc32

import ormsgpack
import psycopg
import servers
from golden import VERSIONS, loaded
from golden.kinds import TYPES
from golden.seen import thread_config
from redis import Redis
from support.backends.damage import OF_ITEMS, TOLD, Refused, Spot, damage_one, spots_of, ways
from support.places import Place

from fuzz.serde import change_bytes, change_tree, packed_tree, tree_of
from fuzz.trials import Trial, WrongValue
from langgraph_keel import KeelError, KeelSaver, KeelSerializer, MemorySaver
from langgraph_keel.engine.encoding.bodies import frame, open_frame, raw_frame, restore_frame
from langgraph_keel.engine.serde.serializer import LEAST_BYTES

THREADS = ["chat", "delta", "tools", "travel", "waits"]
"""The kept threads of the golden store: reading all of them takes a second."""


@contextmanager
def opened(kind: str) -> Iterator[Trial]:
    """Open the fuzzer of a backend."""
    with TemporaryDirectory() as directory, servers_of(kind) as url:
        stored = Stored(kind, Path(directory), url)
        yield stored.trial
        stored.close()


@contextmanager
def servers_of(kind: str) -> Iterator[str]:
    """Yield the URL of a server, if the backend needs one."""
    if kind in ("postgres", "redis"):
        opening: Any = servers.postgres if kind == "postgres" else servers.redis
        with opening() as server:
            yield server.url
    else:
        yield ""


class Stored:
    """A store that is damaged, read, and repaired.

    Args:
        kind: Its backend.
        directory: The directory of a file store.
        url: The server of the store, if it needs one.
    """

    def __init__(self, kind: str, directory: Path, url: str) -> None:
        self._kind = kind
        self._directory = directory
        self._url = url
        self._stack = ExitStack()
        self._load()
        with self._open(read_only=True) as saver:
            self._right = {name: read() for name, read in ways(saver, THREADS)}

    def _load(self) -> None:
        """Load the store again, and find the values that can be damaged."""
        self.close()
        directory = self._directory / uuid.uuid4().hex
        directory.mkdir()
        self._stack.callback(shutil.rmtree, directory)
        self.place: Place = loaded(VERSIONS[-1], self._kind, directory, self._new_url(), uuid.uuid4().hex)
        with self._open() as saver:
            for each in list(saver.threads()):
                if each.thread_id not in THREADS:
                    saver.delete_thread(each.thread_id)
        self.spots = self._stack.enter_context(spots_of(self.place))

    def close(self) -> None:
        """Remove the store."""
        self._stack.close()

    def _new_url(self) -> str:
        """Return the URL of an empty store."""
        if self._kind == "redis":
            with Redis.from_url(self._url) as client:
                client.flushall()
        if self._kind != "postgres":
            return self._url
        schema = f"fuzz_{uuid.uuid4().hex[:12]}"
        self._stack.callback(self._execute, f"DROP SCHEMA {schema} CASCADE")
        self._execute(f"CREATE SCHEMA {schema}")
        return f"{self._url}{'&' if '?' in self._url else '?'}options={quote(f'-csearch_path={schema}', safe='')}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _open(self, **options: Any) -> KeelSaver:
        return self.place.open(serde=KeelSerializer(types=TYPES, max_bytes=LEAST_BYTES), **options)

    def trial(self, random: Random) -> None:
        """Damage a value, read, and repair it."""
        damage = random.choice((self._damage_value, self._damage_column, self._forge, self._forge, self._exchange))
        before, is_proven = damage(random)
        changes = random.random() < 0.1
        try:
            with suppress(KeelError):
                self._look(random, is_proven)
            if changes:
                with suppress(KeelError):
                    self._change(random)
        finally:
            if changes:
                self._load()
            else:
                for spot in before:
                    spot.write(spot.value)

    # -- ways to damage: the spots before it, and whether a read must return the old value or an error ----------------

    def _damage_value(self, random: Random) -> tuple[Sequence[Spot], bool]:
        return [damage_one(self.spots, random, has_checksum=True)[0]], True

    def _damage_column(self, random: Random) -> tuple[Sequence[Spot], bool]:
        spot = damage_one(self.spots, random, has_checksum=False)[0]
        return [spot], spot.kind in OF_ITEMS

    def _exchange(self, random: Random) -> tuple[Sequence[Spot], bool]:
        """Exchange two values of one kind.

        Both keep a correct checksum, so that the exchange cannot be detected.
        """
        while True:
            one = random.choice(self.spots)
            other = random.choice([spot for spot in self.spots if spot.kind == one.kind])
            with suppress(Refused):
                one.write(other.value)
                with suppress(Refused):
                    other.write(one.value)
                return [one, other], False

    def _forge(self, random: Random) -> tuple[Sequence[Spot], bool]:
        """Change the content of a frame, and update its checksum."""
        while True:
            spot = random.choice(self.spots)
            forged = forge(spot.value, random)
            if forged is not None:
                with suppress(Refused):
                    spot.write(forged)
                    return [spot], False

    # -- ways to read --------------------------------------------------------------------------------------------------

    def _look(self, random: Random, is_proven: bool) -> None:
        with self._open(read_only=True) as saver:
            known = dict(ways(saver, THREADS))
            for name in random.sample([*known], 12):
                with suppress(KeelError):
                    found = known[name]()
                    if is_proven and not name.startswith((*TOLD, "threads")) and found != self._right[name]:
                        raise WrongValue(f"{name}: {found!r:.300} is not {self._right[name]!r:.300}")
            for read in random.sample(MORE, 4):
                with suppress(KeelError):
                    read(saver, random.choice(THREADS))

    def _change(self, random: Random) -> None:
        """Prune and delete."""
        with self._open() as saver:
            for thread in random.sample(THREADS, 2):
                with suppress(KeelError):
                    saver.prune([thread])
                with suppress(KeelError):
                    saver.delete_thread(thread)


MORE: tuple[Callable[[KeelSaver, str], Any], ...] = (
    lambda saver, thread: str(saver.status(thread)),
    lambda saver, thread: str(saver.timeline(thread)),
    lambda saver, thread: [*saver.raw.list(thread_config(thread))],
    lambda saver, thread: [*saver.check()],
    lambda saver, thread: [*saver.unfinished()],
    lambda saver, thread: (saver.info(), saver.stats()),
    lambda saver, thread: saver.moving.copy_to(MemorySaver()),
    lambda saver, thread: saver.retention.erase(user_id="ada", dry_run=True),
    lambda saver, thread: saver.prune([thread], dry_run=True),
    lambda saver, thread: saver.retention.sweep(dry_run=True),
)


def forge(value: Any, random: Random) -> bytes | None:
    """Return a value with changed content and a correct checksum, if it has one."""
    if not isinstance(value, bytes):
        return None
    if value.startswith(b'{"k":'):
        return _forge_line(value, random)
    for words in {b"", value.partition(b"\n")[0] + b"\n"}:
        if value.startswith(words):
            with suppress(KeelError):
                content = open_frame(restore_frame(value[len(words) :]))
                return words + random.choice((raw_frame, frame))(change_content(content, random))
    return None


def _forge_line(line: bytes, random: Random) -> bytes | None:
    """Return a changed line of a log."""
    try:
        tree = [json.loads(line)]
        tree[0].pop("crc", None)
        change_tree(tree, [ormsgpack.packb(tree)], random)
        made = json.dumps(tree[0] if tree else {}, separators=(",", ":"), default=str).encode()[:-1]
    except ValueError:  # no JSON, or a part was put into itself
        return None
    return made + b',"crc":"%08x"}\n' % crc32(made)


def change_content(content: bytes, random: Random) -> bytes:
    """Return changed content of a frame: changed in its structure if it is msgpack."""
    if random.random() < 0.7:
        with suppress(ValueError, TypeError, RecursionError):
            tree = [tree_of(content)]
            change_tree(tree, [content], random)
            return packed_tree(tree[0] if tree else None)
    return change_bytes(content, random)
