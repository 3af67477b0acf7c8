"""Checking and opening the place given as `blobs=`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from langgraph_keel.blobs.directory import DirectoryObjects
from langgraph_keel.blobs.objects import Objects
from langgraph_keel.errors import InvalidInput

BUCKETS = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
"""URL schemes of buckets."""
_SAY = (
    "use blobs='s3://bucket/prefix' (or gs://, az://account/container/prefix), blobs='file:/var/agent-blobs', or pass "
    "a store of the package obstore"
)
_CREDENTIALS = (
    "leave keys, passwords and options out of the URL of blobs=: set them in the environment (AWS_ACCESS_KEY_ID, "
    "AWS_ENDPOINT_URL, ...), or pass a store of the package obstore: blobs=S3Store('bucket', ...)"
)


def check_blobs(blobs: Any) -> None:
    """Check `blobs=` before anything is opened."""
    if blobs is None:
        return
    if isinstance(blobs, str):
        _check_url(blobs)
    elif isinstance(blobs, type) or not all(callable(getattr(blobs, name, None)) for name in ("put_async", "list")):
        what = "bytes" if isinstance(blobs, bytes) else f"{blobs!r:.100}"  # bytes may contain a password
        raise InvalidInput(f"blobs must be a URL or an obstore store, not {what}: {_SAY}")
    elif type(blobs).__name__ == "LocalStore":
        raise InvalidInput("obstore's LocalStore may lose files in a power cut: use blobs='file:/the/directory'")


def _check_url(url: str) -> None:
    scheme, colon, path = url.partition(":")
    if not colon or scheme not in ("file", *BUCKETS) or not path.strip("/"):
        raise InvalidInput(f"blobs is not a valid URL of a place: {_SAY}")
    if scheme == "file":
        return
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput(f"the URL of blobs cannot be read: {_SAY}") from None
    # abfss://container@account... names no password
    names_user = "@" in parts.netloc and (parts.password is not None or not scheme.startswith("abfs"))
    if names_user or parts.query or parts.fragment:
        raise InvalidInput(_CREDENTIALS)
    if not parts.netloc:
        raise InvalidInput(f"blobs names no bucket: {_SAY}")


def open_objects(blobs: Any) -> Objects:
    """Return the place of the objects. No request is sent yet."""
    if isinstance(blobs, str) and blobs.startswith("file:"):
        path = blobs.removeprefix("file:")
        return DirectoryObjects(unquote(path.removeprefix("//")) if path.startswith("///") else path)
    try:
        from langgraph_keel.blobs.driver import BucketObjects, open_bucket
    except ImportError:
        raise InvalidInput(
            "blobs= needs the package obstore: pip install 'obstore>=0.12' (Keel's extra 'blobs')"
        ) from None
    return open_bucket(blobs) if isinstance(blobs, str) else BucketObjects(blobs, f"{blobs!r:.200}")
