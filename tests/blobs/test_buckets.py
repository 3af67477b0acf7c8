"""Objects in an S3 bucket, on a real server, and the errors when it refuses."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.s3 import SECRET, S3Server, s3_server
from support.blobs.threads import image, messages_of, moved_bodies, put_images
from support.tiers import sized

from langgraph_keel import (
    AccessDenied,
    BlobLost,
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    SqliteSaver,
    StoreUnavailable,
)
from langgraph_keel.blobs.objects import ListObjects, Remove
from langgraph_keel.blobs.opening import open_objects
from langgraph_keel.testing.rig import FACES, at, checkpoint_of

pytestmark = pytest.mark.slow
PLACE = "s3://bucket/agents/blobs"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def listed(place: str) -> list[str]:
    """The names of the objects in a place."""
    objects = open_objects(place)
    try:
        return sorted(each.name for each in objects.send(ListObjects("")))
    finally:
        objects.close()


@pytest.mark.parametrize("face", list(FACES))
@pytest.mark.parametrize("keyring", [None, Keyring(LocalKey("k1", bytes(range(32))))], ids=["plain", "sealed"])
def test_large_values_are_stored_in_a_bucket(s3: S3Server, tmp_path: Path, face: str, keyring: Keyring | None) -> None:
    place = f"{PLACE}/{tmp_path.name}"
    with SqliteSaver(tmp_path / "keel.db", blobs=place, encryption=keyring) as saver:
        through = FACES[face](lambda: saver)
        put = put_images(through, sized(3, 5, 40))
        names = listed(place)
        assert len(names) == 2 * len(put)
        assert len(moved_bodies(saver)) == 2 * len(put)
        with SqliteSaver(tmp_path / "keel.db", blobs=place, encryption=keyring) as cold:
            reader = FACES[face](lambda: cold)
            assert reader.read(at()).checkpoint["channel_values"]["messages"] == put
            through.copy_thread("t", "u")
            through.fork(at("t", "", "00000002"), "v")
            through.prune(["t"])
            assert reader.read(at()).checkpoint["channel_values"]["messages"] == put
            through.delete_thread("t")
            assert reader.read(at("u")).checkpoint["channel_values"]["messages"] == put
            assert reader.read(at("v")).checkpoint["channel_values"]["messages"] == put[:2]
            through.delete_thread("u")
            through.delete_thread("v")
            reader.close()
        assert listed(place) == []
        through.close()


def test_a_lost_object_is_named(s3: S3Server, tmp_path: Path) -> None:
    place = f"{PLACE}/{tmp_path.name}"
    with SqliteSaver(tmp_path / "keel.db", blobs=place) as saver:
        put = put_images(saver, 2, writes=False)
        names = listed(place)
        objects = open_objects(place)
        objects.send(Remove(names))
        objects.send(Remove(names))  # removing them again is not an error
        objects.close()
    with SqliteSaver(tmp_path / "keel.db", blobs=place) as saver:
        with pytest.raises(BlobLost, match=place):
            messages_of(saver)
        assert len(messages_of(saver.raw)) == len(put)


def test_an_erasure_receipt_mentions_versions_in_buckets(s3: S3Server, tmp_path: Path) -> None:
    place = f"{PLACE}/{tmp_path.name}"
    with SqliteSaver(tmp_path / "keel.db", blobs=place, owner=lambda config: "ada") as saver:
        put_images(saver, 1)
        receipt = saver.retention.erase("ada")
        assert receipt.complete
        assert any("bucket with versions" in sentence for sentence in receipt.exempt)
        assert listed(place) == []


def told_of(saver: KeelSaver, kind: type[Exception], caplog: pytest.LogCaptureFixture) -> str:
    """The errors, logs and `repr` of each operation when the bucket refuses."""
    told = []
    config, checkpoint = at("t", "", None), checkpoint_of("1", {"messages": [image(0)]})
    with pytest.raises(kind) as error:
        saver.put(config, checkpoint, {}, {})  # type: ignore[arg-type]
    told += traceback.format_exception(error.value)
    with pytest.raises(kind) as error:
        asyncio.run(saver.aput_writes(at("t", "", "1"), [("messages", image(0))], "task"))
    told += [*traceback.format_exception(error.value), repr(saver), caplog.text]
    assert saver.get_tuple(at()) is None
    assert not moved_bodies(saver)
    return "".join(told)


@pytest.mark.parametrize("refuses", ["bucket", "credentials", "server"])
def test_a_refusing_bucket_is_named_and_nothing_is_stored(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refuses: str
) -> None:
    caplog.set_level(logging.DEBUG)
    place = "s3://nobody-has-this/prefix" if refuses == "bucket" else PLACE
    kind = AccessDenied if refuses == "credentials" else StoreUnavailable
    with s3_server(is_closed=True) as closed:
        if refuses == "credentials":
            monkeypatch.setenv("AWS_ENDPOINT_URL", closed.url)
        elif refuses == "server":
            monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with SqliteSaver(tmp_path / "keel.db", blobs=place) as saver:
            told = told_of(saver, kind, caplog)
    assert place in told
    assert SECRET not in told
    assert "Signature" not in told


def test_an_unreachable_bucket_does_not_count_objects_as_lost(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{PLACE}/{tmp_path.name}"
    with SqliteSaver(tmp_path / "keel.db", blobs=place) as saver:
        put = put_images(saver, 1, writes=False)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with SqliteSaver(tmp_path / "keel.db", blobs=place) as saver:
            for reader in (saver, saver.raw):
                with pytest.raises(StoreUnavailable, match=place):
                    reader.get_tuple(at())
            with pytest.raises(StoreUnavailable):
                saver.delete_thread("t")  # otherwise its objects would stay forever
    with SqliteSaver(tmp_path / "keel.db", blobs=place) as saver:
        assert messages_of(saver) == put


def test_a_forked_process_is_refused_with_advice(s3: S3Server, tmp_path: Path) -> None:
    """The child has no threads of its parent, so it would wait forever."""
    with SqliteSaver(tmp_path / "keel.db", blobs=f"{PLACE}/{tmp_path.name}") as saver:
        put_images(saver, 1, writes=False)
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=_read_in_child, args=(str(tmp_path / "keel.db"), tmp_path.name, writing))
    child.start()
    assert reading.poll(60)
    assert "spawn" in reading.recv()
    child.join(60)


def _read_in_child(path: str, name: str, told: Any) -> None:
    try:
        messages_of(SqliteSaver(path, blobs=f"{PLACE}/{name}"))
    except StoreUnavailable as error:
        told.send(str(error))


def test_an_s3_store_of_obstore_is_accepted(s3: S3Server, tmp_path: Path) -> None:
    from obstore.store import LocalStore, S3Store

    store: Any = S3Store("bucket", prefix=f"own/{tmp_path.name}", client_options={"allow_http": True})
    with SqliteSaver(tmp_path / "keel.db", blobs=store) as saver:
        put = put_images(saver, 1)
        assert len(listed(f"s3://bucket/own/{tmp_path.name}")) == 2
        assert messages_of(saver) == put
    with pytest.raises(InvalidInput, match="file:"):
        SqliteSaver(tmp_path / "keel.db", blobs=LocalStore(tmp_path))
