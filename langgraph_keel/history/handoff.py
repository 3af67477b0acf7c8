"""The hand-off of a thread: a summary for the next session, from stored records.

No model is used. A text of a tool or a person is one line after words of Keel, so it cannot start a heading, an item or
a fence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_keel._langgraph import NS_END
from langgraph_keel.approvals.interrupts import describe_question
from langgraph_keel.approvals.requests import CURRENT, OPEN, OVER, STATUS_OF, ApprovalRequest, Approvals, thread_prefix
from langgraph_keel.display.html import PAGE, tag
from langgraph_keel.display.html import text as html_text
from langgraph_keel.display.messages import content_text
from langgraph_keel.display.text import count_of, one_line, represent, short_ids
from langgraph_keel.engine.config import Address, thread_id_of
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import BRANCHED_FROM, REWOUND_TO, UnreadHeader, pending_writes, unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Kind, Node, Ref, Run
from langgraph_keel.engine.removal import merge_runs
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, NotFound, short_key
from langgraph_keel.history import changes as steps
from langgraph_keel.history.labels import read_labels
from langgraph_keel.history.notes import Note, read_notes
from langgraph_keel.history.status import ThreadStatus, read_status
from langgraph_keel.history.threads import ThreadPages, filter_of
from langgraph_keel.tools.ledger import DONE, FAILED, NEVER_BEGAN, CallPages

LEAST = 400
"""Minimum tokens of a hand-off: headings, goal and next step take about 300."""
_NODES = 250
"""Checkpoints whose new messages and errors are read together."""
_MOST = 500
"""Maximum lines of one kind kept while a thread is read, the newest."""
SUMMARY, HANDED = "keel_summary", "keel_handoff"
"""Keys of `additional_kwargs` that mark a message written by Keel."""
_ESCAPED = str.maketrans({char: f"\\{char}" for char in "\\`<["})

Section = Literal[
    "Goal", "Done", "Not working, and why", "Failed approaches, do not retry", "Key decisions", "Next step"
]
SECTIONS: tuple[Section, ...] = get_args(Section)
GOAL, DID, BROKEN, FAILURES, DECISIONS, NEXT = SECTIONS


@publish
@dataclass(frozen=True, slots=True)
class HandoffLine:
    """One line of a hand-off.

    Attributes:
        text: Markdown on one line.
        checkpoint_id: The checkpoint that proves it; empty if there is none.
        rank: Lines of a higher rank are cut first; those of rank 0 are never cut.
    """

    text: str
    checkpoint_id: str = ""
    rank: int = 5


@publish
@dataclass(frozen=True, slots=True, repr=False)
class Handoff:
    """A summary of a thread for the next session. `str` is Markdown.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The checkpoint that it describes.
        at: The time of that checkpoint, ISO.
        sections: The lines by section, in the order in which they are shown.
        cut: The number of lines that did not fit.
        short: The short ids of checkpoints, by their ids.
    """

    thread_id: str
    checkpoint_id: str
    at: str
    sections: Mapping[Section, Sequence[HandoffLine]]
    cut: int = 0
    short: Mapping[str, str] | None = None

    def __str__(self) -> str:
        """Return it as Markdown."""
        as_of = f"As of {quoted(self.at[:16].replace('T', ' '))} UTC, checkpoint {self._id(self.checkpoint_id)}."
        lines = [f"# Hand-off of thread {quoted(self.thread_id)}", "", as_of]
        for name, found in self.sections.items():
            lines += ["", f"## {name}", "", *(f"- {self._line(line)}" for line in found)]
        if self.cut:
            lines += ["", f"{count_of(self.cut, 'more line')} cut to fit. `keel timeline` shows the whole thread."]
        return "\n".join(lines) + "\n"

    __repr__ = __str__

    def _line(self, line: HandoffLine) -> str:
        return f"{line.text} ({self._id(line.checkpoint_id)})" if line.checkpoint_id else line.text

    def _id(self, checkpoint_id: str) -> str:
        return quoted((self.short or {}).get(checkpoint_id, checkpoint_id[-8:]))

    def _repr_html_(self) -> str:
        shown = [tag("h3", html_text(f"Hand-off of thread {one_line(self.thread_id)}"))]
        for name, lines in self.sections.items():
            items = (tag("li", html_text(self._line(line))) for line in lines)
            shown += [tag("h4", html_text(name)), tag("ul", *items)]
        return tag("div", *shown, style=PAGE)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "short"}


def quoted(text: Any, limit: int = 160) -> str:
    """Return foreign text as one line of Markdown, without code, tags and links."""
    return one_line(str(text), limit).translate(_ESCAPED)


def words_of(tool: str, args: Any) -> str:
    """Return a call as Python code, safe to show."""
    parts = [f"{key}={represent(value)}" for key, value in args.items()] if isinstance(args, Mapping) else []
    return f"{quoted(tool, 60)}({quoted(', '.join(parts), 80)})"


def words_of_note(note: Note) -> str:
    """Return a note as one line."""
    outcome = f"; outcome: {quoted(note.outcome)}" if note.outcome else ""
    return f"{note.kind}: {quoted(note.text)}{_because(note.because)}{outcome}"


def _because(reason: str | None) -> str:
    return f", because: {quoted(reason)}" if reason else ""


def _words_of_request(request: ApprovalRequest) -> str:
    return words_of(request.action, request.args) if request.action else f'"{quoted(describe_question(request.value))}"'


def read_decisions(session: Session, thread_id: str) -> Plan[list[tuple[str, str, str]]]:
    """Return a thread's decisions as time, text and checkpoint. Two trips or more."""
    found, approvals = [], Approvals(session)
    for shelf in (CURRENT, OVER):
        for held in (yield from approvals.all(shelf, thread_prefix(thread_id))):
            request = held.request
            if request.thread_id == thread_id and (decision := request.decision):
                by = f" by {quoted(decision.by, 60)}" if decision.by else ""
                edited = f" to {words_of(request.action, decision.args)}" if decision.kind == "edit" else ""
                asked = f"{_words_of_request(request)}{edited}"
                text = f"{STATUS_OF[decision.kind]}{by}: {asked}{_because(decision.reason)}"
                found.append((decision.at, text, request.checkpoint_id))
    return found


def read_handoff(session: Session, thread_id: str, tokens: int, at: Address | None) -> Plan[Handoff]:
    """Return the hand-off of a thread.

    Nine trips, those of `status`, and one for each 250 checkpoints.
    """
    if type(tokens) is not int or tokens < LEAST:
        raise InvalidInput(f"tokens must be an integer of at least {LEAST}, not {tokens!r:.60}")
    thread_id = thread_id_of(thread_id)
    if at is not None and (at.thread_id != thread_id or at.checkpoint_ns):
        raise InvalidInput(f"{at}: at must be a checkpoint of the root graph of thread {thread_id!r}")
    status = yield from read_status(session, thread_id)  # first: later reads must not be older than it
    nodes = [node for node in (yield from session.store.read_graph(thread_id)).nodes if not node.is_ghost]
    name = (at.checkpoint_id if at else None) or None
    roots = [node for node in nodes if not node.address.checkpoint_ns]
    heads = [node for node in roots if (node.is_head if name is None else node.address.checkpoint_id == name)]
    if not heads:
        raise NotFound(f"thread {thread_id!r} has no checkpoint{f' {name!r}' if name else ''} to hand off")
    head = heads[-1]
    found = _Collector(session, nodes if head.is_head else nodes[: nodes.index(head) + 1], head)
    yield from found.read_steps()
    yield from found.read_records(status)
    found.tell_next(status)
    short = short_ids(str(node.address.checkpoint_id) for node in found.nodes)
    made_at = str(UnreadHeader(head, session.codec).checkpoint.get("ts", ""))
    whole = Handoff(thread_id, str(head.address.checkpoint_id), made_at, {}, 0, short)
    return _fit(whole, found.lines(), found.dropped, tokens)


def read_last_handoff(session: Session, owner: str, but: str, tokens: int) -> Plan[Handoff | None]:
    """Return the hand-off of the owner's last active thread, except `but`."""
    pages = ThreadPages(session, 2, filter_of(owner=owner)) if owner else None
    while pages and (page := (yield from pages.next())) is not None:
        for info in page:
            try:
                if info.thread_id != but:
                    return (yield from read_handoff(session, info.thread_id, tokens, None))
            except NotFound:  # the thread was deleted since
                continue
    return None


def _fit(whole: Handoff, lines: Mapping[Section, Sequence[HandoffLine]], dropped: int, tokens: int) -> Handoff:
    """Return a hand-off with the lines that fit: by rank, then the newest."""
    places = sorted((line.rank, -n, at) for at, name in enumerate(SECTIONS) for n, line in enumerate(lines[name]))

    def take(count: int) -> Handoff:
        kept, shown = set(places[:count]), {}
        for at, name in enumerate(SECTIONS):
            if found := [line for n, line in enumerate(lines[name]) if (line.rank, -n, at) in kept]:
                shown[name] = found
        return replace(whole, sections=shown, cut=len(places) - count + dropped)

    fewest = sum(rank == 0 for rank, *_ in places)
    over = bisect_right(range(len(places) + 1), tokens * 4, fewest, key=lambda count: len(str(take(count))))
    return take(max(fewest, over - 1))


class _Collector:
    """Reads a thread in stored order, and keeps the lines for its hand-off."""

    def __init__(self, session: Session, nodes: Sequence[Node], head: Node) -> None:
        self._session, self.nodes, self._head = session, nodes, head
        self._codec = session.codec.with_placeholders()
        self._head_id = str(head.address.checkpoint_id)
        self._known = {str(node.address.checkpoint_id) for node in nodes} - {self._head_id}
        self._parents = {(node.address.checkpoint_ns, node.parent) for node in nodes}
        self._roots = {node.address.checkpoint_id: node for node in nodes if not node.address.checkpoint_ns}
        self._way = set[str | None]()  # the checkpoints that the head continues
        at: str | None = self._head_id
        while at in self._roots and at not in self._way:
            # A twin continues its original.
            marks = UnreadHeader(self._roots[at], session.codec).metadata
            self._way |= {at, *(str(marks[mark]) for mark in (REWOUND_TO, BRANCHED_FROM) if mark in marks)}
            at = self._roots[at].parent
        self._calls: dict[str, tuple[str, str]] = {}  # the calls of models by id: tool and text
        self._seen = set[str]()  # the ids of the messages that were read
        self._done: dict[str, HandoffLine] = {}
        self._failed: dict[str, tuple[str, HandoffLine, int]] = {}  # by text: tool, line and count
        self._asked: list[HandoffLine] = []  # the first message of a person, and the last
        self._answered = set[str]()  # the ids of calls that have an answer
        self._questions: list[Any] = []  # open questions of the latest checkpoint
        self._last_words: dict[str, str] = {}  # the last answer on a branch, by checkpoint
        self._more: dict[Section, list[HandoffLine]] = {name: [] for name in SECTIONS}
        self.dropped = 0

    def _add(self, section: Section, text: str, checkpoint_id: str, rank: int) -> None:
        self._more[section].append(HandoffLine(text, checkpoint_id, rank))

    def _keep(self, kept: dict[str, Any], key: str, value: Any) -> None:
        """Add a value at the end, and drop the first one if there are too many."""
        kept.pop(key, None)
        kept[key] = value
        if len(kept) > _MOST:
            del kept[next(iter(kept))]
            self.dropped += 1

    def _fail(self, tool: str, text: str, name: str) -> None:
        count = self._failed[text][2] if text in self._failed else 0
        self._keep(self._failed, text, (tool, HandoffLine(text, name), count + 1))

    def _end_call(self, call: tuple[str, str], has_failed: bool, said: str, name: str) -> None:
        tool, words = call
        if has_failed:
            return self._fail(tool, f'{words} failed: "{quoted(said)}"', name)
        # An approach that failed and worked later need not be avoided.
        for text in [text for text in self._failed if text.startswith(f"{words} failed: ")]:
            del self._failed[text]
        self._keep(self._done, words, HandoffLine(f'{words} returned "{quoted(said, 80)}"', name))

    def read_steps(self) -> Plan[None]:
        """Read new messages, errors of tasks and the plan. A trip per 250 checkpoints."""
        last: dict[tuple[str, str], list[Run]] = {}  # by namespace and channel: the items seen so far
        deltas: dict[str, set[str]] = {}  # delta channels by namespace; a snapshot does not list them
        written: dict[tuple[str, str | None], list[Any]] = {}  # writes to them, by the checkpoint of the tasks
        for start in range(0, len(self.nodes), _NODES):
            wanted, reader = [], Unpacker(self._codec)  # caches rows while they exist
            for node in self.nodes[start : start + _NODES]:
                new = {}
                for channel, ref in node.refs.items():
                    seen = last.setdefault((node.address.checkpoint_ns, channel), [])
                    if node is self._head and channel == "todos" and ref.kind is not Kind.INLINE:
                        new[channel] = ref
                    elif ref.kind is Kind.LIST and (runs := steps.subtract_runs(ref.runs, seen)):
                        new[channel] = Ref(Kind.LIST, runs)
                        seen[:] = merge_runs([*seen, *runs])
                wanted.append(Entry(node.address, node.parent, node.stamp, node.header, new, node.run_id))
            read = {each.entry.address: each for each in (yield from self._session.store.read_values(wanted))}
            for entry in wanted:
                if (found := read.get(entry.address)) is None:
                    continue  # it was pruned since
                header = unpack_header(entry.header, self._codec, entry.address)
                inline, ns = header.inline, entry.address.checkpoint_ns
                values = [value for value in inline.values() if isinstance(value, list)]
                values.append(written.pop((ns, entry.parent), []))
                for channel, ref in entry.refs.items():
                    values.append([*steps.items(ref.runs, found.rows.get(channel, ()), reader)])
                self._take(entry.address, [each for value in values for each in value])
                writes = pending_writes(found.batches, self._codec, entry.address)
                deltas.setdefault(ns, set()).update(steps.delta_channels(header.metadata))
                news = [each for channel in deltas[ns] for each in steps.written_elements(writes, channel)]
                written[ns, entry.address.checkpoint_id] = news
                if entry.address != self._head.address:
                    self._take_errors(entry.address, steps.task_errors(writes))
                    continue
                self._questions = [each.value for each in steps.open_questions(writes)]
                if "todos" in entry.refs:
                    inline = reader.values({"todos": entry.refs["todos"]}, found.rows, entry.address)
                todos = inline.get("todos")
                for todo in todos if isinstance(todos, list) else ():  # of `TodoListMiddleware` and deepagents
                    if isinstance(todo, dict) and isinstance(todo.get("content"), str):
                        state = quoted(str(todo.get("status", "pending")).replace("_", " "), 20)
                        text = f"plan, {state}: {quoted(todo['content'])}"
                        rank = {"completed": 4, "in progress": 2}.get(state, 3)
                        self._add(DID if rank == 4 else NEXT, text, self._head_id, rank)

    def _take(self, address: Address, values: Sequence[Any]) -> None:
        name, is_root = str(address.checkpoint_id), not address.checkpoint_ns
        is_ours = is_root and name in self._way
        for message in values:
            if not isinstance(message, BaseMessage) or message.id in self._seen:
                continue
            if message.id is not None:
                self._seen.add(message.id)
            text = content_text(message.content)
            if isinstance(message, HumanMessage):
                if is_ours and not {SUMMARY, HANDED} & message.additional_kwargs.keys():
                    asked = "asked last" if self._asked else "asked"
                    self._asked[1:] = [HandoffLine(f'{asked}: "{quoted(text, 240)}"', name, 0)]
            elif isinstance(message, AIMessage):
                for made in message.tool_calls:
                    self._calls[str(made["id"])] = made["name"], words_of(made["name"], made["args"])
                if text and not message.tool_calls and is_root:
                    self._last_words[name] = quoted(text, 80)
                    if is_ours:
                        self._keep(self._done, f"{name} {message.id}", HandoffLine(f'answered: "{quoted(text)}"', name))
            elif isinstance(message, ToolMessage):
                self._answered.add(message.tool_call_id)
                tool = str(message.name or "a tool")
                call = self._calls.get(message.tool_call_id) or (tool, quoted(tool, 60))
                self._end_call(call, message.status == "error", text, name)

    def _take_errors(self, address: Address, errors: Sequence[str]) -> None:
        ns, name = address.checkpoint_ns, str(address.checkpoint_id)
        where = f" in {quoted(ns.partition(NS_END)[0], 40)}" if ns else ""
        then = "was run again" if (ns, name) in self._parents else "was left"
        for error in errors:
            self._fail("", f'a step{where} failed, and {then}: "{quoted(error)}"', name)

    def read_records(self, status: ThreadStatus) -> Plan[None]:
        """Read calls, approvals, notes and labels. Five trips, and one per 500 of them."""
        session, thread_id = self._session, status.thread_id
        doubts = {call.key for call in status.doubts}
        pages, ended = CallPages(session, thread_id), []
        while (page := (yield from pages.next())) is not None:
            ended += [call for call in page if call.state in (DONE, FAILED) and call.error != NEVER_BEGAN]
        for call in sorted(ended, key=lambda call: (call.ended_at or call.started_at, call.key)):
            is_told = call.tool_call_id in self._answered or call.key in doubts
            if not is_told and self._is_known(call.checkpoint_id):
                made = self._calls.get(call.tool_call_id) or (call.tool, words_of(call.tool, call.args))
                said = call.error or "a result that is in the ledger of tool calls"
                self._end_call(made, call.state == FAILED, said, call.checkpoint_id)
        lines = [(DECISIONS, text, name, 3) for _, text, name in (yield from read_decisions(session, thread_id))]
        for note in (yield from read_notes(session, thread_id)):
            section, rank, text = {"goal": GOAL, "next": NEXT}.get(note.kind, DECISIONS), 2, words_of_note(note)
            if note.is_open:
                section, rank = BROKEN, 1
                text += "; no outcome is recorded: find out whether it was carried out before you do it"
            lines.append((section, text, note.checkpoint_id, rank))
        for label in (yield from read_labels(session, thread_id)):
            lines.append((DECISIONS, f"label: {quoted(label.name)}", str(label.address.checkpoint_id), 4))
        for line in lines:
            if not line[2] or self._is_known(line[2]):
                self._add(*line)

    def _is_known(self, checkpoint_id: str) -> bool:
        """Return whether a record belongs to the time of the hand-off."""
        return self._head.is_head or checkpoint_id in self._known

    def tell_next(self, status: ThreadStatus) -> None:
        """Add abandoned branches, obstacles and advice (none for an earlier checkpoint)."""
        for name, node in self._roots.items():
            if name in self._way or ("", name) in self._parents:
                continue
            count, words, at = 0, "", name
            while at in self._roots and at not in self._way:
                count, words, at = count + 1, words or self._last_words.get(str(at), ""), self._roots[at].parent
            if count == 1 and {REWOUND_TO, BRANCHED_FROM} & UnreadHeader(node, self._session.codec).metadata.keys():
                continue  # nothing ran there
            said = f', and last said "{words}"' if words else ""
            self._fail("", f"a branch of {count_of(count, 'checkpoint')} was left{said}", str(name))
        if not self._head.is_head:
            thread = quoted(status.thread_id, 60)
            text = f"this is an earlier checkpoint; `keel status` shows the current state of thread {thread}"
            self._more[NEXT].insert(0, HandoffLine(text, self._head_id, 0))
            return
        self._more[NEXT].insert(0, HandoffLine(quoted(str(status).replace("`", "'"), 900), self._head_id, 0))
        asked = [f"{_words_of_request(each)}, request {each.id}" for each in status.requests if each.status in OPEN]
        if not status.requests and status.state == "waits":
            asked = [f'"{quoted(describe_question(value))}"' for value in self._questions]
        broken = [*(f"waits for a person: {text}" for text in asked)]
        broken += [f'the next step failed: "{quoted(error)}"' for error in status.errors]
        for text in broken:
            self._add(BROKEN, text, self._head_id, 1)
        for call in status.doubts:
            text = f"the outcome of {quoted(call.tool, 60)} {short_key(call.key)} is unknown"
            self._add(BROKEN, text, call.checkpoint_id or self._head_id, 1)

    def lines(self) -> dict[Section, list[HandoffLine]]:
        """Return the lines by section; the newest failure of each tool ranks first."""
        more, named, failures = self._more, set[str](), list[HandoffLine]()
        for tool, line, count in reversed(self._failed.values()):
            often = f", {count:,} times" if count > 1 else ""
            failures.insert(0, replace(line, text=line.text + often, rank=2 if tool in named else 1))
            named.add(tool)
        done = [*self._done.values(), *more[DID]]
        return {**more, GOAL: [*self._asked, *more[GOAL]], DID: done, FAILURES: failures}
