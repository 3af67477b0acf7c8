"""What the runs of a thread were told besides their inputs: answers to questions, and updates by `Command`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from langgraph_keel.core.calls import shelf_of
from langgraph_keel.core.checkpoints import Checkpoints
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.ledger import CallRecord, Ledger
from langgraph_keel.core.plan import Plan
from langgraph_keel.provenance.history import History, Moment, Place

PAGE = 500


class Recall:
    """Tells a replay what the original was told.

    Args:
        history: The original.
        taken: Per task, the places in its list of answers of those that tools have used: in a replay the ledger answers
            for them, and nobody is asked.
    """

    def __init__(self, history: History, taken: Mapping[str, Collection[int]]) -> None:
        self._history = history
        self._taken = taken
        self._done: set[str] = set()

    @classmethod
    def of(
        cls, core: Checkpoints[Any, Any], codec: Codec, history: History, allowed: Collection[str]
    ) -> Plan[Any, Any, Recall]:
        """Read what the ledger says of answers; tools that are allowed to run ask again."""
        taken: defaultdict[str, set[int]] = defaultdict(set)
        for record in (yield from ledger_of(core, codec, history.thread_id)).values():
            if record.tool not in allowed:
                taken[record.task_id].update(record.taken)
        return cls(history, taken)

    def commanded(self, before: Moment) -> Any:
        """Return what was written at a checkpoint by `Command`, as one; `None` if nothing was, or it is done."""
        if not before.commanded or before.id in self._done:
            return None
        self._done.add(before.id)
        return _command(update=before.commanded)

    def answers(self, before: Moment, asked: Mapping[str, tuple[Place, int]]) -> Any:
        """Return the next answers to the questions of a step, as a command; `None` if they are not recorded."""
        said = self._said(before.id)
        given = {name: said[place][nth] for name, (place, nth) in asked.items() if nth < len(said.get(place, ()))}
        if not given and len(asked) == 1 and before.id not in self._done:
            given = {name: answer for name in asked for answer in self._history.last_answer(before.id)}
            self._done.add(before.id)
        if not given:
            return None
        return _command(resume=given, update=self._update(before))

    def _update(self, before: Moment) -> Any:
        command = self.commanded(before)
        return None if command is None else command.update

    def _said(self, root: str) -> dict[Place, list[Any]]:
        tasks, answers = self._history.tasks(root), self._history.answers(root)
        return {
            place: [answer for nth, answer in enumerate(said) if nth not in self._taken.get(tasks[place], ())]
            for place, said in answers.items()
        }


def _command(**parts: Any) -> Any:
    from langgraph.types import Command  # not with Keel: it takes as long to import as all of Keel's core

    return Command(**parts)


def ledger_of(core: Checkpoints[Any, Any], codec: Codec, thread_id: str) -> Plan[Any, Any, dict[str, CallRecord]]:
    """Return the calls of tools in the ledger of a thread, by their keys. One trip a page."""
    ledger = Ledger(core.store, codec, partial(str, ""), lambda holder: False)
    found: dict[str, CallRecord] = {}
    after: str | None = None
    while True:
        page = yield from ledger.page(shelf_of(thread_id), after, PAGE)
        found.update((key, record) for key, record, _ in page)
        if len(page) < PAGE:
            return found
        after = page[-1][0]
