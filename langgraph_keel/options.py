"""The options that every saver takes, whatever its backend: typed here, once.

`KeelSaver`, the savers of the backends and `open_saver` take them as keyword arguments (`**options:
Unpack[SaverOptions]`), so that an editor completes them and mypy checks them. The defaults are those of `KeelSaver`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from inspect import Parameter, signature
from typing import Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_keel.approvals.run_claims import OnBusy, PlainResume
from langgraph_keel.engine.config import Owner
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.misspelt import check_names
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import OnConflict
from langgraph_keel.errors import InvalidInput
from langgraph_keel.keys.keyring import Keyring
from langgraph_keel.moving.notes import SourceLike
from langgraph_keel.provenance.hook import OnDrift
from langgraph_keel.tenants.methods import Tenants
from langgraph_keel.upgrades.chain import Upgrades


class OptionsBesidesTtl(TypedDict, total=False):
    """The options of a backend whose own `ttl` means something else, as that of Redis does."""

    serde: SerializerProtocol | None
    """Any serializer; `None` is `KeelSerializer(types=types)`, which is safe and keeps every type."""

    types: Collection[type | tuple[str, ...]] | None
    """With Keel's serializer, classes of the program that may be stored and revived (see `KeelSerializer`)."""

    on_conflict: OnConflict
    """What happens when two runs continue the same checkpoint: the second put raises `CheckpointConflict` ("raise",
    the default), or is kept as a branch that is not the latest ("fork")."""

    provenance: bool
    """Whether to record every call of a model with the step it leads to (`saver.provenance`). On by default."""

    graph_version: str | None
    """The application's own version: it stands in each checkpoint's metadata, and in the records."""

    on_drift: OnDrift
    """What happens when a thread goes on with another model, fingerprint, tool or version than it was written with:
    nothing ("ignore"), a `DriftWarning` ("warn", the default), or `DriftDetected` before the step is stored ("raise").
    With the last two, the first checkpoint after it says so in its metadata (`keel_drift`)."""

    plain_resume: PlainResume
    """Whether `Command(resume=value)`, which names no interrupt, answers whatever is asked when it comes ("allow", the
    default, as in LangGraph), or is refused before anything runs ("refuse"): a click that comes twice then never
    answers the next question."""

    on_busy: OnBusy
    """What a run with new input does while another run has its thread: it goes on, and of the two the one that puts
    later is told ("raise", the default; see `on_conflict`); or it waits until that has ended, in the order in which
    runs come, in all processes, and begins from what that has left ("wait"). Runs then take two round trips more to
    begin, and one to end."""

    busy_timeout: float
    """Seconds that a run waits so, before `ThreadTaken` is raised; 60 by default."""

    archive_removed: bool | Collection[str]
    """Whether messages that anybody takes out of a list are archived before the checkpoint without them is stored
    (`archive`): of every list of messages, or of the channels named. Off by default. A put that takes nothing out stays
    one round trip (two where there are delta channels); one that does takes three, or four. What checkpoints are
    compared by is what they hold: with `durability="exit"`, messages that one run both adds and takes out are in none,
    and not archived (Keel's own summaries and windows archive them nevertheless)."""

    owner: Owner | None
    """A function that says whose the thread of a run is (given its config: a str or `None`). It is asked only where
    `configurable["user_id"]` (or the run's metadata) does not say it. The answer stands in each checkpoint's metadata
    as `user_id`, and `erase` finds it. A run that names nobody goes on for whom the checkpoint names that it continues,
    as far as this process remembers it (of the last 10,000 threads): name them in each run."""

    keep_last: int | None
    """Of each thread that this saver puts to, only so many checkpoints stay (`Retention(last=...)`). A background
    thread of this saver removes the others, beginning with the first put; `close` does it once more, for at most 30
    seconds. A stored policy (`retention.set_policy`) that fits the thread counts instead; one with `idle` waits for a
    `sweep`. What it could not do is logged."""

    upkeep_every: float
    """Seconds between two rounds of that background thread; 60 by default."""

    memo_entries: int
    """Most (thread, namespace) pairs the memo remembers."""

    memo_bytes: int
    """Most bytes the memo takes, about."""

    encryption: Keyring | None
    """The keys with which all that is stored is sealed (`Keyring`, extra `crypto`); `None`, the default, seals
    nothing."""

    blobs: Any
    """Where values over `blob_limit` are kept, in an object each: the URL of a bucket (`"s3://bucket/prefix"`, `gs://`,
    `az://`; extra `blobs`), of a directory (`"file:/var/agent-blobs"`), or a store of the package obstore. `None`, the
    default, keeps all in the store."""

    blob_limit: int
    """Bytes of a stored row of values, or of what a task has written, above which it is kept so; 65,536 by default."""

    tenants: Tenants
    """Whether this saver has threads itself, beside those of tenants ("allowed", the default), or refuses every call
    but `for_tenant` ("required")."""

    upgrades: Upgrades
    """What carries states of older versions of the application over to this one (`upgrade`): a list, or a module that
    has them. Each checkpoint then says which version has stored it. None by default."""

    moving_from: SourceLike | None
    """Where threads of one of LangGraph's own savers are: `sqlite:///old.db`, the path of such a file,
    `postgresql://...`, or a saver object of LangGraph's interface. Each thread moves in at its first touch, and the old
    store is only read. `moving.import_from` fetches the rest; then leave the option out again. None by default."""

    extra_hooks: Sequence[Hook]
    """Features of your own (`langgraph_keel.engine.hooks.Hook`); they hear first what is about to happen."""


@publish
class SaverOptions(OptionsBesidesTtl, total=False):
    """The options that `KeelSaver` takes, and with it every saver."""

    ttl: float | timedelta | None
    """Seconds (or a timedelta) after its last put that a whole thread is deleted, by the background thread of
    `keep_last`, whoever has put it, but not in `close`; where a stored policy fits, by that one's `ttl` only. It must
    be longer than the longest step (see `Retention`). (`RedisSaver` leaves it to the server: its own `ttl` is meant
    there.)"""


_PIPELINE = "leave it out: a put is one round trip, and what waits at the same moment goes together"
_URL = "pass the URL as the first argument"
_ELSEWHERE = {
    "pipe": _PIPELINE,
    "pipeline": _PIPELINE,
    "redis_url": _URL,
    "conn_string": _URL,
    "connection_args": "make a client with them, and pass client=",
    "redis_client": "pass client= (and async_client=)",
}
"""Options of LangGraph's savers and of the Redis package that Keel's do not have, and what to write."""


def check_options(saver: type, given: Iterable[str]) -> None:
    """Check that a saver has options of these names."""
    names = list(given)
    check_names(saver.__name__, names, set(names and _options_of(saver)), _ELSEWHERE)


def check_values(given: Mapping[str, Any]) -> None:
    """Check what a saver of Keel's own was given for its options, before it makes or opens anything.

    Options that are not in the table below are checked by the feature that they belong to, and names by
    `check_options`.
    """
    for name, value in given.items():
        may_be, is_right = _RULES.get(name, _ANYTHING)
        if not is_right(value):
            raise InvalidInput(f"{name} must be {may_be}, not {_show(name, value)}")


def _show(name: str, value: object) -> str:
    """Return a value for an error, without a password or a key that it may be."""
    if name == "encryption" and isinstance(value, str | bytes | bytearray):
        return f"a {type(value).__name__}"
    return "a URL" if isinstance(value, str) and "://" in value else repr(value)[:100]


_Rule = tuple[str, Callable[[Any], bool]]

_MOST_SECONDS = 2_000_000
"""SQLite and PostgreSQL count milliseconds in 32 bits."""


def _is_timeout(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_whole(value: object, least: int, most: float = float("inf")) -> bool:
    return type(value) is int and least <= value <= most


def _is_serializer(value: object) -> bool:
    pairs = ("dumps_typed", "loads_typed"), ("dumps", "loads")  # those of the latter pair, LangGraph wraps
    has_methods = any(all(callable(getattr(value, name, None)) for name in pair) for pair in pairs)
    return value is None or (has_methods and not isinstance(value, type))


def _is_list_of_hooks(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, Hook) for each in value)


def _is_source(value: object) -> bool:
    return isinstance(value, str | os.PathLike | BaseCheckpointSaver | None)


def _is_client(value: object) -> bool:
    return value is None or (callable(getattr(value, "execute_command", None)) and not isinstance(value, type))


_TIMEOUT: _Rule = (f"seconds, from 0 to {_MOST_SECONDS:,}", _is_timeout)
_FLAG: _Rule = ("True or False", _is_flag)
_BYTES: _Rule = ("a whole number of bytes, from 0 up", lambda value: _is_whole(value, 0))
_CONNECTIONS: _Rule = ("a whole number of connections, at least 1", lambda value: _is_whole(value, 1))
_CLIENT: _Rule = ("a client of the package redis", _is_client)
_ANYTHING: _Rule = ("anything", lambda value: True)

_RULES: Mapping[str, _Rule] = {
    # of every saver
    "serde": ("a serializer, with the methods dumps_typed and loads_typed, or None", _is_serializer),
    "on_conflict": ("'raise' or 'fork'", lambda value: value in ("raise", "fork")),
    "provenance": _FLAG,
    "memo_entries": ("a whole number of entries, from 0 up", lambda value: _is_whole(value, 0)),
    "memo_bytes": _BYTES,
    "encryption": ("a Keyring, or None", lambda value: isinstance(value, Keyring | None)),
    "tenants": ("'allowed' or 'required'", lambda value: value in ("allowed", "required")),
    "moving_from": ("a URL, a path, a saver of LangGraph's, or None", _is_source),
    "extra_hooks": ("a list of hooks, objects of subclasses of Hook", _is_list_of_hooks),
    # of more than one backend
    "timeout": _TIMEOUT,
    "read_only": _FLAG,
    "auto_setup": _FLAG,
    # of FileSaver
    "memory": _BYTES,
    "git": _FLAG,
    # of PostgresSaver
    "schema": ("the name of a schema, a str, or None", lambda value: isinstance(value, str | None)),
    "partitions": ("between 0 and 1024", lambda value: _is_whole(value, 0, 1024)),
    "pool_size": _CONNECTIONS,
    "prepare_threshold": (
        "a whole number of uses, from 0 up, or None",
        lambda value: value is None or _is_whole(value, 0),
    ),
    # of RedisSaver
    "client": _CLIENT,
    "async_client": _CLIENT,
    "prefix": ("text, a str, such as 'keel'", lambda value: isinstance(value, str)),
    "refresh_ttl_on_read": _FLAG,
    "durability": ("'disk' or 'any'", lambda value: value in ("disk", "any")),
    "allow_eviction": _FLAG,
    "max_connections": _CONNECTIONS,
}
"""What each option may be, in words and as a function; of options that no feature checks by itself."""


def _options_of(saver: type) -> Iterator[str]:
    """Yield what a constructor takes by name, and those of the classes that it is made of."""
    for base in saver.__mro__:
        if "__init__" in vars(base):
            parameters = signature(vars(base)["__init__"]).parameters.values()
            yield from (each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY)
