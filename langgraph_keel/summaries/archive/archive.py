"""The archive of a thread: reads, searches, restores and shows removed messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from langgraph_keel._langgraph import NS_END
from langgraph_keel.display.html import FAINT, PAGE, SMALL, cell, chip, code, folded, head, pre, table, tag, text
from langgraph_keel.display.messages import LONGEST, message_text
from langgraph_keel.display.text import count_of, cut, format_size, one_line, plain
from langgraph_keel.engine.config import address_of
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import checked_limit
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import CheckpointConflict, InvalidInput, NotFound
from langgraph_keel.summaries.archive import restore as restoring
from langgraph_keel.summaries.archive import storage as archives
from langgraph_keel.summaries.archive.parts import ID, Archived, keys_of
from langgraph_keel.summaries.archive.references import FoundMessage, Part, Which, holder_of, id_in, part_in
from langgraph_keel.summaries.archive.restore import Restored, Restoring, Summaries, choices

SHORT = 12
"""Displayed digits of an id."""
LONG = 96
"""Displayed characters of a summary."""
MOST = 12
"""Number of displayed parts, the newest ones."""
_NAMES = ("part", "when", "messages", "removed by", "summary")
_COLOURS = {"summary": ("47,159,79", ".22"), "window": ("47,159,179", ".20"), "rule": ("127,127,127", ".18")}


def taken_by(entry: Archived) -> str:
    """Return the model, node and step of a removal."""
    step = "" if entry.step is None else f"step {entry.step}"
    node = " › ".join(filter(None, (entry.checkpoint_ns.partition(NS_END)[0], entry.node)))
    return ", ".join(filter(None, (entry.model, node, step)))


def time_text(entry: Archived) -> str:
    """Return the time when a part was archived."""
    return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC"


def size_text(entry: Archived) -> str:
    """Return the number of messages and the size of a part."""
    return f"{entry.count:,} · {format_size(entry.bytes)}"


def total(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return the counts and size of an archive, on one line."""
    if not entries:
        return f"the archive of thread {one_line(thread_id)} is empty"
    parts = count_of(len(entries), "part")
    count, nbytes = sum(entry.count for entry in entries), sum(entry.bytes for entry in entries)
    return f"archive of thread {one_line(thread_id)}: {parts}, {count_of(count, 'message')}, {format_size(nbytes)}"


def as_text(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return an archive as plain text, one line for each part."""
    rows = []
    for e in entries[-MOST:]:
        by = one_line(f"{e.by} {taken_by(e)}".strip()) + (" (pinned)" if e.pinned else "")
        rows.append((e.id[:SHORT], time_text(e), size_text(e), by, one_line(e.summary or "", LONG)))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = ["  ".join((*map(str.ljust, row, widths), row[4])).rstrip() for row in rows]
    return "\n".join([total(thread_id, entries), *(f"  {line}" for line in [*_older(entries), *lines])])


def _older(entries: Sequence[Archived]) -> Iterator[str]:
    if len(entries) > MOST:
        yield f"… {len(entries) - MOST:,} older parts: see entries()"


def as_html(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return an archive as HTML. A click expands a long summary."""
    title = tag("div", text(total(thread_id, entries)), style="" if entries else FAINT)
    if not entries:
        return title
    older = [tag("div", text(line), style=FAINT) for line in _older(entries)]
    return tag("div", title, *older, table(head(_NAMES), tag("tbody", *map(_row, entries[-MOST:]))), style=PAGE)


def _row(entry: Archived) -> str:
    pinned = [" " + chip("pinned", "222,170,0", ".30")] if entry.pinned else []
    summary = entry.summary or ""
    line = one_line(summary, LONG)
    shown = text(line) if line == plain(summary) else folded(text(line), pre(cut(summary, LONGEST)))
    return tag(
        "tr",
        cell(code(entry.id[:SHORT], "", entry.id), *pinned, style="white-space:nowrap"),
        cell(text(time_text(entry)), style=f"{SMALL};white-space:nowrap"),
        cell(text(size_text(entry)), style="white-space:nowrap"),
        cell(
            chip(entry.by, *_COLOURS.get(entry.by, _COLOURS["rule"])),
            tag("span", text(one_line(taken_by(entry))), style=SMALL),
        ),
        cell(shown, style="width:40%;overflow-wrap:anywhere"),
    )


@publish
class Archive(Sequence[Archived]):
    """The archived parts of a thread, oldest first.

    Access parts by position (`archive[0]`) or id (`archive["1f…"]`).

    Parts are read on demand, and again at each access. To use them repeatedly, call `entries()` once; `list(archive)`
    reads them twice, because it asks for the length first. Indexing and iterating block. In an asynchronous program,
    use the methods that begin with `a`.
    """

    def __init__(self, engine: Engine, thread_id: str) -> None:
        self.engine = engine
        self.thread_id = thread_id

    # -- reading -----------------------------------------------------------------------------------------------

    def _entries(self) -> Plan[list[Archived]]:
        """Return the archived parts, without their messages. One round trip for each 500.

        Raises:
            CorruptStore: If a part does not decode.
        """
        return archives.read_archived(self.engine.session, self.thread_id)

    entries, aentries = faces(_entries)

    def __iter__(self) -> Iterator[Archived]:
        return iter(self.entries())

    def __reversed__(self) -> Iterator[Archived]:
        return reversed(self.entries())

    def __len__(self) -> int:
        return len(self.entries())

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a part. Reads the parts once.

        Raises:
            ValueError: If the part is not in the archive.
        """
        entries = self.entries()
        return entries.index(value, start, len(entries) if stop is None else stop)

    @overload
    def __getitem__(self, which: int | Part) -> Archived: ...

    @overload
    def __getitem__(self, which: slice) -> list[Archived]: ...

    def __getitem__(self, which: int | Part | slice) -> Archived | list[Archived]:
        """Return a part by position or id, or several by a slice."""
        return self.entries()[which] if isinstance(which, int | slice) else part_in(self.entries(), which)

    def _messages(self, which: Part | None = None, *, step: int | None = None) -> Plan[list[BaseMessage]]:
        """Return archived messages in order of removal, each id once, in its last version.

        The archive contains messages removed on every branch of the thread, including branches left by a rewind.

        Args:
            which: A part, its position, its id, or at least the first six digits of the id; default: all parts. For all
                parts, summaries of others are omitted.
            step: Return only messages removed in this step.

        Raises:
            NotFound: If there is no such part.
            InvalidInput: If `which` is ambiguous, or does not name a part.
            CorruptStore: If stored bytes are damaged.
            RefusedType: If a message contains a type that may not be revived here.
        """
        if not isinstance(step, int | None):
            raise InvalidInput(f"step must be None or a whole number: {step!r:.40}")
        if which is not None and step is None:
            part = yield from self._name(which)
            return (yield from archives.read_messages(self.engine.session, self.thread_id, part))
        every = yield from self._entries()
        named = every if which is None else [part_in(every, which)]
        chosen = [entry for entry in named if step is None or entry.step == step]
        read = yield from self._read(chosen)
        known = restoring.messages_of(chosen, read)
        summaries = Summaries(chosen, known)
        return [message for key, message in known.items() if key not in summaries]

    messages, amessages = faces(_messages)

    def _name(self, which: Part) -> Plan[str]:
        """Return the full id of a part. No trip for a full id."""
        name = "" if type(which) is int else id_in(which)
        return name if ID.fullmatch(name) else part_in((yield from self._entries()), name or which).id

    def _read(self, entries: Sequence[Archived]) -> Plan[dict[str, list[BaseMessage]]]:
        return archives.read_parts(self.engine.session, self.thread_id, entries)

    def _message(self, message_id: str) -> Plan[BaseMessage]:
        """Return an archived message, in its last version.

        Raises:
            NotFound: If the archive has no message with this id.
            InvalidInput: If `message_id` is not a string.
        """
        if not isinstance(message_id, str):
            raise InvalidInput(f"the id of a message must be a str, not a {type(message_id).__name__}")
        held = holder_of((yield from self._entries()), message_id)
        if held is None:
            raise NotFound(f"the archive of thread {self.thread_id!r} has no message {message_id!r:.60}")
        entry, place = held
        return (yield from archives.read_messages(self.engine.session, self.thread_id, entry.id))[place]

    message, amessage = faces(_message)

    def _search(self, text: str, limit: int | None = None, *, semantic: Any = None) -> Plan[list[FoundMessage]]:
        """Return archived messages that contain `text`, ignoring case, oldest part first.

        Searches every branch of the thread, as `messages`.

        Args:
            text: The text to search for.
            limit: Maximum number of messages.
            semantic: An embedding, as in `index={"embed": ...}` of a store: LangChain's `Embeddings`, a function, or
                the name of a model. Messages are then found by meaning, closest first, each with its `score`. The
                search embeds the messages; the process caches 10,000 vectors. Needs NumPy.

        Raises:
            InvalidInput: If `text` is not a string, `limit` is negative, or `semantic` cannot embed texts.
            CorruptStore: If stored bytes are damaged.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"the searched text must be a str, not a {type(text).__name__}")
        limit, wanted = checked_limit(limit), text.casefold()
        entries = yield from self._entries()
        found: list[FoundMessage] = []
        if semantic is not None:
            return (yield from self._search_by_meaning(entries, text, limit, semantic))
        for page in archives.pages_of(entries):
            read = yield from self._read(page)
            found += [hit for entry in page for hit in _hits(entry, read.get(entry.id, ()), wanted)]
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]

    search, asearch = faces(_search)

    def _search_by_meaning(
        self, entries: Sequence[Archived], text: str, limit: int | None, semantic: Any
    ) -> Plan[list[FoundMessage]]:
        from langgraph_keel.embedding import best_of, cosines, embedder_of  # needs NumPy

        embedder, found = embedder_of(semantic), list[FoundMessage]()
        (query,) = (yield from embedder.embed([text], is_query=True)).values()
        for page in archives.pages_of(entries):
            read = yield from self._read(page)
            hits = [hit for entry in page for hit in _hits(entry, read.get(entry.id, ()), "")]
            texts = [_text_of(hit.message) for hit in hits]
            vectors = yield from embedder.embed([each for each in texts if each.strip()])
            said = [(hit, vectors[each]) for hit, each in zip(hits, texts, strict=True) if each in vectors]
            if said:
                scores = cosines([vector for _, vector in said], query)
                found += [replace(hit, score=float(score)) for (hit, _), score in zip(said, scores, strict=True)]
        best = best_of([hit.score or 0 for hit in found], len(found) if limit is None else limit)
        return [found[place] for place in best]

    # -- restoring --------------------------------------------------------------------------------------------

    def _restore(
        self,
        graph: Any,
        which: Which | Iterable[Which] | None = None,
        *,
        config: RunnableConfig | None = None,
        as_node: str | None = None,
    ) -> Plan[Restored]:
        """Restore messages to a graph's state, in order of removal, by its `update_state`.

        They follow their summary, or without one in the list, the system messages at its beginning. Results of tools
        follow their calls. A summary is removed when all its messages are in the state again; if it stays and shares
        its id with a restored message, it gets a new id. The archive is not changed. Concurrent additions to the state
        stay.

        Messages removed on another branch of the thread, such as one left by a rewind, are not restored. The branch may
        be unknown because checkpoints were pruned or never stored (`durability="exit"`). Then a summarized part is
        omitted if the state has summaries but none includes it; all other parts count as removed on this branch.

        Args:
            graph: The graph, compiled with this saver.
            which: A part, its position, a message, the id of either, or several of these; default: everything of the
                root graph.
            config: A config for more than the thread, such as the `checkpoint_ns` of a stateful subgraph.
            as_node: The node to which the update is attributed, as in LangGraph's `update_state`.

        Returns:
            The restored messages, and the removed summaries.

        Raises:
            NotFound: If the archive has no such part or message, if it contains only messages of subgraphs, which
                `config` must name, or if the thread has no checkpoint.
            InvalidInput: If the thread waits for an answer, which an update would drop; if the graph's state has no
                such list, its saver uses another store, or `config` names another thread; or if `which` was removed on
                another branch. Nothing was changed.
            CheckpointConflict: If another writer was faster, ten times.
        """
        entries = yield from self._entries()
        work = Restoring(graph, self.thread_id, config, entries, choices(entries, which, config))
        while True:
            try:
                snapshot = yield Call(partial(graph.get_state, work.config), partial(graph.aget_state, work.config))
                way, beside = yield from archives.find_way(self.engine.session, address_of(snapshot.config))
                chosen = work.choose_for(snapshot, way, beside)
                parts = [part for choice in chosen for part in choice.entries if choice.keys & set(keys_of(part))]
                new = work.update(snapshot, chosen, (yield from self._read(parts)))
                if not new:
                    return work.outcome()
                change = {"config": work.in_name_of(snapshot), "values": new, "as_node": as_node}
                update, aupdate = work.graph.update_state, work.graph.aupdate_state
                work.go_on_from((yield Call(partial(update, **change), partial(aupdate, **change))))
            except CheckpointConflict as error:
                work.count_conflict(error)

    restore, arestore = faces(_restore)

    # -- keeping -----------------------------------------------------------------------------------------------

    def _pin(self, which: Part) -> Plan[Archived]:
        """Mark a part for keeping; return the changed part.

        The mark is for people and programs. Keel removes parts only by `remove`, and with their thread (a delete, an
        erasure, a `ttl`), pinned or not.

        Raises:
            NotFound: If there is no such part.
        """
        return self._mark(which, True)

    pin, apin = faces(_pin)

    def _unpin(self, which: Part) -> Plan[Archived]:
        """Remove the mark of `pin`; return the changed part.

        Raises:
            NotFound: If there is no such part.
        """
        return self._mark(which, False)

    unpin, aunpin = faces(_unpin)

    def _mark(self, which: Part, pinned: bool) -> Plan[Archived]:
        part = yield from self._name(which)
        return (yield from archives.pin(self.engine.session, self.thread_id, part, pinned))

    def _remove(self, which: Part) -> Plan[None]:
        """Remove a part permanently, pinned or not. Only its summary remains.

        Raises:
            NotFound: If there is no such part.
        """
        part = yield from self._name(which)
        yield from archives.remove_archived(self.engine.session, self.thread_id, part)

    remove, aremove = faces(_remove)

    # -- display -----------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """Return the parts as a plain text table."""
        return as_text(self.thread_id, self.entries())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self.thread_id, self.entries())


def _text_of(message: BaseMessage) -> str:
    return str(message.text) if isinstance(message, BaseMessage) else message_text(message)


def _hits(entry: Archived, messages: Sequence[BaseMessage], wanted: str) -> Iterator[FoundMessage]:
    for index, message in enumerate(messages):
        if wanted in _text_of(message).casefold():
            yield FoundMessage(entry, index, message)
