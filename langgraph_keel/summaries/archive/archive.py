"""The archive of a thread: the messages that were removed, to be read, searched, and put back; as text and HTML."""

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
"""Digits of an id that are shown."""
LONG = 96
"""Characters of a summary that stand on its line."""
MOST = 12
"""Parts that are shown, the newest."""
_NAMES = ("part", "when", "messages", "taken out by", "what stands for them now")
_COLOURS = {"summary": ("47,159,79", ".22"), "window": ("47,159,179", ".20"), "rule": ("127,127,127", ".18")}


def taken_by(entry: Archived) -> str:
    """Return who took a part out, and where."""
    step = "" if entry.step is None else f"step {entry.step}"
    node = " › ".join(filter(None, (entry.checkpoint_ns.partition(NS_END)[0], entry.node)))
    return ", ".join(filter(None, (entry.model, node, step)))


def time_text(entry: Archived) -> str:
    """Return when a part was archived."""
    return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC"


def size_text(entry: Archived) -> str:
    """Return how much a part holds."""
    return f"{entry.count:,} · {format_size(entry.bytes)}"


def total(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return how much an archive holds, on one line."""
    if not entries:
        return f"the archive of thread {one_line(thread_id)} is empty"
    parts = count_of(len(entries), "part")
    count, nbytes = sum(entry.count for entry in entries), sum(entry.bytes for entry in entries)
    return f"archive of thread {one_line(thread_id)}: {parts}, {count_of(count, 'message')}, {format_size(nbytes)}"


def as_text(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return an archive as plain text, a line for each part."""
    rows = []
    for e in entries[-MOST:]:
        by = one_line(f"{e.by} {taken_by(e)}".strip()) + (" (pinned)" if e.pinned else "")
        rows.append((e.id[:SHORT], time_text(e), size_text(e), by, one_line(e.summary or "", LONG)))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = ["  ".join((*map(str.ljust, row, widths), row[4])).rstrip() for row in rows]
    return "\n".join([total(thread_id, entries), *(f"  {line}" for line in [*_older(entries), *lines])])


def _older(entries: Sequence[Archived]) -> Iterator[str]:
    if len(entries) > MOST:
        yield f"… {len(entries) - MOST:,} older: entries() returns all"


def as_html(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return an archive as HTML; a long summary opens by a click."""
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
    """The archived parts of a thread, oldest first. `archive[0]` is the first one, `archive["1f…"]` the one of that id.

    Nothing is read before somebody asks, and each time anew: `entries()` once, for all that is to be done with them
    (`list(archive)` asks for the length first). Indexing and iterating read by the blocking face; in an asynchronous
    program, use the methods that begin with `a`.
    """

    def __init__(self, engine: Engine, thread_id: str) -> None:
        self.engine = engine
        self.thread_id = thread_id

    # -- looking -----------------------------------------------------------------------------------------------

    def _entries(self) -> Plan[list[Archived]]:
        """Return the archived parts, without their messages. One round trip for each 500.

        Raises:
            CorruptStore: One of them does not decode.
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
        """Return the position of a part. One reading.

        Raises:
            ValueError: It is not there.
        """
        entries = self.entries()
        return entries.index(value, start, len(entries) if stop is None else stop)

    @overload
    def __getitem__(self, which: int | Part) -> Archived: ...

    @overload
    def __getitem__(self, which: slice) -> list[Archived]: ...

    def __getitem__(self, which: int | Part | slice) -> Archived | list[Archived]:
        """Return a part by its position or its id, or several by their positions."""
        return self.entries()[which] if isinstance(which, int | slice) else part_in(self.entries(), which)

    def _messages(self, which: Part | None = None, *, step: int | None = None) -> Plan[list[BaseMessage]]:
        """Return archived messages, as they were, in the order in which they went; each id once, in its last form.

        The archive holds what was taken out on every branch of the thread: after a rewind, of those left behind, too.

        Args:
            which: A part, its position, its id, or six digits or more that begin it; all parts, if left out. Of all
                parts, summaries of others are left out.
            step: Only what was taken out in this step.

        Raises:
            NotFound: There is no such part.
            InvalidInput: Several begin so, or that names no part.
            CorruptStore: Stored bytes do not add up.
            RefusedType: A message holds a type that may not be revived here.
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
        """Return the whole id of a part; no trip if that is what is given."""
        name = "" if type(which) is int else id_in(which)
        return name if ID.fullmatch(name) else part_in((yield from self._entries()), name or which).id

    def _read(self, entries: Sequence[Archived]) -> Plan[dict[str, list[BaseMessage]]]:
        return archives.read_parts(self.engine.session, self.thread_id, entries)

    def _message(self, message_id: str) -> Plan[BaseMessage]:
        """Return an archived message, in its last form.

        Raises:
            NotFound: The archive has no message of this id.
            InvalidInput: That is no id.
        """
        if not isinstance(message_id, str):
            raise InvalidInput(f"a message is named by its id, a str, not by a {type(message_id).__name__}")
        held = holder_of((yield from self._entries()), message_id)
        if held is None:
            raise NotFound(f"the archive of thread {self.thread_id!r} has no message {message_id!r:.60}")
        entry, place = held
        return (yield from archives.read_messages(self.engine.session, self.thread_id, entry.id))[place]

    message, amessage = faces(_message)

    def _search(self, text: str, limit: int | None = None, *, semantic: Any = None) -> Plan[list[FoundMessage]]:
        """Return the archived messages whose text holds `text`, in upper or lower case; the oldest part first.

        Of every branch of the thread, as `messages`.

        Args:
            text: What to look for.
            limit: Most to return.
            semantic: An embedding, as `index={"embed": ...}` of a store has it: LangChain's `Embeddings`, a function,
                or the name of a model. Messages are then found by meaning, the closest first, each with its `score`.
                Messages are embedded when they are searched; the process remembers 10,000. Needs NumPy.

        Raises:
            InvalidInput: `text` is no text, `limit` is negative, or `semantic` embeds no texts.
            CorruptStore: Stored bytes do not add up.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"what to look for must be a text, not a {type(text).__name__}")
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

    # -- putting back ------------------------------------------------------------------------------------------

    def _restore(
        self,
        graph: Any,
        which: Which | Iterable[Which] | None = None,
        *,
        config: RunnableConfig | None = None,
        as_node: str | None = None,
    ) -> Plan[Restored]:
        """Put messages back into the state of a graph, in the order in which they went, by its `update_state`.

        They follow the summary that stands for them, or the system messages at the head of the list if there is none;
        results of tools follow their calls. A summary goes if all that it stands for is in the state again; one that
        stays gets an id of its own, if it has taken over that of a message that comes back. The archive keeps what it
        has. What others put into the state meanwhile stays there.

        What was taken out on another branch of the thread stays out: a rewind has left it behind. Where that cannot
        be said, since checkpoints were pruned or never stored (`durability="exit"`), a part that a summary stood for
        stays out if no summary in the state builds on it, though there are some; others count as taken out on this.

        Args:
            graph: The graph, compiled with this saver.
            which: What to put back: a part, its position, a found or other message, the id of either, or several of
                those; all of the root graph's, if left out.
            config: The config, if more than the thread is to be said: a `checkpoint_ns` of a subgraph with a memory.
            as_node: The node that is taken to have written them, as LangGraph's `update_state` has it.

        Returns:
            What was done.

        Raises:
            NotFound: The archive has no such part or message, or only what subgraphs have taken out, which `config`
                must name; or the thread has no checkpoint (any more).
            InvalidInput: The thread waits for an answer, which an update would drop; the graph's state has no such
                list, its saver is of another store, or `config` of another thread; or what is named was taken out on
                another branch. Nothing was changed.
            CheckpointConflict: Somebody else was faster, ten times.
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
        """Mark a part as one to keep, and return it as it is now.

        It is a mark for people and programs: Keel removes no part but by `remove`, and all of them with their thread
        (a delete, an erase, a `ttl`), pinned or not.

        Raises:
            NotFound: There is no such part.
        """
        return self._mark(which, True)

    pin, apin = faces(_pin)

    def _unpin(self, which: Part) -> Plan[Archived]:
        """Take the mark of `pin` back; return the part as it is now.

        Raises:
            NotFound: There is no such part.
        """
        return self._mark(which, False)

    unpin, aunpin = faces(_unpin)

    def _mark(self, which: Part, pinned: bool) -> Plan[Archived]:
        part = yield from self._name(which)
        return (yield from archives.pin(self.engine.session, self.thread_id, part, pinned))

    def _remove(self, which: Part) -> Plan[None]:
        """Remove a part for good, pinned or not. What its messages stood for is then in its summary only.

        Raises:
            NotFound: There is no such part.
        """
        part = yield from self._name(which)
        yield from archives.remove_archived(self.engine.session, self.thread_id, part)

    remove, aremove = faces(_remove)

    # -- showing it --------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """Return the parts as a table in plain text."""
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
