"""Master keys: loading them, and wrapping the keys of the store and of tenants.

A master key wraps only those keys. So `rotate` rewrites a few small records, and a key management service is called
once for each tenant and process.
"""

from __future__ import annotations

import os
import re
import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping
from os import PathLike
from secrets import token_bytes
from typing import Protocol, runtime_checkable

from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, KeyMissing
from langgraph_keel.keys.sealing import KEY_BYTES, Sealer

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@publish
@runtime_checkable
class MasterKey(Protocol):
    """A key that wraps other keys: local (`LocalKey`), or in a key management service."""

    @property
    def id(self) -> str:
        """Its name, stored with each wrapped key: 1 to 64 letters, digits, `.`, `_`, `-`."""

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Encrypt a 32-byte key, so that only `unwrap` with the same context recovers it."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the key that was passed to `wrap`. Any exception counts as a failure."""


@publish
class LocalKey:
    """A master key held by this process, for AES-256-GCM.

    Args:
        id: Its name.
        secret: 32 random bytes.

    Raises:
        InvalidInput: If an argument is invalid. The error never shows the secret.
    """

    __slots__ = ("_id", "_sealer")

    def __init__(self, id: str, secret: bytes) -> None:
        self._id = check_id(id)
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            size = f"{len(secret)} bytes" if isinstance(secret, bytes) else f"a {type(secret).__name__}"
            raise InvalidInput(f"the secret of key {id!r} must be {KEY_BYTES} bytes, not {size}: see `keel keys new`")
        if len(set(secret)) < 4:
            raise InvalidInput(f"the secret of key {id!r} is not random: `keel keys new` makes one")
        self._sealer = Sealer(secret)

    @property
    def id(self) -> str:
        """Its name."""
        return self._id

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """See `MasterKey.wrap`."""
        return self._sealer.seal(key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """See `MasterKey.unwrap`."""
        return self._sealer.open(wrapped, context)

    def __repr__(self) -> str:
        """Show its name, never the secret."""
        return f"<LocalKey {self._id}>"


@publish
class Keyring:
    """The master keys of a saver: the first wraps, and all unwrap.

    Args:
        keys: The keys, the current one first.
        migrate: Whether to read plain text until `saver.keys.migrate()` has sealed all of it. New records are always
            sealed.
        refresh: Seconds for which a saver seals with the keys it knows. Then it checks, with one round trip, whether
            `saver.keys.renew()` has made new ones.
        hide_names: Whether to hide the names of channels, namespaces and tasks, too. This is fixed by the first write
            to a store, and a keyring that contradicts the store is refused. `None` adapts to the store, and does not
            hide names in a new one.

    Raises:
        InvalidInput: If there is no key, two keys have the same name, or an option has a wrong type or value; or if
            `hide_names` is combined with `migrate`, as plain-text records have their names in the clear.
    """

    __slots__ = ("_hide_names", "_keys", "_migrate", "_refresh")

    def __init__(
        self, *keys: MasterKey, migrate: bool = False, refresh: float = 60, hide_names: bool | None = False
    ) -> None:
        if type(migrate) is not bool:
            raise InvalidInput(f"migrate must be True or False, not a {type(migrate).__name__}")
        if type(refresh) not in (int, float) or not refresh >= 0:
            raise InvalidInput(f"refresh must be a number of seconds, 0 or more, not {refresh!r:.80}")
        if hide_names not in (True, False, None) or type(hide_names) is int:
            raise InvalidInput(f"hide_names must be True, False or None, not {hide_names!r:.80}")
        if hide_names and migrate:
            raise InvalidInput(
                "migrate=True and hide_names=True cannot be combined: a migration seals records in place, under their "
                "names. Copy them into a new store instead"
            )
        self._migrate = migrate
        self._refresh = refresh
        self._hide_names = hide_names
        if not keys or not all(isinstance(key, MasterKey) for key in keys):
            raise InvalidInput("a Keyring takes keys, the current one first: Keyring(LocalKey(id, secret), ...)")
        self._keys: Mapping[str, MasterKey] = {check_id(key.id): key for key in keys}
        if len(self._keys) != len(keys):
            raise InvalidInput(f"two keys of a keyring have the same name: {', '.join(key.id for key in keys)}")

    @property
    def migrate(self) -> bool:
        """Whether plain text is read until a migration has ended."""
        return self._migrate

    @property
    def refresh(self) -> float:
        """Seconds for which a saver uses known keys before it looks for new ones."""
        return self._refresh

    @property
    def hide_names(self) -> bool | None:
        """Whether names are hidden; `None` if this depends on the store."""
        return self._hide_names

    @property
    def current(self) -> MasterKey:
        """The key that wraps new keys."""
        return next(iter(self._keys.values()))

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of all keys, the current one first."""
        return tuple(self._keys)

    def get(self, id: str) -> MasterKey:
        """Return a key by its name.

        Raises:
            KeyMissing: If the keyring does not contain it.
        """
        if id not in self._keys:
            raise KeyMissing(
                f"the store needs the master key {id!r}, which the keyring lacks (it has {', '.join(self._keys)}): "
                "add that key after the current one"
            )
        return self._keys[id]

    @classmethod
    def from_env(
        cls,
        name: str = "KEEL_KEYS",
        *,
        migrate: bool = False,
        refresh: float = 60,
        hide_names: bool | None = False,
    ) -> Keyring:
        """Return the keyring in an environment variable.

        The variable contains keys as `id:secret`, separated by commas or white space.

        Args:
            name: The variable's name.
            migrate: As for `Keyring`.
            refresh: As for `Keyring`.
            hide_names: As for `Keyring`.

        Raises:
            InvalidInput: If the variable is not set or does not contain keys. The error does not show its content.
        """
        if not (text := os.environ.get(name, "").strip()):
            raise InvalidInput(f"the environment variable {name} is not set: set it to the output of `keel keys new`")
        return cls(*parse_keys(text, f"the variable {name}"), migrate=migrate, refresh=refresh, hide_names=hide_names)

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        *,
        migrate: bool = False,
        refresh: float = 60,
        hide_names: bool | None = False,
    ) -> Keyring:
        """Return the keyring in a file, in the format of `from_env`.

        Lines that begin with `#` are comments.

        Args:
            path: The file.
            migrate: As for `Keyring`.
            refresh: As for `Keyring`.
            hide_names: As for `Keyring`.

        Raises:
            InvalidInput: If the file cannot be read, contains no keys, or is accessible to users other than its owner.
        """
        try:
            with open(path, encoding="utf-8") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if os.name == "posix" and mode & 0o077:
                    raise InvalidInput(
                        f"the key file {os.fspath(path)!r} may be read or changed by other users than its owner (mode "
                        f"{mode:04o}): chmod 600 it, and consider whether another user has read the keys"
                    )
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a text file"
            raise InvalidInput(f"the key file {os.fspath(path)!r} cannot be read: {why}") from None
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        keys = parse_keys(text, f"the key file {os.fspath(path)!r}")
        return cls(*keys, migrate=migrate, refresh=refresh, hide_names=hide_names)

    def __repr__(self) -> str:
        """Show the names of the keys, never the secrets."""
        return f"<Keyring {', '.join(self._keys)}>"


def parse_keys(text: str, where: str) -> list[LocalKey]:
    """Return the keys in a text."""
    parts = [part for part in re.split(r"[\s,]+", text) if part]
    if not parts:
        raise InvalidInput(f"{where} contains no key: `keel keys new` prints one")
    keys = []
    for nth, part in enumerate(parts, 1):
        id, colon, secret = part.partition(":")
        try:
            decoded = b64decode(secret, validate=True)
        except ValueError:
            decoded = b""
        if not colon or not _ID.fullmatch(id) or len(decoded) != KEY_BYTES:
            raise InvalidInput(
                f"key {nth} of {where} is not valid: the format is id:secret, with a secret of {KEY_BYTES} bytes in "
                "base64, which is 44 characters. Was it truncated?"
            )
        keys.append(LocalKey(id, decoded))
    return keys


def new_key(id: str) -> str:
    """Return a new key in the format of `Keyring.from_env` and `from_file`."""
    return f"{check_id(id)}:{b64encode(token_bytes(KEY_BYTES)).decode()}"


def check_id(id: object) -> str:
    """Return a master key's name if it is valid."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidInput(f"{id!r:.80} cannot name a key: use 1 to 64 letters, digits, '.', '_' and '-'")
    return id
