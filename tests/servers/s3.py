"""An S3 server: moto's, in a separate process, on a free port of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from .launch import free_port

SECRET = "very/secret/key"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server with a bucket.

    Attributes:
        url: Its address.
        environment: Environment variables with the credentials for clients.
    """

    url: str
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def s3_server(bucket: str = "bucket", *, is_closed: bool = False) -> Iterator[S3Server]:
    """Run a server.

    Args:
        bucket: The name of its bucket.
        is_closed: Whether it refuses all clients, once the bucket exists.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    auth = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if is_closed else {}
    with subprocess.Popen(
        words, env=os.environ | auth, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _make_bucket(f"{url}/{bucket}", process)
            yield S3Server(
                url,
                {
                    "AWS_ENDPOINT_URL": url,
                    "AWS_ALLOW_HTTP": "true",
                    "AWS_REGION": "us-east-1",
                    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
                    "AWS_SECRET_ACCESS_KEY": SECRET,
                },
            )
        finally:
            process.kill()


def _make_bucket(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            return
        except urllib.error.URLError:
            assert process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < end, "the S3 server does not answer"
            time.sleep(0.05)
