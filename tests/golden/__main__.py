"""Write golden stores of this version: `python tests/write.py golden v2`.

See CONTRIBUTING.md before. A store must not reveal where it was written, so the machine has another name here. It must
not be written in the future either, because a reader takes over a claim only after its time.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import servers
from redis import Redis
from support.places import Place, file_place, files_place, postgres_place, redis_place

from golden import ours, story
from golden.kept import HERE, KINDS, loaded, pack, save
from golden.seen import seen

ENDINGS = {"tool": story.die_in_a_tool, "decision": story.die_after_the_decision}


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    socket.gethostname = lambda: "golden"
    if sys.argv[1] == "die":
        place = Place(sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
        ENDINGS[sys.argv[2]](lambda **options: place.open(**options), lambda: os._exit(9))
    else:
        _write_all(sys.argv[1])


def _write_all(version: str) -> None:
    with servers.postgres() as postgres, servers.redis() as redis:
        urls = {"postgres": postgres.url, "redis": redis.url}
        for kind in KINDS:
            _write_one(version, kind, urls.get(kind, ""))


def _write_one(version: str, kind: str, url: str) -> None:
    with TemporaryDirectory() as directory:
        place = _place(kind, Path(directory) / "first", url, "golden")
        _write(place)
        save(place, version)
        again = Path(directory) / "again"
        again.mkdir()
        with loaded(version, kind, again, _empty(kind, url), "golden-again").open() as saver:
            said = json.dumps(seen(saver), indent=0)
    pack(HERE / version / f"{kind}.expected.json.gz", said.encode())


def _place(kind: str, directory: Path, url: str, prefix: str) -> Place:
    directory.mkdir()
    if kind == "sqlite":
        return file_place(directory)
    if kind == "files":
        return files_place(directory)
    return postgres_place(_empty(kind, url)) if kind == "postgres" else redis_place(_empty(kind, url), prefix)


def _empty(kind: str, url: str) -> str:
    """Create an empty schema, or clear our keys in Redis; the server is ours alone."""
    if kind == "redis":
        with Redis.from_url(url) as client:
            client.delete(*client.keys(b"golden-again*") or [b"none"])
    if kind != "postgres":
        return url
    schema = f"golden_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}"


def _write(place: Place) -> None:
    story.write(lambda **options: place.open(**options))
    for ending in ENDINGS:
        words = [sys.executable, "-m", "golden", "die", ending, place.kind, place.url, json.dumps(dict(place.options))]
        assert subprocess.run(words, cwd=HERE.parent).returncode == 9
    with place.open() as saver:
        ours.write(saver)
        for thread in list(saver.threads()):
            saver.approvals.pending(thread.thread_id)  # writes the audit events that a reader would add
    if place.kind == "files":
        shutil.rmtree(Path(place.url.removeprefix("files:")) / ".lock", ignore_errors=True)


if __name__ == "__main__":
    main()
