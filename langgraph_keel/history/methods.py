"""The methods of a saver that show, compare, rewind and fork threads."""

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
"""A moment of a timeline, or the config of a checkpoint (without id: the latest)."""


class HistoryMethods(EngineSaver):
    """The methods for the history of threads."""

    def timeline(self, thread_id: str) -> Timeline:
        """Return the moments of a thread, of all branches and namespaces.

        Moments are read when they are needed; a thread that does not exist has none. The timeline displays itself in a
        notebook. It reads synchronously; in async code, use `atimeline`.

        Raises:
            InvalidConfig: If `thread_id` is not a usable id.
        """
        from langgraph_keel.history.reading import Pages as ThreadPages
        from langgraph_keel.history.timeline import Timeline

        thread_id = thread_id_of(thread_id)
        return Timeline(self, thread_id, lambda: ThreadPages(self.engine.session, thread_id))

    async def atimeline(self, thread_id: str, limit: int | None = 20) -> Timeline:
        """Return a timeline whose latest moments are already read; see `timeline`.

        Displaying those does not block the running loop; other moments are read synchronously.

        Args:
            thread_id: The thread.
            limit: Number of moments to read; `None` reads all.
        """
        found = self.timeline(thread_id)
        await self.engine.arun(found.pages.upto(limit))
        await self.engine.arun(found.pages.moments(range(0, limit or len(found.pages.entries))))
        return found

    def _status(self, thread_id: str) -> Plan[ThreadStatus]:
        """Return a thread's state, whether it can resume, and the input to resume with.

        Six round trips, and one for each question. Nothing is written. A thread that does not exist is `"new"`.

        Raises:
            InvalidConfig: If `thread_id` is not a usable id.
            CorruptStore: If the thread's latest checkpoint cannot be read.
        """
        from langgraph_keel.history.status import read_status

        return read_status(self.engine.session, thread_id_of(thread_id))

    status, astatus = faces(_status)

    def _unfinished(self) -> Pages[ThreadStatus]:
        """Yield the status of each thread that is not idle, most recently active first.

        The threads are found in the index, so idle threads are not read. A damaged thread is logged and skipped.
        """
        from langgraph_keel.history.status import UnfinishedThreads

        return UnfinishedThreads(self.engine.session)

    unfinished, aunfinished = iterator_faces(_unfinished)

    def _diff(self, before: At, after: At) -> Plan[StateDiff]:
        """Return the changes between two checkpoints, also of two threads or branches.

        A value that may not be revived here appears as an `Unread`; the fields of data objects are compared anyway.

        Args:
            before: The older one, or the one to treat as older.
            after: The other.

        Raises:
            NotFound: If one of them does not exist.
            InvalidConfig: If one of them has no usable thread id.
            CorruptStore: If stored data is damaged.
        """
        from langgraph_keel.history.diff import diff_checkpoints

        return diff_checkpoints(self.engine.session, address_at(before), address_at(after))

    diff, adiff = faces(_diff)

    def _rewind(self, at: At, *, by: str | None = None) -> Plan[RunnableConfig]:
        """Make a checkpoint the latest of its thread again.

        Nothing is deleted: a copy of the checkpoint (a twin) is added as the new head. The step after it runs again:
        its tasks are executed, and its questions are asked. Tools of a `ToolCache` return their stored results.
        Subgraphs with their own memory (`checkpointer=True`) are rewound, too.

        Args:
            at: A checkpoint of the root graph.
            by: The person, as authenticated by your program; for the audit trail.

        Returns:
            The thread's config: `graph.invoke(None, config)` continues from there.

        Raises:
            NotFound: If the checkpoint does not exist.
            InvalidInput: If the checkpoint belongs to a subgraph.
        """
        from langgraph_keel.history.travel import rewind_to

        return rewind_to(self.engine.session, address_at(at), by)

    rewind, arewind = faces(_rewind)

    def _fork(self, at: At, thread_id: str | None = None, *, by: str | None = None) -> Plan[RunnableConfig]:
        """Fork a thread at a checkpoint: into a new thread, or as a branch.

        A new thread contains the tool calls of its history and returns their stored results. If the outcome of such a
        call is unknown, settle it in the original thread: the new one uses that result. Calls that the original made
        after that checkpoint are not copied: the fork makes them again. Questions are asked again; decisions are not
        copied.

        Args:
            at: A checkpoint of the root graph.
            thread_id: Id of the new thread, a copy of this one as it was when that checkpoint was stored. Without it, a
                branch starts in the same thread; it becomes the head when its first checkpoint is stored.
            by: The person, as authenticated by your program; for the audit trail.

        Returns:
            The config to continue from: that of the new thread, or that of the branch, with its `checkpoint_id`.

        Raises:
            NotFound: If the checkpoint does not exist.
            ThreadExists: If the new thread is not empty.
            InvalidInput: If the checkpoint belongs to a subgraph.
        """
        from langgraph_keel.history.travel import fork_at

        return fork_at(self.engine.session, address_at(at), thread_id, by)

    fork, afork = faces(_fork)


class LabelMethods(Component):
    """`saver.labels`: the names of checkpoints."""

    def _set(self, at: At, name: str) -> Plan[None]:
        """Name a checkpoint. Timelines accept the name, and prunes keep the checkpoint.

        Args:
            at: The checkpoint. A config without an id names the latest.
            name: 1 to 200 characters, unique in its thread. Numbers are not allowed, as they are positions.

        Raises:
            NotFound: If the checkpoint does not exist.
            InvalidInput: If `name` is not allowed, or another checkpoint of the thread has it.
        """
        return give_label(self.engine.session, address_at(at), name)

    set, aset = faces(_set)

    def _remove(self, thread_id: str, name: str) -> Plan[None]:
        """Remove a name.

        Raises:
            NotFound: If no checkpoint of the thread has it.
        """
        return remove_label(self.engine.session, thread_id_of(thread_id), name)

    remove, aremove = faces(_remove)

    def _list(self, thread_id: str) -> Plan[Sequence[Label]]:
        """Return the labels of a thread, in the order of the checkpoints' ids."""
        return read_labels(self.engine.session, thread_id_of(thread_id))

    list, alist = faces(_list)


class ThreadHistory(Component):
    """`saver.history`: notes, hand-off and journal of a thread, and a feed of events."""

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
        """Follow one thread or all: yields each new `Moment` and `StatusChange`.

            feed = saver.history.follow(after=stored_cursor)
            for event in feed:
                handle(event)
                stored_cursor = feed.cursor

        Events of all processes are delivered at least once, those of a thread in order. A checkpoint that is stored
        again is delivered again. Intermediate statuses between two polls, deletions, and the copied history of a fork
        or copy are not reported. The feed stores nothing, and writes do not notify it. The polling interval grows up to
        five times `poll` while nothing happens. A reviewer's decision triggers a poll immediately if it is made in this
        process; with PostgreSQL or Redis, a decision of any process does.

        A poll costs one or two round trips for the threads active in the last minute, one for those with steps left,
        and three for each changed thread. Every tenth poll reads the threads active in the last hour. So events of a
        writer whose clock is slow arrive late, but they do arrive. Clocks that differ by more than an hour can hide a
        thread, unless it is followed by its id.

        Args:
            thread_id: The thread; all threads of the saver by default.
            after: The `cursor` of an earlier feed, or a time. By default the feed starts with all stored events. Leave
                it out after you have restored a backup.
            payload: Whether moments contain values. Without values, a change has only the name of its channel, a
                question its id, and an error its class. The metadata has only `source` and `step`.
            poll: Initial polling interval, in seconds.
            timeout: Seconds without an event after which the feed ends. With 0 it ends after one poll, with `None`
                never.

        Raises:
            InvalidInput: If an argument is invalid, or the cursor belongs to another feed.
            InvalidConfig: If `thread_id` is not a usable id.
            StoreUnavailable: While iterating, if the store is unreachable at the first poll or when the timeout ends.
                Other polls are retried, with a warning in the log.
            StoreBusy: If the store is busy, under the same conditions.
        """
        from langgraph_keel.history.feed import Feed
        from langgraph_keel.runs.worker import PollTimer

        session = self.engine.session.with_placeholders()
        name, timer = None if thread_id is None else thread_id_of(thread_id), PollTimer(poll, timeout)
        feed = Feed(self.engine, session, self._bell, timer, self._timeline, name, payload)
        return feed.begin_at(after)

    afollow = follow  # a feed iterates in both ways: `async for event in saver.history.afollow()`

    def _note(
        self, thread_id: str, text: str, kind: NoteKind = "decision", *, because: str = "", outcome: str | None = None
    ) -> Plan[Note]:
        """Store a note with a thread. Two round trips; durable when it returns.

        Write a decision before the act, and its outcome afterwards (`set_outcome`): if the process dies in between,
        `notes(open=True)` lists the decision. A note is deleted, erased and moved to another store with its thread. A
        prune keeps it, even if it removes the note's checkpoint; a fork does not copy it.

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
        """Store the outcome of a decision; durable when it returns.

        Two round trips, and one for each 500 notes. `note_id` may be shortened to at least 6 characters of its
        beginning or end.

        Raises:
            NotFound: If there is no such note.
            InvalidInput: If several notes match, the note is not a decision, or it has another outcome already.
        """
        from langgraph_keel.history.notes import set_outcome

        return set_outcome(self.engine.session, note_id, outcome)

    set_outcome, aset_outcome = faces(_set_outcome)

    def _notes(self, thread_id: str | None = None, *, open: bool = False) -> Plan[Sequence[Note]]:
        """Return the notes of a thread, or of all threads, oldest first.

        One round trip for each 500 notes. With `open`, only decisions without an outcome: their acts may or may not
        have happened.
        """
        from langgraph_keel.history.notes import read_notes

        return read_notes(self.engine.session, thread_id, is_open=open)

    notes, anotes = faces(_notes)

    def _handoff(self, thread_id: str, tokens: int = 1500, *, at: At | None = None) -> Plan[Handoff]:
        """Return a summary that the next session needs to continue a thread.

        It is built from stored records, without a model. About fifteen round trips, and one for each 250 checkpoints,
        of which one page is in memory. Nothing is written.

        Args:
            thread_id: The thread.
            tokens: Maximum length, in units of four characters; at least 400. Done work is cut first, failures and
                open requests last; goal and next step are never cut.
            at: An earlier checkpoint of the root graph. The hand-off then describes the thread as of that time.

        Raises:
            NotFound: If there is no such thread or checkpoint.
            InvalidInput: If `tokens` is too small, or `at` is of another thread or of a subgraph.
            CorruptStore: If stored data is damaged.
        """
        from langgraph_keel.history.handoff import read_handoff

        return read_handoff(self.engine.session, thread_id, tokens, None if at is None else address_at(at))

    handoff, ahandoff = faces(_handoff)

    def _last_handoff(self, owner: str, but: str = "", *, tokens: int = 1500) -> Plan[Handoff | None]:
        """Return the `handoff` of the owner's last active thread, except `but`, if any."""
        from langgraph_keel.history.handoff import read_last_handoff

        return read_last_handoff(self.engine.session, owner, but, tokens)

    last_handoff, alast_handoff = faces(_last_handoff)

    def _journal(
        self, thread_id: str | None = None, *, owner: str | None = None, since: datetime | None = None
    ) -> Plan[str]:
        """Return the events of each day (UTC) as Markdown, from `since` on.

        Events are runs, tool calls, notes, decisions and failures of a thread, or of all threads of an owner
        (`configurable["user_id"]`).

        Raises:
            NotFound: If there is no such thread.
            InvalidInput: If neither a thread nor an owner is given, or both.
        """
        from langgraph_keel.history.journal import read_journal

        return read_journal(self.engine.session, thread_id, owner, since)

    journal, ajournal = faces(_journal)

    def agent_tools(self) -> Sequence[BaseTool]:
        """Return two tools for an agent, `note` and `handoff`.

        `handoff` returns the hand-off of the owner's last other thread.
        """
        from langgraph_keel.history.agents import agent_tools

        return agent_tools(self)

    def handoff_middleware(self, tokens: int = 1500) -> AgentMiddleware[Any, Any]:
        """Return a middleware for `create_agent` that starts new threads with a hand-off.

        It is the hand-off of the same owner's last thread. It is stored once, as the first message. A run without an
        owner (`configurable["user_id"]`) gets none.
        """
        from langgraph_keel.history.agents import HandoffMiddleware

        return HandoffMiddleware(self, tokens)


def address_at(at: At) -> Address:
    """Return the address of a checkpoint."""
    from langgraph_keel.history.moment import Moment

    return at.address if isinstance(at, Moment) else address_of(at)
