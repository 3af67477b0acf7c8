"""The audit trail: a tamper-evident chain of approvals and other acts of persons.

Each event is a *link*: a cell whose key is the event's number, with the hash of the previous link. A link is never
replaced. The process that fills the cell owns the number; slower processes take the next number, so no lock is needed.
The details of the event, its *content*, are in a separate cell that belongs to the thread. It is deleted with the
thread, while the chain stays.

The link contains the salted digest of the content, so that a deleted content cannot be guessed. The salt is stored in
the content and deleted with it. A content is written before its link, with its digest as the key. A crash in between
leaves a content without a link, which is deleted with its thread. Two processes may append the same event (`append`,
with a secret). They write the same content; its token contains the number of the last link at that time. Both search
the links after that number before they add one, so there is one link.

The *head* contains number and hash of the last link, so that `append` does not have to walk the chain. It is moved
after each append and may be behind after a crash. It exists before the first link and is never ahead of the last one;
if it is, links were removed. An attacker with write access to the store can still rewrite the whole chain, or remove
contents as if their thread had been deleted. An *anchor*, a `number:hash` that was noted elsewhere, detects a rewritten
chain (`verify`).

The hashes can be computed without Keel:

* `hash` of a link: SHA-256 of the JSON list `[number, previous, at, kind, digest]`, in ASCII, without spaces.
* `digest` of a content: SHA-256 of the salt, followed by the content's JSON text as it is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from hashlib import sha256
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf, check_swapped
from langgraph_keel.engine.plan import Plan, T
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, InvalidInput

LINKS, CONTENTS, HEADS = Shelf(None, "audit"), Shelf(None, "trail"), Shelf(None, "audithead")
HEAD = "head"
"""The key of the only cell of `HEADS`."""
BEGIN = "0" * 64
"""The `previous` hash of the first link."""
START = (0, BEGIN)
"""Number and hash of the end of an empty chain."""

_MOST = 10**15
_HASH = re.compile("[0-9a-f]{64}")

_PAGE = 200
_ANCHOR = re.compile("([0-9]{1,16}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the chain."""

    number: int  # its place, from 1
    previous: str  # the hash of the link before it
    at: str  # ISO time
    kind: str
    digest: str  # of the content
    hash: str  # of all that


def key_of(number: int) -> str:
    """Return the key of a link. Keys sort like numbers."""
    return f"{number:016d}"


def number_in(key: str) -> int:
    """Return the number of the link with this key; 0 if it is not a link's key."""
    return int(key) if key.isdigit() else 0


def sha(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def text_of(content: Mapping[str, Any]) -> str:
    """Return a content as canonical JSON."""
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the content of an audit event cannot be written as JSON: {error}") from error


def next_link(number: int, previous: str, at: str, kind: str, digest: str) -> Link:
    """Return the link after link `number`, whose hash is `previous`."""
    hashed = [number + 1, previous, at, kind, digest]
    return Link(number + 1, previous, at, kind, digest, sha(json.dumps(hashed, separators=(",", ":"))))


def cell_of(codec: Codec, token: str, link: Link) -> Cell:
    """Return the cell of a link, without origin, so that it outlives threads."""
    return Cell(token, header_of(codec, *astuple(link)))


def link_in(codec: Codec, key: str, cell: Cell) -> Link:
    """Return the link in a cell."""
    stored = _values_in(codec, cell, f"event {number_in(key) or key}")
    if [type(part) for part in stored] == [int, str, str, str, str, str]:
        link = Link(*stored)
        hashes = (link.previous, link.digest, link.hash)
        if link.number > 0 and key_of(link.number) == key and all(map(_HASH.fullmatch, hashes)):
            return link
    raise CorruptStore(
        f"event {number_in(key) or key} of the audit trail was changed: its cell does not contain this event"
    )


def content_in(codec: Codec, link: Link, cell: Cell) -> tuple[str, dict[str, Any]]:
    """Return the digest of a content, and the content."""
    what = f"the content of event {link.number}"
    stored = _values_in(codec, cell, what)
    try:
        salt, text = stored
        digest, content = sha(salt + text), json.loads(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStore(f"{what} of the audit trail was changed: it is none") from error
    if not isinstance(content, dict):
        raise CorruptStore(f"{what} of the audit trail was changed: it is none")
    return digest, content


def read_end(codec: Codec, head: Cell, default: T) -> tuple[int, str] | T:
    """Return number and hash in the head; `default` if the head cannot be read."""
    try:
        number, previous = _values_in(codec, head, "the head")
    except (CorruptStore, ValueError):
        return default
    is_one = type(number) is int and 0 <= number < _MOST and type(previous) is str and _HASH.fullmatch(previous)
    return (number, previous) if is_one else default


def header_of(codec: Codec, *values: int | str) -> bytes:
    """Return the header of a cell: one list, which the file backend shows as a list."""
    return codec.encode([list(values)])


def _values_in(codec: Codec, cell: Cell, what: str) -> list[Any]:
    try:
        (values,) = codec.decode(cell.header)
    except Exception as error:  # a user's serializer may raise anything
        raise CorruptStore(f"{what} of the audit trail cannot be read: {error}") from error
    if type(values) is not list:
        raise CorruptStore(f"{what} of the audit trail was changed: it is not a list")
    return values


@publish
@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event of the audit trail.

    Attributes:
        number: Its position in the trail, from 1.
        at: ISO time.
        kind: The kind of event, such as `"pruned"`.
        content: Its details, with the `thread_id`; `None` if they were deleted with the thread.
        hash: Hash of this event and all events before it.
    """

    number: int
    at: str
    kind: str
    content: Mapping[str, Any] | None
    hash: str


@publish
@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of a check of the whole trail.

    Attributes:
        events: Number of events.
        removed: Number of events without content, because their threads were deleted.
        head: `number:hash` of the last readable event. Note it elsewhere, to compare it later.
        problems: Problems found, each with the number of the event.
    """

    events: int
    removed: int
    head: str
    problems: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        """Whether the check found no problems."""
        return not self.problems


# -- appending ---------------------------------------------------------------------------------------------------------


def is_name(by: object) -> bool:
    """Return whether a text can name a person. `keel:` marks Keel's own names."""
    return isinstance(by, str) and bool(by.strip()) and not by.startswith("keel:")


def check_by(by: object) -> None:
    """Check the optional name of the person who acts."""
    if by is not None and not is_name(by):
        raise InvalidInput(f"by must name the person who acts, as authenticated by your program, not {by!r:.100}")


def append_act(session: Session, thread_id: str, kind: str, by: str | None, **about: Any) -> Plan[None]:
    """Append a person's action, without details that are `None`. Trips as `append`."""
    told = {name: value for name, value in {"by": by, **about}.items() if value is not None}
    yield from append(session, thread_id, session.now, kind, told)


def was_appended(session: Session, thread_id: str, content: Mapping[str, Any], secret: str) -> Plan[bool]:
    """Return whether an event was appended, at least its content. One trip.

    For the arguments see `append`.
    """
    _, digest = _text_and_digest(thread_id, content, secret)
    return bool((yield from session.store.read_cells(CONTENTS, [digest])))


def _text_and_digest(thread_id: str, content: Mapping[str, Any], salt: str) -> tuple[str, str]:
    text = text_of({**content, "thread_id": thread_id})
    return text, sha(salt + text)


def append_deletion(session: Session, thread_id: str, by: str) -> Plan[None]:
    """Append the deletion of a thread, with a hash of its id instead of the thread."""
    yield from append_act(session, "", "deleted", by, thread=sha(thread_id))


def append(
    session: Session, thread_id: str, at: str, kind: str, content: Mapping[str, Any], secret: str | None = None
) -> Plan[int]:
    """Append an event; return its number.

    Four trips, one more for the first event of a store, and two for each faster concurrent writer. Appending again
    after a crash or a lost reply adds a second event, unless both calls pass the same `secret`.
    """
    salt = secret or session.new_token()
    text, digest = _text_and_digest(thread_id, content, salt)
    head = yield from _ensure_head(session)
    end = read_end(session.codec, head, START)
    # The token starts with the number of the last link at this time: a search for the content's link starts there.
    new_token = f"{end[0]:016d}{session.new_token()[:16]}"
    new = Cell(new_token, header_of(session.codec, salt, text), origin=thread_id)
    written = yield from session.store.swap_cell(CONTENTS, digest, None, new)
    token, number = session.new_token(), None
    if written.cell is not None:  # another writer of the same event was faster
        known = written.cell.token
        after = int(known[:16]) if len(known) == 32 and known[:16].isdecimal() else 0
        number, end = yield from _search(session, digest, after, end)
    while number is None:
        # Of a `StrEnum` member only the text: it would be revived as another type, which is not a valid link.
        link = next_link(*end, str(at), str(kind), digest)
        cell = cell_of(session.codec, token, link)
        if (yield from session.store.swap_cell(LINKS, key_of(link.number), None, cell)).done:
            number, end = link.number, (link.number, link.hash)
        else:
            number, end = yield from _search(session, digest, end[0], end)
            if number is None and end[0] < link.number:
                raise CorruptStore(f"link {link.number} of the audit trail exists but is missing from listings")
    yield from _move_head(session, head, end, session.new_token())
    return number


def _ensure_head(session: Session) -> Plan[Cell]:
    cells = yield from session.store.read_cells(HEADS, [HEAD])
    if HEAD in cells:
        return cells[HEAD]
    first = Cell(session.new_token(), header_of(session.codec, *START))
    swapped = yield from session.store.swap_cell(HEADS, HEAD, None, first)
    return swapped.cell or first


def _search(
    session: Session, digest: str, after: int, end: tuple[int, str]
) -> Plan[tuple[int | None, tuple[int, str]]]:
    """Search for the link of a content after a number. One trip per 200 links."""
    while True:
        page = yield from _read_page(session.store, key_of(after), _PAGE)
        for key, cell in page[:-1]:
            with suppress(CorruptStore):  # a link that cannot be read is reported by `verify`
                if link_in(session.codec, key, cell).digest == digest:
                    return number_in(key), end
        if page:
            last = link_in(session.codec, *page[-1])
            after, end = last.number, max(end, (last.number, last.hash))
            if last.digest == digest:
                return last.number, end
        if len(page) < _PAGE:
            return None, end


def _move_head(session: Session, head: Cell | None, end: tuple[int, str], token: str) -> Plan[None]:
    """Move the head to a link, unless another process has moved it further."""
    new = Cell(token, header_of(session.codec, *end))
    while head is None or read_end(session.codec, head, START)[0] < end[0]:
        stood = head.token if head else None
        swapped = yield from session.store.swap_cell(HEADS, HEAD, stood, new)
        if check_swapped(stood, swapped, "the head of the audit trail").done:
            return
        head = swapped.cell


# -- reading -----------------------------------------------------------------------------------------------------------


def read_events(session: Session, after: int = 0, limit: int = 200) -> Plan[Sequence[AuditEvent]]:
    """Read a page of the trail, oldest first. Two trips."""
    if after < 0 or limit < 1:
        raise InvalidInput(f"after must be 0 or an event's number, and limit at least 1, not {after!r} and {limit!r}")
    page = yield from _read_page(session.store, key_of(after), limit)
    links = [link_in(session.codec, key, cell) for key, cell in page]
    contents = yield from _read_contents(session.store, links)
    events = []
    for link in links:
        cell = contents.get(link.digest)
        content = None if cell is None else content_in(session.codec, link, cell)[1]
        events.append(AuditEvent(link.number, link.at, link.kind, content, link.hash))
    return events


def _read_page(store: Store[Any, Any], after: str | None, limit: int) -> Plan[Sequence[tuple[str, Cell]]]:
    """Read a page of links as one snapshot. One trip, or two if links seem missing."""
    page = yield from store.list_cells(LINKS, "", after, limit)
    keys, number = [key for key, _ in page], number_in(after or "")
    if not keys or keys == [key_of(number + nth) for nth in range(1, len(keys) + 1)]:
        return page
    # Listing a directory is not atomic: it may contain a new link but not the one written just before. All links before
    # a listed one exist by now, unless they were removed.
    page = yield from store.list_cells(LINKS, "", after, limit)
    return [(key, cell) for key, cell in page if key <= keys[-1]]


def _read_contents(store: Store[Any, Any], links: Sequence[Link]) -> Plan[Mapping[str, Cell]]:
    if not links:
        return {}
    return (yield from store.read_cells(CONTENTS, {link.digest for link in links}))


# -- checking ----------------------------------------------------------------------------------------------------------


def verify(
    session: Session, expected: str | None = None, progress: Callable[[int, int], None] | None = None
) -> Plan[AuditVerdict]:
    """Check that every event exists, is unchanged and follows the previous one.

    One trip for the head, and two per 200 events. Events may be appended concurrently.
    """
    anchor = None
    if expected is not None:
        found = _ANCHOR.fullmatch(expected)
        if not found:
            raise InvalidInput(f"an event is named by its number and hash, as in 17:3f…, not {expected!r:.100}")
        anchor = int(found[1]), found[2]
    walk = _Walk(session.codec)
    try:
        cells = yield from session.store.read_cells(HEADS, [HEAD])  # before the links, which can only become more
        end = read_end(session.codec, cells[HEAD], None) if HEAD in cells else None
        walk.notes = {number for number, _ in filter(None, (end, anchor))}
        yield from _walk_links(session.store, walk, end[0] if end else 0, progress or (lambda events, total: None))
        if end:
            walk.check_end("the head", *end)
        elif HEAD in cells:
            walk.say("the head cannot be read: it was changed")
        elif walk.events and HEAD not in (yield from session.store.read_cells(HEADS, [HEAD])):  # was the trail new?
            walk.say("the head is missing: it was removed, perhaps with the events at the end")
        if anchor:
            walk.check_end("the expected head", *anchor)
    except CorruptStore as error:  # a damaged file makes the whole page fail
        walk.say(f"the check is incomplete after event {walk.number}: {error}")
    return AuditVerdict(walk.events, walk.removed, walk.head, tuple(walk.problems))


def _walk_links(store: Store[Any, Any], walk: _Walk, end: int, progress: Callable[[int, int], None]) -> Plan[None]:
    after: str | None = None
    while True:
        page = yield from _read_page(store, after, _PAGE)
        links = [link for key, cell in page if (link := walk.read_link(key, cell))]
        contents = yield from _read_contents(store, links)
        for link in links:
            walk.check_content(link, contents.get(link.digest))
        progress(walk.events, max(walk.events, end))
        if len(page) < _PAGE:
            return
        after = page[-1][0]


@dataclass(slots=True)
class _Walk:
    """A walk along the chain."""

    codec: Codec
    number: int = 0  # of the last link seen
    hash: str | None = BEGIN  # of the last link seen; `None` if it could not be read
    head: str = f"0:{BEGIN}"  # number and hash of the last link that could be read
    events: int = 0
    removed: int = 0
    problems: list[str] = field(default_factory=list)
    notes: set[int] = field(default_factory=set)  # the numbers whose hashes are kept in `kept`
    kept: dict[int, str] = field(default_factory=lambda: {0: BEGIN})

    def say(self, problem: str) -> None:
        self.problems.append(problem)

    def read_link(self, key: str, cell: Cell) -> Link | None:
        """Continue with the next cell; return its link, if it can be read."""
        self.events += 1
        try:
            link = link_in(self.codec, key, cell)
        except CorruptStore as error:
            self.say(str(error))
            self.number, self.hash = number_in(key) or self.number, None
            return None
        self._check_place(link)
        if link != next_link(link.number - 1, link.previous, link.at, link.kind, link.digest):
            self.say(f"event {link.number} was changed: its hash does not match it")
        if (cell.origin, cell.expires_at) != ("", None):
            self.say(f"event {link.number} was changed: it would be deleted with a thread, or expire")
        self.number, self.hash, self.head = link.number, link.hash, f"{link.number}:{link.hash}"
        self.kept.update({link.number: link.hash} if link.number in self.notes else {})
        return link

    def _check_place(self, link: Link) -> None:
        first, last = self.number + 1, link.number - 1
        if first <= last:
            self.say(f"event {first} is missing" if first == last else f"events {first} to {last} are missing")
        elif self.hash not in (None, link.previous):
            self.say(f"event {link.number} does not follow event {self.number}: one of them was replaced")

    def check_content(self, link: Link, cell: Cell | None) -> None:
        if cell is None:
            self.removed += 1
            return
        try:
            digest, content = content_in(self.codec, link, cell)
        except CorruptStore as error:
            self.say(str(error))
            return
        if digest != link.digest:
            self.say(f"event {link.number}: its content was changed")
        elif (cell.origin, cell.expires_at) != (content.get("thread_id"), None):
            self.say(f"event {link.number}: its content was changed: it would not be deleted with its own thread")

    def check_end(self, what: str, number: int, expected: str) -> None:
        if number > self.number:
            self.say(f"event {number} is gone: {what} names it, but the last one is {self.number}")
        elif self.kept.get(number) != expected:
            self.say(f"event {number} is not the one that {what} names: it was replaced")
