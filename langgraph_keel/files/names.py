"""Thread ids as names of directories: reversible, and safe on every file system.

A name is made of `a-z 0-9 . _ + % -` only: an upper-case letter is a `+` and the lower-case one, any other character
that is not in this list, and `+` and `%`, is `%xx` for each byte of its UTF-8. So no two ids meet in one directory
where case or Unicode normalization do not count, and no id names a directory outside of the root. A name neither begins
nor ends with a dot (Windows drops the last one, and what begins with one is no thread), and is none that Windows keeps
for devices: the character that would make it so is escaped. The empty id is `%`.

A name longer than 200 characters (file systems take 255 bytes) is cut: its first 150 characters, less an escape that
would be cut in two, then `%%`, which stands nowhere else, and 40 digits of the id's SHA-256.
"""

from __future__ import annotations

import re
from hashlib import sha256

from langgraph_keel.errors import CorruptStore, InvalidInput

LONGEST = 200
KEPT = 150
DIGITS = 40

_EMPTY = "%"
_CUT = "%%"
_OTHER = re.compile(r"[^a-z0-9._-]")
# The dots at either end, and the first letter of a device's name, which is one before a dot, too.
_MISREAD = re.compile(r"^\.|\.$|^(con|prn|aux|nul|com[0-9]|lpt[0-9])(?=\.|$)")
_HALF_ESCAPE = re.compile(r"(%.?|\+)$")
_ESCAPES = re.compile(r"\+([a-z])|((?:%[0-9a-f]{2})+)")
_LONG = re.compile(rf"(?!\.)((?:[a-z0-9._-]|\+[a-z]|%[0-9a-f]{{2}})+){_CUT}[0-9a-f]{{{DIGITS}}}")


class Directory(str):
    """The name of a directory, in the place of the long id of a thread, where nothing is left that says it."""

    __slots__ = ()


def directory_of(thread_id: str) -> str:
    """Return the name of a thread's directory.

    Raises:
        InvalidInput: The id has no UTF-8 (it holds half of a surrogate pair).
    """
    if isinstance(thread_id, Directory):
        return str(thread_id)
    try:
        name = _MISREAD.sub(_first_escaped, _OTHER.sub(_escaped, thread_id)) or _EMPTY
    except UnicodeEncodeError as error:
        raise InvalidInput(f"thread_id {thread_id!r:.80} cannot be written as UTF-8") from error
    if len(name) <= LONGEST:
        return name
    return _HALF_ESCAPE.sub("", name[:KEPT]) + _CUT + sha256(thread_id.encode()).hexdigest()[:DIGITS]


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if "A" <= character <= "Z":
        return "+" + character.lower()
    return "".join(f"%{byte:02x}" for byte in character.encode())


def _first_escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0][0]):02x}{found[0][1:]}"


def thread_of(directory: str) -> str | None:
    """Return the id of the thread in a directory of this name; `None` for a long name: the log's first line tells it.

    Raises:
        CorruptStore: No thread has such a directory: `directory_of` never gives this name.
    """
    if _is_long(directory):
        return None
    try:
        thread_id = "" if directory == _EMPTY else _ESCAPES.sub(_unescaped, directory)
        # There is one way only to write an id: anything else would be a second directory of the same thread.
        if directory_of(thread_id) == directory:
            return thread_id
    except (UnicodeDecodeError, InvalidInput):
        pass
    raise CorruptStore(f"the directory {directory!r:.300} is no thread's: no thread id has this name")


def _is_long(directory: str) -> bool:
    found = _LONG.fullmatch(directory)
    return found is not None and KEPT - 2 <= len(found[1]) <= KEPT


def _unescaped(found: re.Match[str]) -> str:
    return found[1].upper() if found[1] else bytes.fromhex(found[2].replace("%", "")).decode()
