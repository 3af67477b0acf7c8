"""The hand-off of a thread: what the next session needs in order to continue, made of what is stored and of no model.

What a tool or a person wrote stands in one line behind words of Keel's own, so it cannot begin a heading, an item or
a fence. What is safe to do next is what `status` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import PendingWrite

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
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, NotFound, short_key
from langgraph_keel.history import changes as steps
from langgraph_keel.history.labels import read_labels
from langgraph_keel.history.notes import read_notes
from langgraph_keel.history.status import ThreadStatus, read_status
from langgraph_keel.tools.ledger import DONE, FAILED, NEVER_BEGAN, CallPages

LEAST = 400
"""Fewest tokens of a hand-off: its headings, the goal and the next step take about 300."""
_NODES = 250
"""Checkpoints whose new messages and errors are read together."""
_TEXT, _ARGS = 160, 80
"""Characters of a text, and of the arguments of a call."""
_MOST = 500
"""Lines of one kind that are kept while a thread is read, the newest."""
SUMMARY, HANDED = "keel_summary", "keel_handoff"
"""The keys of `additional_kwargs` that say that a message was written by Keel."""
_ESCAPED = str.maketrans({char: f"\\{char}" for char in "\\`<["})

Section = Literal[
    "Goal", "Done", "Not working, and why", "Failed approaches, do not retry", "Key decisions", "Next step"
]
GOAL, DID, BROKEN, FAILURES, DECISIONS, NEXT = Section.__args__  # type: ignore[attr-defined]
SECTIONS = (GOAL, DID, BROKEN, FAILURES, DECISIONS, NEXT)


@publish
@dataclass(frozen=True, slots=True)
class HandoffLine:
    """One line of a hand-off.

    Attributes:
        text: What it says, as Markdown on one line.
        checkpoint_id: The checkpoint that proves it; empty if there is none.
        rank: Lines of a higher rank are cut first; those of rank 0 are never cut.
    """

    text: str
    checkpoint_id: str = ""
    rank: int = 5


@publish
@dataclass(frozen=True, slots=True, repr=False)
class Handoff:
    """What the next session needs in order to continue a thread. `str` is Markdown.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The checkpoint that it describes.
        at: When that was made, ISO time.
        sections: The lines by section, in the order in which they are shown.
        cut: How many lines were left out, as they did not fit.
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
        parts = [self._title(f"# Hand-off of thread {quoted(self.thread_id)}"), *map(self._section, self.sections)]
        if self.cut:
            parts.append(f"{count_of(self.cut, 'more line')} cut to fit. `keel timeline` shows the whole thread.")
        return "\n\n".join(parts) + "\n"

    __repr__ = __str__

    def _title(self, heading: str) -> str:
        return f"{heading}\n\nAs of {self.at[:16].replace('T', ' ')} UTC, checkpoint {self._id(self.checkpoint_id)}."

    def _section(self, name: Section) -> str:
        return "\n".join([f"## {name}", "", *(f"- {self._line(line)}" for line in self.sections[name])])

    def _line(self, line: HandoffLine) -> str:
        return f"{line.text} ({self._id(line.checkpoint_id)})" if line.checkpoint_id else line.text

    def _id(self, checkpoint_id: str) -> str:
        return one_line((self.short or {}).get(checkpoint_id, checkpoint_id[-8:]))

    def _repr_html_(self) -> str:
        shown = [tag("h3", html_text(f"Hand-off of thread {one_line(self.thread_id)}"))]
        for name, lines in self.sections.items():
            items = (tag("li", html_text(self._line(line))) for line in lines)
            shown += [tag("h4", html_text(name)), tag("ul", *items)]
        return tag("div", *shown, style=PAGE)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        sections = {name: [asdict(line) for line in lines] for name, lines in self.sections.items()}
        about = {"thread_id": self.thread_id, "checkpoint_id": self.checkpoint_id, "at": self.at}
        return {**about, "sections": sections, "cut": self.cut}


def quoted(text: Any, limit: int = _TEXT) -> str:
    """Return what others wrote as one line of Markdown without code, tags, links or characters that steer."""
    return one_line(str(text), limit).translate(_ESCAPED)


def read_handoff(session: Session, thread_id: str, tokens: int, at: Address | None) -> Plan[Handoff]:
    """Make the hand-off of a thread. Ten trips, those of `status`, and one for each 250 checkpoints."""
    if type(tokens) is not int or tokens < LEAST:
        raise InvalidInput(f"tokens must be a number of at least {LEAST}, not {tokens!r:.60}")
    thread_id = thread_id_of(thread_id)
    if at is not None and (at.thread_id != thread_id or at.checkpoint_ns):
        raise InvalidInput(f"{at}: at must be a checkpoint of the root graph of thread {thread_id!r}")
    status = yield from read_status(session, thread_id)  # first: what is read after it is not older
    nodes = [node for node in (yield from session.store.read_graph(thread_id)).nodes if not node.is_ghost]
    name = at.checkpoint_id if at is not None and at.checkpoint_id else None
    heads = [node for node in nodes if not node.address.checkpoint_ns]
    heads = [node for node in heads if (node.is_head if name is None else node.address.checkpoint_id == name)]
    if not heads:
        raise NotFound(f"thread {thread_id!r} has no checkpoint{f' {name!r}' if name else ''} to hand off")
    head = heads[-1]
    if name is not None and head.is_head:
        name = None
    if name is not None:
        nodes = nodes[: nodes.index(head) + 1]
    found = _Collector(session, nodes, head, is_past=name is not None)
    yield from found.read_steps()
    yield from found.read_plan()
    yield from found.read_records(thread_id, status)
    found.tell_next(thread_id, status)
    checkpoint_id = str(head.address.checkpoint_id)
    short = short_ids(str(node.address.checkpoint_id) for node in nodes)
    whole = Handoff(thread_id, checkpoint_id, found.time_of(head), {}, 0, short)
    return _fit(whole, found.lines(), found.dropped, tokens)


def _fit(whole: Handoff, lines: Mapping[Section, Sequence[HandoffLine]], dropped: int, tokens: int) -> Handoff:
    """Return a hand-off with the lines that fit: those of the lowest rank, and of one rank the newest."""
    places = [(name, number) for name in SECTIONS for number in range(len(lines[name]))]
    places.sort(key=lambda place: (lines[place[0]][place[1]].rank, -place[1]))

    def take(count: int) -> Handoff:
        kept = set(places[:count])
        sections = {name: [line for n, line in enumerate(lines[name]) if (name, n) in kept] for name in SECTIONS}
        shown = {name: found for name, found in sections.items() if found}
        return replace(whole, sections=shown, cut=len(places) - count + dropped)

    fewest = sum(line.rank == 0 for found in lines.values() for line in found)
    most = len(places)
    while fewest < most:  # a line more is a longer text, so the most that fit are found by halving
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if len(str(take(middle))) <= tokens * 4 else (fewest, middle - 1)
    return take(fewest)


@dataclass(slots=True)
class _Call:
    """A call of a tool: `said` names it and its arguments."""

    tool: str
    said: str
    checkpoint_id: str


class _Collector:
    """Reads a thread in the order in which it was stored, and keeps the lines that its hand-off may show."""

    def __init__(self, session: Session, nodes: Sequence[Node], head: Node, *, is_past: bool) -> None:
        self._session, self._nodes, self._head, self._is_past = session, nodes, head, is_past
        self._codec = session.codec.with_placeholders()
        self._known = {str(node.address.checkpoint_id) for node in nodes}
        self._parents = {(node.address.checkpoint_ns, node.parent) for node in nodes}
        by_id = {node.address.checkpoint_id: node for node in nodes if not node.address.checkpoint_ns}
        self._way = set[str | None]()
        at: str | None = head.address.checkpoint_id
        while at in by_id and at not in self._way:
            # A twin continues what it is a twin of.
            marks = UnreadHeader(by_id[at], session.codec).metadata
            self._way |= {at, *(str(marks[mark]) for mark in (REWOUND_TO, BRANCHED_FROM) if mark in marks)}
            at = by_id[at].parent
        self._calls: dict[str, _Call] = {}  # those that models have made, by their ids
        self._seen = set[str]()  # the messages that were read, by their ids
        self._done: dict[str, HandoffLine] = {}
        self._failed: dict[str, tuple[str, HandoffLine, int]] = {}  # by text: the tool, the line, and how often
        self._asked: list[HandoffLine] = []  # the first message of a person, and the last
        self._answered = set[str]()  # the calls of models that have an answer
        self._questions: list[Any] = []  # those that wait at the latest checkpoint
        self._last_words: dict[str, str] = {}  # what a branch said last, by checkpoint
        self._more: dict[Section, list[HandoffLine]] = {name: [] for name in SECTIONS}
        self.dropped = 0

    def time_of(self, node: Node) -> str:
        """Return when a checkpoint was made."""
        return str(UnreadHeader(node, self._session.codec).checkpoint.get("ts", ""))

    def add(self, section: Section, text: str, checkpoint_id: str | None, rank: int) -> None:
        """Add a line."""
        self._more[section].append(HandoffLine(text, checkpoint_id or "", rank))

    # -- what ran ----------------------------------------------------------------------------------------------

    def read_steps(self) -> Plan[None]:
        """Read what each checkpoint added: new messages, and errors of tasks. A trip for each 250."""
        last: dict[tuple[str, str], tuple[Run, ...]] = {}  # by namespace and channel: the items seen so far
        for start in range(0, len(self._nodes), _NODES):
            wanted, reader = [], Unpacker(self._codec)  # which knows rows as long as they are there
            for node in self._nodes[start : start + _NODES]:
                new = {}
                for channel, ref in node.refs.items():
                    place = node.address.checkpoint_ns, channel
                    if ref.kind is Kind.LIST and (runs := steps.subtract_runs(ref.runs, last.get(place, ()))):
                        new[channel] = Ref(Kind.LIST, runs)
                        last[place] = _join(last.get(place, ()), runs)
                wanted.append(Entry(node.address, node.parent, node.stamp, node.header, new, node.run_id))
            read = {each.entry.address: each for each in (yield from self._session.store.read_values(wanted))}
            for entry in wanted:
                if (found := read.get(entry.address)) is None:
                    continue  # it was pruned meanwhile
                inline = unpack_header(entry.header, self._codec, entry.address).inline
                values = [value for value in inline.values() if isinstance(value, list)]
                for channel, ref in entry.refs.items():
                    values.append([*steps.items(ref.runs, found.rows.get(channel, ()), reader)])
                self._take(entry.address, [each for value in values for each in value])
                self._take_writes(entry.address, pending_writes(found.batches, self._codec, entry.address))

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
                    self._calls[str(made["id"])] = _Call(made["name"], words_of(made["name"], made["args"]), name)
                if text and not message.tool_calls and is_root:
                    self._last_words[name] = quoted(text, 80)
                    if is_ours:
                        self._note_done(f"{name} {message.id}", f'answered: "{quoted(text)}"', name)
            elif isinstance(message, ToolMessage):
                self._answered.add(message.tool_call_id)
                tool = str(message.name or "a tool")
                call = self._calls.get(message.tool_call_id) or _Call(tool, quoted(tool, 60), name)
                self._note_call(call, message.status == "error", text, name)

    def _note_call(self, call: _Call, has_failed: bool, said: str, name: str) -> None:
        if has_failed:
            self._note_failure(call.tool, f'{call.said} failed: "{quoted(said)}"', name)
        else:
            # An approach that failed and worked later is none to avoid.
            for text in [text for text in self._failed if text.startswith(f"{call.said} failed: ")]:
                del self._failed[text]
            self._note_done(call.said, f'{call.said} returned "{quoted(said, 80)}"', name)

    def _note_done(self, key: str, text: str, name: str) -> None:
        self._done.pop(key, None)
        self._done[key] = HandoffLine(text, name, 5)
        if len(self._done) > _MOST:
            del self._done[next(iter(self._done))]
            self.dropped += 1

    def _note_failure(self, tool: str, text: str, name: str) -> None:
        _, _, count = self._failed.pop(text, ("", None, 0))
        self._failed[text] = tool, HandoffLine(text, name), count + 1
        if len(self._failed) > _MOST:
            del self._failed[next(iter(self._failed))]
            self.dropped += 1

    def _take_writes(self, address: Address, writes: Sequence[PendingWrite]) -> None:
        name = str(address.checkpoint_id)
        if address == self._head.address:  # what is not working there, `status` knows
            self._questions = [] if self._is_past else [each.value for each in steps.open_questions(writes)]
            return
        for error in steps.task_errors(writes):
            where = f" in {quoted(address.checkpoint_ns.partition(NS_END)[0], 40)}" if address.checkpoint_ns else ""
            said = "was run again" if (address.checkpoint_ns, name) in self._parents else "was left"
            self._note_failure("", f'a step{where} failed, and {said}: "{quoted(error)}"', name)

    # -- what was decided, planned and left ----------------------------------------------------------------------

    def read_plan(self) -> Plan[None]:
        """Read the plan of `TodoListMiddleware` and deepagents, the channel `todos`. One trip, or none."""
        todos: Any = UnreadHeader(self._head, self._codec).inline.get("todos")
        if (ref := self._head.refs.get("todos")) is not None and ref.kind is not Kind.INLINE:
            head = self._head
            entry = Entry(head.address, head.parent, head.stamp, head.header, {"todos": ref}, head.run_id)
            for found in (yield from self._session.store.read_values([entry])):
                todos = Unpacker(self._codec).values(entry.refs, found.rows, head.address).get("todos")
        for todo in todos if isinstance(todos, list) else ():
            if isinstance(todo, dict) and isinstance(todo.get("content"), str):
                state = quoted(str(todo.get("status", "pending")).replace("_", " "), 20)
                section, rank = (DID, 4) if state == "completed" else (NEXT, 2 if state == "in progress" else 3)
                self.add(section, f"plan, {state}: {quoted(todo['content'])}", self._head.address.checkpoint_id, rank)

    def read_records(self, thread_id: str, status: ThreadStatus) -> Plan[None]:
        """Read calls, approvals, notes and labels. Five trips, and one for each 500 of them."""
        doubts = {call.key for call in status.doubts}
        pages, ended = CallPages(self._session, thread_id), []
        while (page := (yield from pages.next())) is not None:
            ended += [call for call in page if call.state in (DONE, FAILED) and call.key not in doubts]
        for call in sorted(ended, key=lambda call: (call.ended_at or call.started_at, call.key)):
            if (
                call.tool_call_id in self._answered
                or call.error == NEVER_BEGAN
                or not self._is_known(call.checkpoint_id)
            ):
                continue
            made = self._calls.get(call.tool_call_id) or _Call(call.tool, words_of(call.tool, call.args), "")
            said = call.error or "a result that is in the ledger of tools"
            self._note_call(made, call.state == FAILED, said, call.checkpoint_id)
        approvals = Approvals(self._session)
        for shelf in (CURRENT, OVER):
            for held in (yield from approvals.all(shelf, thread_prefix(thread_id))):
                if held.request.thread_id == thread_id and held.request.decision:
                    self._tell_decision(held.request)
        for note in (yield from read_notes(self._session, thread_id)):
            if note.checkpoint_id and not self._is_known(note.checkpoint_id):
                continue
            because = f", because: {quoted(note.because)}" if note.because else ""
            outcome = f"; outcome: {quoted(note.outcome)}" if note.outcome else ""
            said = f"{note.kind}: {quoted(note.text)}{because}{outcome}"
            if note.is_open:
                said += "; no outcome is written: find out whether it was carried out before you do it"
            section = {"goal": GOAL, "next": NEXT}.get(note.kind, BROKEN if note.is_open else DECISIONS)
            self.add(section, said, note.checkpoint_id, 1 if note.is_open else 2)
        for label in (yield from read_labels(self._session, thread_id)):
            if self._is_known(str(label.address.checkpoint_id)):
                self.add(DECISIONS, f"label: {quoted(label.name)}", label.address.checkpoint_id, 4)

    def _is_known(self, checkpoint_id: str) -> bool:
        """Return whether a record is of the time that is handed off."""
        return not self._is_past or (checkpoint_id in self._known and checkpoint_id != self._head.address.checkpoint_id)

    def _tell_decision(self, request: ApprovalRequest) -> None:
        decision = request.decision
        if decision is None or not self._is_known(request.checkpoint_id):
            return
        by = f" by {quoted(decision.by, 60)}" if decision.by else ""
        why = f", because: {quoted(decision.reason)}" if decision.reason else ""
        text = f"{STATUS_OF[decision.kind]}{by}: {_ask_of(request)}{why}"
        self.add(DECISIONS, text, request.checkpoint_id, 3)

    def tell_next(self, thread_id: str, status: ThreadStatus) -> None:
        """Add what stands in the way and what is safe to do, as `status` says; of an earlier checkpoint, neither."""
        head = self._head.address.checkpoint_id
        self._tell_branches()
        if self._is_past:
            text = f"this is an earlier checkpoint; `keel status` says where thread {quoted(thread_id, 60)} is now"
            self._more[NEXT].insert(0, HandoffLine(text, str(head), 0))
            return
        for request in status.requests:
            if request.status in OPEN:
                self.add(BROKEN, f"waits for a person: {_ask_of(request)}, request {request.id}", head, 1)
        for question in () if status.requests or status.state != "waits" else self._questions:
            self.add(BROKEN, f'waits for a person: "{quoted(describe_question(question))}"', head, 1)
        for error in status.errors:
            self.add(BROKEN, f'the next step failed: "{quoted(error)}"', head, 1)
        for call in status.doubts:
            key = short_key(call.key)
            self.add(BROKEN, f"nobody knows how {quoted(call.tool, 60)} {key} ended", call.checkpoint_id or head, 1)
        self._more[NEXT].insert(0, HandoffLine(quoted(str(status).replace("`", "'"), 900), str(head), 0))

    def _tell_branches(self) -> None:
        """Add the branches that were left."""
        roots = [node for node in self._nodes if not node.address.checkpoint_ns]
        by_id = {node.address.checkpoint_id: node for node in roots}
        for node in roots:
            if node.address.checkpoint_id in self._way or ("", node.address.checkpoint_id) in self._parents:
                continue
            count, words, at = 0, "", node.address.checkpoint_id
            while at in by_id and at not in self._way:
                count, words = count + 1, words or self._last_words.get(str(at), "")
                at = by_id[at].parent
            metadata = UnreadHeader(node, self._session.codec).metadata
            if count == 1 and (REWOUND_TO in metadata or BRANCHED_FROM in metadata):
                continue  # nothing ran there
            said = f', and last said "{words}"' if words else ""
            text = f"a branch of {count_of(count, 'checkpoint')} was left{said}"
            self._note_failure("", text, str(node.address.checkpoint_id))

    def lines(self) -> dict[Section, list[HandoffLine]]:
        """Return the lines by section; in the failed approaches, the newest of each tool has the better rank."""
        named = set[str]()
        failures: list[HandoffLine] = []
        for tool, line, count in reversed(self._failed.values()):
            often = f", {count:,} times" if count > 1 else ""
            failures.append(replace(line, text=line.text + often, rank=2 if tool in named else 1))
            named.add(tool)
        more = self._more
        return {
            **more,
            GOAL: [*self._asked, *more[GOAL]],
            DID: [*self._done.values(), *more[DID]],
            FAILURES: failures[::-1],
        }


def _ask_of(request: ApprovalRequest) -> str:
    return words_of(request.action, request.args) if request.action else f'"{quoted(describe_question(request.value))}"'


def words_of(tool: str, args: Any) -> str:
    """Return a call as one would write it, safe to show."""
    parts = [f"{key}={represent(value)}" for key, value in args.items()] if isinstance(args, Mapping) else []
    return f"{quoted(tool, 60)}({quoted(', '.join(parts), _ARGS)})"


def _join(runs: Sequence[Run], more: Sequence[Run]) -> tuple[Run, ...]:
    """Return the item numbers of both, in as few runs as there can be."""
    joined: list[Run] = []
    for lo, hi in sorted([*runs, *more]):
        if joined and lo <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(hi, joined[-1][1])
        else:
            joined.append((lo, hi))
    return tuple(joined)
