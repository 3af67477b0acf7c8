"""`moving_from=`: imports each thread of an old store at its first access.

Before the first verb on a thread in this process, a layer over the backend's store imports it, blocking or in a
thread. If the import fails, the verb raises that error.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.layers import Layer
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.verbs import VERBS
from langgraph_keel.moving.damage import name_damage
from langgraph_keel.moving.notes import LEFT, find_note, note, note_begun

if TYPE_CHECKING:
    from langgraph_keel.moving.sources import Source

_movers: WeakSet[Mover] = WeakSet()

_KNOWN = 100_000
"""Maximum threads that a process remembers as checked."""
_LOCKS = 64


def _after_fork() -> None:
    # Another thread of the parent may have held a lock.
    for mover in list(_movers):
        mover.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Mover:
    """Imports threads, each once per process; thread-safe."""

    session: Session
    """A session on the inner store, as `langgraph.arriving` returns it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.forget()
        _movers.add(self)

    def forget(self) -> None:
        """Reset, for a forked process."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._locks = [Lock() for _ in range(_LOCKS)]

    def open(self, session: Session, store: Store[Any, Any]) -> None:
        """Set the store into which threads are imported, without this layer."""
        from langgraph_keel.moving.langgraph import arriving

        self.session = arriving(replace(session, store=store))

    def is_known(self, thread_id: str) -> bool:
        """Return whether this process has checked a thread."""
        return thread_id in self._known

    def move(self, thread_id: str) -> None:
        """Import a thread if the source has it and it was not imported yet. Blocks."""
        from langgraph_keel.moving.langgraph import allows_of, finish, move_thread

        with self._locks[hash(thread_id) % _LOCKS]:
            if self.is_known(thread_id):
                return
            session = self.session
            noted = run(find_note(session, thread_id), session.driver)
            is_here = noted is None and run(session.store.scan(Query(thread_id, limit=1)), session.driver)
            if not (is_here or (noted and noted.is_whole)):
                with name_damage(thread_id), self.source.open(allows_of(session)) as reader, reader.moment():
                    index = reader.read_index(thread_id)
                    if index.parents:
                        run(note_begun(session, thread_id), session.driver)
                        is_moved = move_thread(session, reader, thread_id, index)
                        if not is_moved and run(find_note(session, thread_id), session.driver) != LEFT:
                            finish(session, thread_id, index)
            self._remember(thread_id)

    def leave(self, thread_id: str) -> None:
        """Prevent the import of a thread that is about to be deleted."""
        with self._locks[hash(thread_id) % _LOCKS]:
            noted = run(find_note(self.session, thread_id), self.session.driver)
            if noted is None or not noted.is_whole:
                run(note(self.session, thread_id, LEFT), self.session.driver)
            self._remember(thread_id)

    def _remember(self, thread_id: str) -> None:
        self._known[thread_id] = None
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)


class MovingStore(Layer):
    """A store that imports threads at their first access."""

    def __init__(self, inner: Store[Any, Any], mover: Mover) -> None:
        super().__init__(inner)
        self._mover = mover
        for name, verb in VERBS.items():
            if verb.thread is not None and not self.has(name):
                setattr(self, name, self._touching(verb.thread, getattr(inner, name)))

    def _touching(self, thread: Callable[[Any], str | None], inner: Callable[..., Plan[Any]]) -> Any:
        """Return a verb that first imports the thread named by its first argument."""

        def touching(named: Any, *others: Any, **more: Any) -> Plan[Any]:
            if (thread_id := thread(named)) is not None:
                yield from self.see_to(thread_id)
            return (yield from inner(named, *others, **more))

        return touching

    def see_to(self, thread_id: str) -> Plan[None]:
        """Import a thread if necessary; no trip if this process has checked it."""
        if not self._mover.is_known(thread_id):
            yield Call(lambda: self._mover.move(thread_id))

    def copy_thread(self, source: str, target: str, *others: Any, **more: Any) -> Plan[Any]:
        """See `Store.copy_thread`; imports both threads first."""
        yield from self.see_to(target)
        yield from self.see_to(source)
        return (yield from self.inner.copy_thread(source, target, *others, **more))

    def delete_thread(self, thread_id: str, *others: Any, **more: Any) -> Plan[bool]:
        """See `Store.delete_thread`; also prevents a later import."""
        yield Call(lambda: self._mover.leave(thread_id))
        return (yield from self.inner.delete_thread(thread_id, *others, **more))

    def of_tenant(self, tenant: str) -> Store[Any, Any]:
        """See `Store.of_tenant`; nothing is imported, as LangGraph's savers have no tenants."""
        return self.inner.of_tenant(tenant)
