"""The options of savers, with their types, defaults, checks and documentation.

Constructors of savers and `open_saver` take them as keyword arguments (`**options: Unpack[SaverOptions]`), so that
editors complete them and mypy checks them. `takes` gives a constructor the signature that `help` shows.
"""

# Annotations are values here, and are read at run time.
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_keel._langgraph import BRANCH, JOIN
from langgraph_keel.blobs.opening import check_blobs
from langgraph_keel.blobs.store import LEAST, LIMIT
from langgraph_keel.engine.config import Owner
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.memo import DEFAULT_BYTES, DEFAULT_ENTRIES
from langgraph_keel.engine.misspelt import check_names
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import OnConflict
from langgraph_keel.errors import InvalidInput
from langgraph_keel.keys.keyring import Keyring
from langgraph_keel.moving.notes import SourceLike
from langgraph_keel.provenance.hook import OnDrift
from langgraph_keel.retention.policy import seconds_of
from langgraph_keel.runs.hook import OnBusy, OnUnfinished, PlainResume
from langgraph_keel.tenants.methods import Tenants
from langgraph_keel.upgrades.chain import Upgrades
from langgraph_keel.workspace.records import Workspace

F = TypeVar("F", bound=Callable[..., None])

_MOST_SECONDS = 2_000_000
"""SQLite and PostgreSQL count milliseconds in 32 bits."""

_PIPELINE = "leave it out: a put is one round trip, and concurrent requests share one"
_URL = "pass the URL as the first argument"
_ELSEWHERE = {
    "pipe": _PIPELINE,
    "pipeline": _PIPELINE,
    "redis_url": _URL,
    "conn_string": _URL,
    "connection_args": "make a client with them, and pass client=",
    "redis_client": "pass client= (and async_client=)",
}
"""Options of LangGraph's savers and of the Redis package that Keel does not have, and the replacement."""


@dataclass(frozen=True, slots=True)
class Option:
    """The default of an option, and its allowed values."""

    default: Any = None
    may_be: str = ""  # the allowed values, for messages
    is_right: Callable[[Any], bool] = lambda value: True  # by default, the feature checks its option itself


def _one_of(*values: str) -> Option:
    """One of several texts; the first one is the default."""
    *others, last = map(repr, values)
    return Option(values[0], f"{', '.join(others)} or {last}", lambda value: value in values)


def _flag(default: bool) -> Option:
    return Option(default, "True or False", lambda value: isinstance(value, bool))


def _whole(default: int | None, unit: str, least: int = 0) -> Option:
    """A whole number, or `None` if that is the default."""
    limit = f"at least {least:,}" if least else "from 0 up"
    may_be = f"a whole number of {unit}, {limit}{', or None' if default is None else ''}"
    return Option(default, may_be, lambda value: value is default is None or (type(value) is int and value >= least))


def _timeout(default: float) -> Option:
    return Option(
        default, f"seconds, from 0 to {_MOST_SECONDS:,}", lambda value: _is_number(value) and value <= _MOST_SECONDS
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_serializer(value: object) -> bool:
    pairs = ("dumps_typed", "loads_typed"), ("dumps", "loads")  # LangGraph wraps serializers with the second pair
    has_methods = any(all(callable(getattr(value, name, None)) for name in pair) for pair in pairs)
    return value is None or (has_methods and not isinstance(value, type))


def _are_names(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def check_ephemeral(value: object) -> None:
    """Check the names of channels that are not stored."""
    if not _are_names(value):
        raise InvalidInput(f"ephemeral must be a list of names of channels, as in ['scratch'], not {value!r:.100}")
    for name in value:  # type: ignore[attr-defined]
        if not name or name.startswith(("__", BRANCH, JOIN)):
            raise InvalidInput(f"ephemeral names {name!r:.100}, which is a channel of LangGraph, not of the state")


def _is_client(value: object) -> bool:
    return value is None or (callable(getattr(value, "execute_command", None)) and not isinstance(value, type))


_CLIENT = Option(None, "a client of the package redis", _is_client)


@publish
class SaverOptions(TypedDict, total=False):
    """The options of every saver."""

    serde: Annotated[
        SerializerProtocol | None,
        Option(None, "a serializer, with the methods dumps_typed and loads_typed, or None", _is_serializer),
    ]
    """Any serializer; `None` is `KeelSerializer(types=types)`, which is safe and keeps every type."""

    types: Annotated[Collection[type | tuple[str, ...]] | None, Option()]
    """With Keel's serializer, classes of the program that may be stored and revived (see `KeelSerializer`)."""

    on_conflict: Annotated[OnConflict, _one_of("raise", "fork")]
    """The reaction when two runs continue the same checkpoint: the second write raises `CheckpointConflict` ("raise",
    the default), or is stored as a branch that is not the latest ("fork")."""

    provenance: Annotated[bool, _flag(True)]
    """Whether to record every model call with the step that it led to (`saver.provenance`). On by default."""

    graph_version: Annotated[
        str | None,
        Option(None, "a str, such as '1.4' or a commit's hash", lambda value: isinstance(value, str | None)),
    ]
    """The version of the application: it is stored in each checkpoint's metadata, and in the records of model calls."""

    on_drift: Annotated[OnDrift, _one_of("warn", "ignore", "raise")]
    """The reaction when a thread continues with another model, fingerprint, tool or version than before: nothing
    ("ignore"), a `DriftWarning` ("warn", the default), or `DriftDetected` before the step is stored ("raise").
    With the last two, the metadata of the first checkpoint afterwards record it (`keel_drift`)."""

    plain_resume: Annotated[PlainResume, _one_of("allow", "refuse")]
    """Whether `Command(resume=value)`, which names no interrupt, answers the currently open question ("allow", the
    default, as in LangGraph), or is refused before anything runs ("refuse"), so that a second click never answers the
    next question."""

    on_busy: Annotated[OnBusy, _one_of("raise", "wait")]
    """The reaction of a run with new input while another run holds its thread. By default both run, and the later write
    is a conflict ("raise"; see `on_conflict`). With "wait" it waits until the other run has ended, in order of arrival
    across all processes, and starts from the result. Runs then take two round trips more to start, and one to end."""

    busy_timeout: Annotated[float, Option(60.0, "seconds, from 0 up", _is_number)]
    """Maximum waiting time of a run for its turn, in seconds, before it raises `ThreadTaken`; 60 by default."""

    on_unfinished: Annotated[OnUnfinished, _one_of("drop", "refuse")]
    """The reaction of a run with new input if its thread has steps left, waits for a person, or has failed. By default
    the input replaces the remaining steps, as in LangGraph, and a warning is logged ("drop"). With "refuse" the run
    raises `ThreadUnfinished` before it runs or writes anything; with `on_busy="wait"`, when it has its turn. This costs
    no round trip."""

    recoverable: Annotated[bool, _flag(False)]
    """Whether each checkpoint names the process that stored it, so that `status` reports which threads are running, cut
    off or stopped, and why. It adds 15 bytes to a checkpoint, and a round trip to the first write of a saver only.
    While it runs graphs, each saver of a process renews one heartbeat, every ten seconds. A run that stops with steps
    left stores the reason, in two or three round trips. Off by default. All savers that run graphs on a store need it,
    with `on_conflict="raise"`."""

    archive_removed: Annotated[
        bool | Collection[str],
        Option(
            False,
            "True, False or names of channels, as in ['messages']",
            lambda value: isinstance(value, bool) or _are_names(value),
        ),
    ]
    """Whether messages that a node removes from a list are archived before the checkpoint without them is stored
    (`archive`): from every list of messages, or from the named channels. Off by default. A write that removes nothing
    takes one round trip (two with delta channels); one that removes messages takes three or four. Checkpoints are
    compared by content: with `durability="exit"`, messages that one run both adds and removes are in no checkpoint, and
    are not archived (Keel's own summaries and windows archive them nevertheless)."""

    owner: Annotated[
        Owner | None, Option(None, "a function of a run's config", lambda value: value is None or callable(value))
    ]
    """A function that returns the owner of a run's thread (given its config: a str or `None`). It is called only if
    `configurable["user_id"]` (or the run's metadata) is not set. The owner is stored in each checkpoint's metadata as
    `user_id`, and `erase` finds it. If a run has no owner, it inherits the owner of the checkpoint it continues,
    provided this process still remembers that owner (it keeps the last 10,000 threads): set it on every run."""

    ephemeral: Annotated[Collection[str], Option((), "", lambda value: check_ephemeral(value) is None)]
    """Names of channels that are never stored, for graphs that you cannot change (in others, use `UntrackedValue`).
    Checkpoints, the writes of tasks, and the arguments of `Send` and of runs are stored without them. Within a run they
    work as usual. They are absent when a later run starts, and in `get_state`. A run that continues after a crash in
    the middle of a step lacks the values that completed tasks of that step wrote there."""

    keep_last: Annotated[int | None, _whole(None, "checkpoints", 1)]
    """Number of checkpoints to keep of each thread that this saver writes to (`Retention(last=...)`). A background
    thread of this saver removes the others, starting with the first write. `close` does it once more, for at most 30
    seconds. A stored policy (`retention.set_policy`) that matches the thread takes precedence; a policy with `idle`
    waits for a `sweep`. Errors are logged."""

    ttl: Annotated[float | timedelta | None, Option()]
    """Seconds (or a timedelta) after the last write of any saver until a whole thread is deleted. The background thread
    of `keep_last` deletes it, not `close`. If a stored policy matches the thread, only its `ttl` is used. It must be
    longer than the longest step (see `Retention`). With `RedisSaver`, the server deletes the thread, and `set_ttl`
    changes it for one thread."""

    upkeep_every: Annotated[
        float, Option(60.0, "seconds, more than 0", lambda value: seconds_of("upkeep_every", value) is not None)
    ]
    """Seconds between two rounds of that background thread; 60 by default."""

    memo_entries: Annotated[int, _whole(DEFAULT_ENTRIES, "entries")]
    """Maximum number of (thread, namespace) pairs in the memo."""

    memo_bytes: Annotated[int, _whole(DEFAULT_BYTES, "bytes")]
    """Approximate maximum size of the memo, in bytes. A thread that is larger is read again by each run."""

    encryption: Annotated[Keyring | None, Option(None, "a Keyring, or None", lambda v: isinstance(v, Keyring | None))]
    """The keys with which all records are sealed (`Keyring`, extra `crypto`); `None`, the default, seals nothing."""

    blobs: Annotated[Any, Option(None, "", lambda value: check_blobs(value) is None)]
    """The place of values over `blob_limit`, each stored as an object: the URL of a bucket (`"s3://bucket/prefix"`, `gs://`,
    `az://`; extra `blobs`), of a directory (`"file:/var/agent-blobs"`), or a store of the package obstore. `None`, the
    default, keeps all values in the store."""

    blob_limit: Annotated[int, _whole(LIMIT, "bytes", LEAST)]
    """Size of a row of values, or of a task's writes, above which it becomes an object, in bytes; default 65,536."""

    tenants: Annotated[Tenants, _one_of("allowed", "required")]
    """Whether this saver also has threads without a tenant ("allowed", the default), or refuses every call except
    `for_tenant` ("required")."""

    upgrades: Annotated[Upgrades, Option(())]
    """Upgrades of states of older versions of the application to this one (`upgrade`): a list, or a module that
    contains them. Each checkpoint then records the version that stored it. None by default."""

    moving_from: Annotated[
        SourceLike | None,
        Option(
            None,
            "a URL, a path, a saver of LangGraph's, or None",
            lambda value: isinstance(value, str | os.PathLike | BaseCheckpointSaver | None),
        ),
    ]
    """A store of LangGraph's own savers: `sqlite:///old.db`, the path of such a file, `postgresql://...`, or a saver
    object of LangGraph's interface. Each thread is imported at its first use, and the old store is only read.
    `moving.import_from` imports the rest; then remove the option. None by default."""

    workspace: Annotated[
        Workspace | None, Option(None, "a Workspace, or None", lambda value: isinstance(value, Workspace | None))
    ]
    """A directory whose files are saved with each root checkpoint, in a shadow git repository (`Workspace`). Runs need
    `durability="sync"`. It cannot be combined with `encryption`, as git's objects are not sealed. None by default."""

    extra_hooks: Annotated[
        Sequence[Hook],
        Option(
            (),
            "a list of hooks, objects of subclasses of Hook",
            lambda value: isinstance(value, Sequence) and all(isinstance(each, Hook) for each in value),
        ),
    ]
    """Your own features (`langgraph_keel.engine.hooks.Hook`). They are called first before an event."""


class _Opening(TypedDict, total=False):
    read_only: Annotated[bool, _flag(False)]
    """Never write, and do not create a missing store. A `RedisSaver` then also works on a replica."""

    auto_setup: Annotated[bool, _flag(True)]
    """Create the tables, or the store, on first use; otherwise `setup()` must have been called once."""


class SqliteOptions(SaverOptions, _Opening, total=False):
    """The options of `SqliteSaver`."""

    timeout: Annotated[float, _timeout(30.0)]
    """Maximum time that a call waits for other processes, in seconds, before it raises `StoreBusy`."""


class _ForFiles(TypedDict, total=False):
    memory: Annotated[int, _whole(64 << 20, "bytes")]
    """Approximate size of the cache of recently used threads, in bytes."""

    git: Annotated[bool, _flag(False)]
    """Commit each run to the git repository around the directory, with the git executable. Failed commits are logged,
    and never fail a write."""


class FileOptions(SaverOptions, _Opening, _ForFiles, total=False):
    """The options of `FileSaver`."""

    timeout: Annotated[float, _timeout(30.0)]
    """Maximum time that a call waits for other processes, in seconds, before it raises `StoreBusy`."""


class _ForPostgres(TypedDict, total=False):
    schema: Annotated[
        str | None, Option(None, "the name of a schema, a str, or None", lambda value: isinstance(value, str | None))
    ]
    """The schema of the tables; by default the first one of the connection's search path."""

    partitions: Annotated[int, Option(0, "between 0 and 1024", lambda value: type(value) is int and 0 <= value <= 1024)]
    """Number of hash partitions by thread, when the tables are created."""

    pool_size: Annotated[int, _whole(10, "connections", 1)]
    """Maximum number of connections, for each face and event loop."""

    prepare_threshold: Annotated[
        int | None,
        Option(
            0,
            "a whole number of uses, from 0 up, or None",
            lambda value: value is None or (type(value) is int and value >= 0),
        ),
    ]
    """Number of uses after which a statement is prepared; `None` (never) for PgBouncer before 1.21. Your own connection
    keeps its own setting."""


class PostgresOptions(SaverOptions, _Opening, _ForPostgres, total=False):
    """The options of `PostgresSaver`."""

    timeout: Annotated[float, _timeout(30.0)]
    """Seconds to wait for a connection, and for a reply, before `StoreBusy` or `StoreUnavailable` is raised."""


class _ForRedis(TypedDict, total=False):
    prefix: Annotated[str, Option("keel", "text, a str, such as 'keel'", lambda value: isinstance(value, str))]
    """The prefix of all keys of this store, so that one database can contain several stores."""

    refresh_ttl_on_read: Annotated[bool, _flag(False)]
    """Whether reading a checkpoint restarts the thread's time to live, as a write does."""

    durability: Annotated[Literal["disk", "any"], _one_of("disk", "any")]
    """`"disk"` warns (`DurabilityWarning`) if the server can lose completed writes; `"any"` does not."""

    allow_eviction: Annotated[bool, _flag(False)]
    """Whether to write to a server that evicts data when memory is short."""

    max_connections: Annotated[int, _whole(50, "connections", 1)]
    """Maximum number of connections of a process for its threads, and for each event loop (on a Cluster: to each
    node)."""


class RedisOptions(SaverOptions, _Opening, _ForRedis, total=False):
    """The options of `RedisSaver`.

    Its `ttl` is the server's, counted from a thread's last write; see `set_ttl`.
    """

    client: Annotated[Any, _CLIENT]
    """Your own client instead of the URL, such as `sentinel.master_for("name")`; you close it. Without an
    `async_client`, the async methods use it in threads."""

    async_client: Annotated[Any, _CLIENT]
    """Your own client for the async methods, of the event loop in which they are called."""

    timeout: Annotated[float, _timeout(10.0)]
    """Seconds that a call waits for a connection, and for a reply."""


@publish
class OpenOptions(SaverOptions, _ForFiles, _ForPostgres, _ForRedis, total=False):
    """The options of `open_saver`: those of every saver, and those of Keel's backends."""

    timeout: float
    """Seconds a call may wait; see the options of the backend."""

    auto_setup: bool
    """Create the tables, or the store, on first use; otherwise `setup()` must have been called once."""


def options_of(kind: type) -> Mapping[str, Option]:
    """Return the default and check of each option in a class, by name."""
    return {name: get_args(hint)[1] for name, hint in kind.__annotations__.items()}


def check_options(saver: type, given: Iterable[str]) -> None:
    """Check that a saver has options of these names."""
    names = list(given)
    check_names(saver.__name__, names, set(names and _names_of(saver)), _ELSEWHERE)


def check_values(given: Mapping[str, Any], options: Mapping[str, Option]) -> None:
    """Check the values of options; unknown options are ignored."""
    for name, value in given.items():
        if name in options and not options[name].is_right(value):
            raise InvalidInput(f"{name} must be {options[name].may_be}, not {_show(name, value)}")


def read_options(saver: type, given: SaverOptions) -> SaverOptions:
    """Check the options of a saver, and return all, with defaults."""
    check_options(saver, given)
    options = options_of(SaverOptions)
    check_values(given, options)
    if given.get("serde") is not None and given.get("types") is not None:
        raise InvalidInput("types= belongs to Keel's own serializer: pass types= or serde=, not both")
    if given.get("recoverable") and given.get("on_conflict") == "fork":
        raise InvalidInput("recoverable=True needs on_conflict='raise': one run at a time resumes a thread")
    if given.get("workspace") and given.get("encryption"):
        raise InvalidInput(
            "workspace= cannot be combined with encryption=: the git repository would contain the files unencrypted. "
            "Leave workspace= out, or keep store and repository on an encrypted disk, without encryption="
        )
    if given.get("on_drift") == "raise" and given.get("provenance") is False:
        raise InvalidInput("on_drift='raise' needs provenance=True: without records there is nothing to compare")
    return {**{name: option.default for name, option in options.items()}, **given}  # type: ignore[typeddict-item]


def split_options(saver: type, kind: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], SaverOptions]:
    """Check the options of a backend's saver, and split them. Nothing is opened.

    Returns:
        The options that only this backend has, with defaults; and those that all savers have, as passed.
    """
    check_options(saver, given)
    options, shared = options_of(kind), options_of(SaverOptions)
    check_values(given, options)
    own = {name: given.get(name, options[name].default) for name in options if name not in shared}
    return own, {name: value for name, value in given.items() if name in shared}  # type: ignore[return-value]


def takes(kind: type) -> Callable[[F], F]:
    """Give a constructor with `**options` a signature that lists the options."""

    def with_signature(init: F) -> F:
        written = [each for each in signature(init).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        hints, options, shared = kind.__annotations__, options_of(kind), SaverOptions.__annotations__
        listed = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=options[name].default, annotation=get_args(hints[name])[0])
            for name in sorted(hints, key=shared.__contains__)
        ]
        init.__signature__ = Signature([*written, *listed], return_annotation=None)  # type: ignore[attr-defined]
        return init

    return with_signature


def _show(name: str, value: object) -> str:
    """Return a value for an error message, without passwords and keys."""
    if name == "encryption" and isinstance(value, str | bytes | bytearray):
        return f"a {type(value).__name__}"
    return "a URL" if isinstance(value, str) and "://" in value else repr(value)[:100]


def _names_of(saver: type) -> Iterable[str]:
    """Yield the keyword arguments of a class's constructor and of its base classes."""
    for base in saver.__mro__:
        if "__init__" in vars(base):
            parameters = signature(vars(base)["__init__"]).parameters.values()
            yield from (each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY)
