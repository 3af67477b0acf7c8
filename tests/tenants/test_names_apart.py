"""Stores in one place: data of one store is never taken for another's tenant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from langgraph_keel import FileSaver, InvalidInput, NotAKeelStore, PostgresSaver, RedisSaver
from langgraph_keel.testing.rig import at, checkpoint_of


def put(saver: Any, thread: str = "t") -> None:
    saver.put(at(thread), checkpoint_of("00000001", {"n": 1}), {}, {"n": 1})


@pytest.mark.parametrize("before", ["shop:", "a:b:", "keel:", "shop@"])
def test_a_redis_prefix_is_not_mistaken_for_a_tenant(redis_url: str, redis_prefix: str, before: str) -> None:
    def opened(prefix: str) -> RedisSaver:
        return RedisSaver(redis_url, prefix=prefix, durability="any")

    with opened(redis_prefix) as saver, opened(before + redis_prefix) as other:
        put(saver)
        put(other)
        put(other.for_tenant("acme"))
        assert (saver.tenants.list(), other.tenants.list()) == ([], ["acme"])
        put(saver.for_tenant("shop"))
        assert (saver.tenants.list(), other.tenants.list()) == (["shop"], ["acme"])
        assert [info.thread_id for info in saver.threads()] == ["t"]
        saver.tenants.delete("shop")
        saver.tenants.delete("acme")
        assert saver.tenants.list() == []
        assert other.get_tuple(at("t"))
        assert other.for_tenant("acme").get_tuple(at("t"))
        assert list(saver.check()) == list(other.check()) == []


def test_a_redis_prefix_that_looks_like_a_tenant_is_refused(redis_url: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        RedisSaver(redis_url, prefix="shop#keel")


@pytest.mark.parametrize("read_only", [False, True])
def test_the_directory_of_a_tenant_cannot_be_opened_as_a_store(tmp_path: Path, read_only: bool) -> None:
    with FileSaver(tmp_path) as saver:
        put(saver.for_tenant("acme"))
    for name in ("acme", "shop"):
        nested = FileSaver(tmp_path / "tenants" / name, read_only=read_only)
        with nested, pytest.raises(NotAKeelStore, match=f"for_tenant.'{name}'"):
            nested.get_tuple(at("t"))
    with FileSaver(tmp_path) as saver:
        assert saver.tenants.list() == ["acme"]
        assert saver.for_tenant("acme").get_tuple(at("t"))


def test_postgres_schemas_keep_tenants_separate(postgres_url: str) -> None:
    names = ["keel acme", "\x1facme\x1f"]
    with (
        PostgresSaver(postgres_url) as saver,
        PostgresSaver(postgres_url, schema=names[0]) as other,
        PostgresSaver(postgres_url, schema=names[1]) as third,
    ):
        for each in (saver, other, third):
            put(each.for_tenant("acme"))
        saver.tenants.delete("acme")
        assert [each.tenants.list() for each in (saver, other, third)] == [[], ["acme"], ["acme"]]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in names:
            connection.execute(f'DROP SCHEMA "{name}" CASCADE'.encode())
