"""Faulty URLs: exit status 2 and an error without passwords, on every backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_threads import keel, keel_json

REDIS, CLUSTER = "redis://:hunter2@localhost:1/0", "redis+cluster://:hunter2@localhost:1"
POSTGRES = "postgresql://u:hunter2@localhost:1/x"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"{REDIS}?durability=any", "'durability'. Only connection options of redis-py"),
        (f"{REDIS}?timeout=x", "Invalid value for 'timeout'"),
        (f"{REDIS}?socket_timeot=1", "'socket_timeot'"),
        (f"{REDIS}?decode_responses=yes", "leave decode_responses out"),
        (f"{REDIS}?protocol=4", "protocol must be"),
        (f"{REDIS}?ssl_cert_reqs=none", "'ssl_cert_reqs'"),
        (f"rediss{REDIS[5:]}?ssl_cert_reqs=foo", "Requirements Flag"),
        (f"{REDIS}?db=x", "Invalid value for 'db'"),
        (f"{REDIS}bc", "the path of a Redis URL must be a database number"),
        ("redis://:hunter2@localhost:abc/0", "this Redis URL is invalid"),
        ("redis://:hunter2/x@localhost:1/0", "%2F for /"),
        ("redis://u:12/hunter2@localhost:1/0", "%2F for /"),
        ("redis://u:12?hunter2@localhost:1/0", "%2F for /"),
        ("redis://u:12#hunter2@localhost:1/0", "%23 for #"),
        ("redis://[::1/0", "this Redis URL is invalid"),
        ("REDIS://:hunter2@localhost:1/0", "names no store"),
        ("unix:///nowhere?db=x", "Invalid value for 'db'"),
        (f"{CLUSTER}?foo=1", "'foo'"),
        (f"{CLUSTER}/3", "a Redis Cluster has only one database"),
        (f"{POSTGRES}?foo=1", "it has no option 'foo'"),
        (f"{POSTGRES}?foo", "not a PostgreSQL connection string"),
        (f"{POSTGRES}?schema=", "'' cannot be a name in PostgreSQL"),
        (f"{POSTGRES}?sslmode=foo", 'invalid sslmode value: "foo"'),
        (f"{POSTGRES}?sslmode=", 'invalid sslmode value: ""'),
        (f"{POSTGRES}?connect_timeout=x", "bad value for connect_timeout"),
        ("postgresql://u:hunter2@localhost:abc/x", "the port must be a number"),
        ("postgresql://localhost:1/x?password=hunter2&foo=1", "not a PostgreSQL connection string"),
        ("sqlite:///a.db?timeout=1", "such URLs take no options"),
        ("sqlite:///a.db?timeout=", "such URLs take no options"),
        ("files:a?git=1", "such URLs take no options"),
        ("memory:?x=1", "such URLs take no options"),
        ("memory:x", "names no store"),
        (f"tiered:{REDIS}?durability=any,sqlite:///a.db", "'durability'"),
        (f"tiered:memory:,{POSTGRES}?foo=1", "it has no option 'foo'"),
        ("tiered:memory:,sqlite:///a.db?x=1", "such URLs take no options"),
        ("tiered:memory:", "names no store"),
        ("", "names no store"),
        ("foo://u:hunter2@x?y=1", "names no store"),
    ],
)
def test_faulty_urls_are_refused_without_passwords(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = keel("schema", "--url", url, status=2)
    assert said in " ".join(told.stderr.split())
    assert "hunter2" not in told.output
    assert [*tmp_path.iterdir()] == []
    assert keel_json("schema", "--url", url, status=2)["error"]["code"] == "invalid_input"


@pytest.mark.parametrize("options", ["?", "?timeout=1.5&client_name=a%20b&retry_on_timeout=yes", "?db=3&protocol=3"])
def test_redis_url_options_are_accepted(options: str) -> None:
    assert "cannot be reached" in keel("threads", "--url", f"{REDIS}{options}", status=1).stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"{POSTGRES}?sslmode=foo", "wrong value"),
        (f"{POSTGRES}?connect_timeout=x", "cannot be read"),
        ("postgresql://u:hunter2@[::1/x", "cannot be read"),
    ],
)
def test_faulty_source_urls_are_refused_without_passwords(source: str, said: str, tmp_path: Path) -> None:
    told = keel("import", source, "--url", f"sqlite:///{tmp_path / 'a.db'}", status=2)
    assert said in told.stderr
    assert "hunter2" not in told.output
