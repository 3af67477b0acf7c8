"""Time travel: what a saver can do with the moments of a thread. Show them, compare two, go back to one, fork there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from langgraph_keel.engine.config import Address, address_of, thread_id_of
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.faces import Component, Pages, faces, iterator_faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.history.labels import Label, give_label, read_labels, remove_label

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.tools import BaseTool

    from langgraph_keel.approvals.notices import Bell
    from langgraph_keel.history.diff import StateDiff
    from langgraph_keel.history.feed import Feed
    from langgraph_keel.history.handoff import Handoff
    from langgraph_keel.history.moment import Moment
    from langgraph_keel.history.notes import Note, NoteKind
    from langgraph_keel.history.status import ThreadStatus
    from langgraph_keel.history.timeline import Timeline

At: TypeAlias = "Mapping[str, Any] | Moment"
"""A checkpoint: the config that names it, or a moment of a timeline. A config without an id names the latest."""


class HistoryMethods(EngineSaver):
    """The methods that go through a thread's history."""

    def timeline(self, thread_id: str) -> Timeline:
        """Return a thread as a list of moments, all branches and namespaces, which shows itself in a notebook.

        Nothing is read yet: a thread that is not there has no moments. It reads by the blocking face; in an
        asynchronous program, see `atimeline`.

        Raises:
            InvalidConfig: `thread_id` is no usable id.
        """
        from langgraph_keel.history.reading import Pages as ThreadPages
        from langgraph_keel.history.timeline import Timeline

        thread_id = thread_id_of(thread_id)
        return Timeline(self, thread_id, lambda: ThreadPages(self.engine.session, thread_id))

    async def atimeline(self, thread_id: str, limit: int | None = 20) -> Timeline:
        """As `timeline`, with the latest moments read already, asynchronously: `None` for all of them.

        Looking at those does not block the running loop; what was not read is read by the blocking face.
        """
        found = self.timeline(thread_id)
        await self.engine.arun(found.pages.upto(limit))
        await self.engine.arun(found.pages.moments(range(0, limit or len(found.pages.entries))))
        return found

    def _status(self, thread_id: str) -> Plan[ThreadStatus]:
        """Return where a thread stands, whether it may go on by itself, and what to invoke its graph with then.

        Six round trips, and one for each question. Nothing is written. A thread that is not there is `"new"`.

        Raises:
            InvalidConfig: `thread_id` is no usable id.
            CorruptStore: Its latest checkpoint cannot be read.
        """
        from langgraph_keel.history.status import read_status

        return read_status(self.engine.session, thread_id_of(thread_id))

    status, astatus = faces(_status)

    def _unfinished(self) -> Pages[ThreadStatus]:
        """Yield where those threads stand that have something left to do, last activity first.

        The index of threads names them: idle threads are not read. A thread that is damaged is logged, and left out.
        """
        from langgraph_keel.history.status import UnfinishedThreads

        return UnfinishedThreads(self.engine.session)

    unfinished, aunfinished = iterator_faces(_unfinished)

    def _diff(self, before: At, after: At) -> Plan[StateDiff]:
        """Return what changed between two checkpoints, also of two threads or branches.

        An `Unread` stands for what may not be revived here; of a data object, its fields are compared all the same.

        Args:
            before: The older one, or whichever shall count as that.
            after: The other.

        Raises:
            NotFound: One of them is not there.
            InvalidConfig: One of them names no usable thread.
            CorruptStore: Stored bytes do not add up.
        """
        from langgraph_keel.history.diff import diff_checkpoints

        return diff_checkpoints(self.engine.session, address_at(before), address_at(after))

    diff, adiff = faces(_diff)

    def _rewind(self, at: At, *, by: str | None = None) -> Plan[RunnableConfig]:
        """Make a checkpoint the latest of its thread again. Nothing is deleted: a twin of it is added.

        What runs from here does so anew: tasks that had ended, and questions that were answered or waited. Tools of a
        `ToolCache` are answered from the ledger all the same. Subgraphs with a memory of their own
        (`checkpointer=True`) go back, too.

        Args:
            at: A checkpoint of the root graph.
            by: Who does it, for the audit trail, as your program has authenticated them.

        Returns:
            The thread's config: `graph.invoke(None, config)` goes on from there.

        Raises:
            NotFound: There is no such checkpoint.
            InvalidInput: It belongs to a subgraph.
        """
        from langgraph_keel.history.travel import rewind_to

        return rewind_to(self.engine.session, address_at(at), by)

    rewind, arewind = faces(_rewind)

    def _fork(self, at: At, thread_id: str | None = None, *, by: str | None = None) -> Plan[RunnableConfig]:
        """Begin another way from a checkpoint: in a thread of its own, or on a branch.

        A new thread has the tool calls of its history: they are answered from the ledger, and one whose outcome is
        unknown must be settled there, too. Calls that the original has made after that checkpoint are new calls in the
        new thread: if it is run, tools act again. Its questions are asked again; no decision is taken along.

        Args:
            at: A checkpoint of the root graph.
            thread_id: The new thread: a copy of this one as it was when that checkpoint was put. Without it, a branch
                in the same thread, which is not its latest until something is put there.
            by: Who does it, for the audit trail, as your program has authenticated them.

        Returns:
            The config to go on from: the new thread's, or the branch's with its `checkpoint_id`.

        Raises:
            NotFound: There is no such checkpoint.
            ThreadExists: The new thread holds something already.
            InvalidInput: It belongs to a subgraph.
        """
        from langgraph_keel.history.travel import fork_at

        return fork_at(self.engine.session, address_at(at), thread_id, by)

    fork, afork = faces(_fork)


class LabelMethods(Component):
    """`saver.labels`: the names that people give to checkpoints."""

    def _set(self, at: At, name: str) -> Plan[None]:
        """Give a checkpoint a name, by which a timeline finds it. It is kept when the thread is pruned.

        Args:
            at: The checkpoint. A config without an id names the latest.
            name: 1 to 200 characters, unique in its thread; not a number, which would be taken for a position.

        Raises:
            NotFound: There is no such checkpoint.
            InvalidInput: `name` cannot be a label, or another checkpoint of the thread has it.
        """
        return give_label(self.engine.session, address_at(at), name)

    set, aset = faces(_set)

    def _remove(self, thread_id: str, name: str) -> Plan[None]:
        """Take a name back.

        Raises:
            NotFound: No checkpoint of the thread has it.
        """
        return remove_label(self.engine.session, thread_id_of(thread_id), name)

    remove, aremove = faces(_remove)

    def _list(self, thread_id: str) -> Plan[Sequence[Label]]:
        """Return the names in a thread and the checkpoints that have them, in the order of the checkpoints' ids."""
        return read_labels(self.engine.session, thread_id_of(thread_id))

    list, alist = faces(_list)


class ThreadHistory(Component):
    """`saver.history`: a thread's notes, hand-off and journal, and a feed of what happens in threads."""

    def __init__(self, saver: HistoryMethods, bell: Bell) -> None:
        super().__init__(saver)
        self._timeline, self._bell = saver.timeline, bell

    def follow(
        self,
        thread_id: str | None = None,
        after: str | datetime | None = None,
        payload: bool = True,
        *,
        poll: float = 1.0,
        timeout: float | None = None,
    ) -> Feed:
        """Return the checkpoints of one thread or of all (`Moment`), and each `StatusChange`, as they come.

            feed = saver.history.follow(after=stored_cursor)
            for event in feed:
                handle(event)
                stored_cursor = feed.cursor

        They are seen from any process, at least once, and those of a thread in their order. A checkpoint that is put
        again comes again. Statuses between two looks, deletions, and older checkpoints of a fork or copy do not come.
        Nothing is stored, and a put notifies nothing: while nothing happens, a look is up to five times `poll` seconds
        after the last one. A person's decision is followed by a look at once, where the backend has notices.

        A look costs one or two round trips for the threads active within a minute, one for those with steps left, and
        three for each that has changed. Each tenth look covers an hour: a writer whose clock is behind is seen late.
        Clocks that differ by more than an hour can hide a thread, unless it is followed by its id.

        Args:
            thread_id: The thread; all threads of the saver by default.
            after: The `cursor` of an earlier feed, or a time. By default, all that is stored comes first, as it should
                when a backup was restored.
            payload: Whether moments carry values. Without, of changes there are the channels, of questions the ids, of
                errors the classes, and of the metadata the source and the step.
            poll: Seconds between two looks.
            timeout: Seconds without an event after which the feed ends; 0 is after one look, `None` is never.

        Raises:
            InvalidInput: An argument is not usable, or the cursor is of another feed.
            InvalidConfig: `thread_id` is no usable id.
            StoreUnavailable: The store does not answer at the first look, or when the timeout ends; raised while
                iterating. Other looks are repeated, with a warning in the log. The same is true of `StoreBusy`.
        """
        from langgraph_keel.history.feed import Feed
        from langgraph_keel.runs.worker import PollTimer

        session = self.engine.session.with_placeholders()
        name, timer = None if thread_id is None else thread_id_of(thread_id), PollTimer(poll, timeout)
        feed = Feed(self.engine, session, self._bell, timer, self._timeline, name, payload)
        return feed.begin_at(after)

    afollow = follow  # a feed has both faces: `async for event in saver.history.afollow()`

    def _note(
        self, thread_id: str, text: str, kind: NoteKind = "decision", *, because: str = "", outcome: str | None = None
    ) -> Plan[Note]:
        """Write a note beside a thread. Two round trips; durable when it returns.

        Write a decision before the act, and its outcome afterwards (`set_outcome`): if the process dies in between,
        `notes(open=True)` lists the decision. A note is deleted, erased and moved to another store with its thread. It
        survives a prune, which may remove its checkpoint, and is not copied to a fork.

        Args:
            thread_id: The thread; it need not have a checkpoint yet.
            text: The decision, finding, goal or next step: 1 to 10,000 characters.
            kind: `"decision"`, `"finding"`, `"goal"` or `"next"`.
            because: The reason.
            outcome: The outcome of a decision, if it is known already.

        Raises:
            InvalidConfig: If `thread_id` is not usable.
            InvalidInput: If a text is empty or too long, the kind is unknown, or a note of this kind has no outcome.
        """
        from langgraph_keel.history.notes import write_note

        return write_note(self.engine.session, thread_id, text, kind, because, outcome)

    note, anote = faces(_note)

    def _set_outcome(self, note_id: str, outcome: str) -> Plan[Note]:
        """Write the outcome of a decision. Two round trips, and one for each 500 notes; durable when it returns.

        `note_id` may be shortened to at least 6 characters of its beginning or end.

        Raises:
            NotFound: If there is no such note.
            InvalidInput: If several notes match, the note is not a decision, or it has another outcome already.
        """
        from langgraph_keel.history.notes import set_outcome

        return set_outcome(self.engine.session, note_id, outcome)

    set_outcome, aset_outcome = faces(_set_outcome)

    def _notes(self, thread_id: str | None = None, *, open: bool = False) -> Plan[Sequence[Note]]:
        """Return the notes of a thread, or of all, the oldest first. One round trip for each 500.

        With `open`, only decisions without an outcome: their acts may or may not have happened.
        """
        from langgraph_keel.history.notes import read_notes

        return read_notes(self.engine.session, thread_id, is_open=open)

    notes, anotes = faces(_notes)

    def _handoff(self, thread_id: str, tokens: int = 1500, *, at: At | None = None) -> Plan[Handoff]:
        """Return what the next session needs in order to continue a thread, made of stored records without a model.

        About fifteen round trips, and one for each 250 checkpoints, of which one page is in memory. Nothing is written.

        Args:
            thread_id: The thread.
            tokens: Maximum length, in units of four characters; at least 400. Done work is cut first, failures and
                open requests last; goal and next step are never cut.
            at: An earlier checkpoint of the root graph to hand off, with what was known then.

        Raises:
            NotFound: If there is no such thread or checkpoint.
            InvalidInput: If `tokens` is too small, or `at` is of another thread or of a subgraph.
            CorruptStore: If stored bytes do not add up.
        """
        from langgraph_keel.history.handoff import read_handoff

        return read_handoff(self.engine.session, thread_id, tokens, None if at is None else address_at(at))

    handoff, ahandoff = faces(_handoff)

    def _last_handoff(self, owner: str, but: str = "", *, tokens: int = 1500) -> Plan[Handoff | None]:
        """Return the `handoff` of the owner's thread that was last active, except `but`; `None` if there is none."""
        from langgraph_keel.history.handoff import read_last_handoff

        return read_last_handoff(self.engine.session, owner, but, tokens)

    last_handoff, alast_handoff = faces(_last_handoff)

    def _journal(
        self, thread_id: str | None = None, *, owner: str | None = None, since: datetime | None = None
    ) -> Plan[str]:
        """Return runs, calls of tools, notes, decisions and failures by day (UTC), as Markdown.

        They are those of a thread, or of all threads of an owner (`configurable["user_id"]`), from `since` on.

        Raises:
            NotFound: If there is no such thread.
            InvalidInput: If neither a thread nor an owner is given, or both.
        """
        from langgraph_keel.history.journal import read_journal

        return read_journal(self.engine.session, thread_id, owner, since)

    journal, ajournal = faces(_journal)

    def agent_tools(self) -> Sequence[BaseTool]:
        """Return two tools for an agent: `note`, and `handoff` of the last other thread of the same owner."""
        from langgraph_keel.history.agents import agent_tools

        return agent_tools(self)

    def handoff_middleware(self, tokens: int = 1500) -> AgentMiddleware[Any, Any]:
        """Return a middleware for `create_agent` that begins a thread with the last hand-off of the same owner.

        It is stored once, as the first message. A run without an owner (`configurable["user_id"]`) gets none.
        """
        from langgraph_keel.history.agents import HandoffMiddleware

        return HandoffMiddleware(self, tokens)


def address_at(at: At) -> Address:
    """Return the address of a checkpoint."""
    from langgraph_keel.history.moment import Moment

    return at.address if isinstance(at, Moment) else address_of(at)
