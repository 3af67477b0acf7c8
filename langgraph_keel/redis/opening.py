"""What is looked at before a store is used: whose keys these are, and what the server does with them.

Plans, as everything that talks to the server: both drivers run them once, on first use. `Look` keeps what they saw.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langgraph_keel.core.plan import Plan
from langgraph_keel.errors import (
    DurabilityWarning,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    StoreError,
    UnsafeStore,
)
from langgraph_keel.redis.names import Keys

FORMAT = 1
SCANNED = 100
"""Most rounds of a thousand keys each in the search for keys of others: a database may be shared with millions."""
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ask:
    """A command before the store is opened; the reply is a list of one reply, or error, per node.

    Attributes:
        words: The command, its name as the client spells it.
        node: Which master of a Cluster; `None` is all of them, and -1 the one that has the key.
    """

    words: tuple[Any, ...]
    node: int | None = -1


Replies: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class Durability:
    """What becomes of an acknowledged put, as the server is set up (on a Cluster: its weakest master).

    Attributes:
        appendonly: `yes`, `no` or `unknown`.
        appendfsync: `always`, `everysec`, `no` or `unknown`.
        acknowledged: Where an acknowledged put is, in words.
        maxmemory_policy: What the server throws away when it is full; `noeviction` is nothing.
    """

    appendonly: str = UNKNOWN
    appendfsync: str = UNKNOWN
    acknowledged: str = UNKNOWN
    maxmemory_policy: str = UNKNOWN

    @property
    def is_on_disk(self) -> bool:
        """Whether an acknowledged put survives a power cut."""
        return (self.appendonly, self.appendfsync) == ("yes", "always")


_LOST = {
    ("yes", "always"): "on disk",
    ("yes", "everysec"): "lost by a power cut within about 1 s",
    ("yes", "no"): "lost by a power cut within about 30 s",
}
_WEAKEST = {"no": 0, UNKNOWN: 1, "everysec": 2}
_warned: set[str] = set()


class Look:
    """What one saver has learned of its server, shared by its two faces.

    Args:
        keys: The keys of the store.
        where: How messages name the server.
        read_only: Whether it may only be read.
        auto_setup: Whether the first write may make the store.
        durability: What acknowledged must mean for there to be no warning: "disk", or "any".
        allow_eviction: Whether the server may throw threads away.
    """

    def __init__(
        self,
        keys: Keys,
        where: str,
        read_only: bool = False,
        auto_setup: bool = True,
        durability: Literal["disk", "any"] = "disk",
        allow_eviction: bool = False,
    ) -> None:
        self._keys = keys
        self._where = where
        self._wants_disk = durability == "disk" and not read_only
        self._allow_eviction = allow_eviction
        self.read_only = read_only
        self.auto_setup = auto_setup
        self.durability = Durability()
        self.has_looked = False
        self.may_write = False

    def is_enough(self, writes: bool) -> bool:
        """Return whether there is nothing left to look at before such a request."""
        return self.may_write or (self.has_looked and not writes)

    def prepare(self, writes: bool) -> Plan[Ask, Replies, None]:
        """Look at the store and the server, and make the store if it is to be written. Three to seven trips.

        Raises:
            NewerFormat: A newer Keel wrote here.
            NotAKeelStore: There are keys of somebody else under the prefix.
            NotSetUp: There is no store, and it shall not be made.
            NotFound: There is no store, and it may only be read.
            UnsafeStore: The server throws threads away when memory is short, and it is to be written.
        """
        version = yield from self._format()
        if not self.has_looked:
            self.durability = yield from _durability()
            self._warn()
            self.has_looked = True
        if writes:
            self._refuse_eviction()
            if version is None:
                yield from self._make()
            self.may_write = True

    def _format(self) -> Plan[Ask, Replies, bytes | None]:
        [found] = yield Ask(("GET", self._keys.format))
        if isinstance(found, Exception):
            raise found
        if found is None and self.read_only:
            raise NotFound(f"{self._where}: there is no store of Keel under the prefix {self._keys.prefix!r}")
        if found is None and not self.auto_setup:
            raise NotSetUp(f"{self._where}: no store of Keel under the prefix {self._keys.prefix!r}: call setup() once")
        if found is not None and not found.isdigit():
            raise NotAKeelStore(f"{self._where}: the key {self._keys.format!r} is not Keel's: pass another prefix=")
        if found is not None and int(found) > FORMAT:
            raise NewerFormat(
                f"{self._where}: written in format {found.decode()} by a newer Keel; this one knows {FORMAT}: upgrade"
            )
        version: bytes | None = found
        return version

    def _make(self) -> Plan[Ask, Replies, None]:
        foreign = yield from _foreign_key(self._keys)
        if foreign is not None:
            raise NotAKeelStore(
                f"{self._where}: the key {foreign!r} is under the prefix {self._keys.prefix!r}, but not Keel's: pass "
                "another prefix="
            )
        [done] = yield Ask(("SET", self._keys.format, FORMAT, "NX"))
        if isinstance(done, Exception):
            raise done

    def _refuse_eviction(self) -> None:
        policy = self.durability.maxmemory_policy
        if policy not in ("noeviction", UNKNOWN) and not self._allow_eviction:
            raise UnsafeStore(
                f"{self._where}: with maxmemory-policy {policy} the server deletes threads when memory is short: set "
                "it to noeviction, or pass allow_eviction=True if these threads may vanish"
            )

    def _warn(self) -> None:
        if not self._wants_disk or self.durability.is_on_disk or self._where in _warned:
            return
        _warned.add(self._where)
        warnings.warn(
            f"{self._where}: an acknowledged put is {_in_words(self.durability)}: set appendonly yes and appendfsync "
            "always, or pass durability='any' if that is good enough",
            DurabilityWarning,
            stacklevel=2,
        )


def _in_words(durability: Durability) -> str:
    if durability.acknowledged != UNKNOWN:
        return durability.acknowledged
    return f"kept in a way that the server does not tell (appendonly {durability.appendonly})"


def _durability() -> Plan[Ask, Replies, Durability]:
    """Ask the server how it keeps data: by CONFIG, or where that is forbidden by INFO, which says less."""
    nodes = yield from _settings("CONFIG GET", ("append*", "maxmemory*"))
    if not all(nodes):
        nodes = yield from _settings("INFO", ("persistence", "memory"))
    return min(map(_durability_of, nodes), key=_strength)


def _settings(command: str, parts: Sequence[str]) -> Plan[Ask, Replies, list[dict[str, str]]]:
    """Return per node what the command says; nothing where it is refused."""
    nodes: list[dict[str, str]] = []
    for part in parts:
        replies = yield Ask((command, part), None)
        nodes = nodes or [{} for _ in replies]
        for node, reply in zip(nodes, replies, strict=True):
            _raise_unless_refused(reply)
            node.update({key: str(value) for key, value in reply.items()} if isinstance(reply, Mapping) else {})
    return nodes


def _raise_unless_refused(reply: Any) -> None:
    if isinstance(reply, Exception) and type(reply) is not StoreError and not isinstance(reply, PermissionError):
        raise reply


def _durability_of(node: Mapping[str, str]) -> Durability:
    enabled = {"0": "no", "1": "yes"}.get(node.get("aof_enabled", ""), UNKNOWN)
    appendonly = node.get("appendonly", enabled)
    appendfsync = node.get("appendfsync", UNKNOWN)
    policy = node.get("maxmemory-policy", node.get("maxmemory_policy", UNKNOWN))
    lost = "in memory only" if appendonly == "no" else _LOST.get((appendonly, appendfsync), UNKNOWN)
    return Durability(appendonly, appendfsync, lost, policy)


def _strength(durability: Durability) -> tuple[bool, int, int]:
    safe = durability.maxmemory_policy in ("noeviction", UNKNOWN)
    return safe, _WEAKEST.get(durability.appendonly, 3), _WEAKEST.get(durability.appendfsync, 3)


def _foreign_key(keys: Keys) -> Plan[Ask, Replies, str | None]:
    """Return a key under our prefix that Keel cannot have made, if there is one among the first hundred thousand."""
    node = cursor = 0
    for _ in range(SCANNED):
        pattern = f"{_escaped(keys.prefix)}:*"
        [reply] = yield Ask(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), node)
        if reply is None or isinstance(reply, Exception):
            # No more nodes; or SCAN is forbidden, and the scripts themselves refuse what is not a thread.
            return None
        cursor, found = reply
        foreign = next(_foreign(keys, found), None)
        if foreign is not None:
            return foreign
        node, cursor = (node, cursor) if cursor else (node + 1, 0)
    return None


def _foreign(keys: Keys, found: Sequence[bytes]) -> Iterator[str]:
    names = (key.decode(errors="backslashreplace") for key in found)
    return (key for key in names if not keys.is_ours(key))


def _escaped(pattern: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in pattern)
