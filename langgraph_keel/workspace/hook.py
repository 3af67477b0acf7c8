"""The hooks that save and drop snapshots together with their checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from langgraph_keel._langgraph import CONFIG_KEY_DURABILITY
from langgraph_keel.engine import runs as live
from langgraph_keel.engine.config import Address, begins_run
from langgraph_keel.engine.entries import TREE, unpack_header
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.events import Copy, Leaving, Put, Reading
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.workspace.records import Workspace
from langgraph_keel.workspace.repository import Repository
from langgraph_keel.workspace.shadow import Shadow


def tree_in(about: Mapping[str, Any]) -> str:
    """Return the tree named in a header; empty if there is none."""
    tree = about.get(TREE)
    return tree.hex() if type(tree) is bytes and len(tree) == 20 else ""


def name_thread(session: Session, thread_id: str) -> str:
    """Return the name of a thread's directory of refs."""
    return sha256(f"{session.tenant or ''}\0{thread_id}".encode()).hexdigest()[:40]


def find_tree(session: Session, address: Address) -> Plan[tuple[str, str]]:
    """Return the tree and the id of a checkpoint, by default the latest. One trip."""
    if address.checkpoint_ns:
        raise InvalidInput(f"{address}: files are saved only with checkpoints of the root graph: use one of those")
    found = yield from session.store.read_entry(address)
    if found is None:
        raise NotFound(f"{address}: there is no such checkpoint")
    entry = found.entry
    tree = tree_in(unpack_header(entry.header, session.codec, entry.address).about)
    if not tree:
        raise NotFound(f"{entry.address}: no files were saved with it, as its saver had no workspace=")
    return tree, str(entry.address.checkpoint_id)


class RefHook(Hook):
    """Keeps the refs of trees in step with their checkpoints, without saving trees."""

    shadow: Shadow | None = None  # set if this saver saves trees itself

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Keep the trees of a copied thread; for a fork, those up to its start."""
        nodes = copy.graph.nodes if copy.graph is not None else ()
        trees = {tree_in(unpack_header(each.header, session.codec, each.address).about) for each in nodes}
        source, target = name_thread(session, copy.source), name_thread(session, copy.target)
        yield Call(partial(self.repository.copy, source, target, trees if copy.graph is not None else None))

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Drop the trees that only removed checkpoints used."""
        named = {(tree_in(header.about), node.stamp in leaving.removed) for node, header in leaving.moments}
        if gone := {tree for tree, is_removed in named if tree and is_removed and (tree, False) not in named}:
            yield Call(partial(self.repository.drop, name_thread(session, leaving.thread_id), gone))

    def before_delete(self, session: Session, thread_id: str) -> Plan[None]:
        """Drop all trees of a thread."""
        yield Call(partial(self.repository.drop, name_thread(session, thread_id)))

    def reclaim(self, session: Session, now: bool) -> Plan[str]:
        """Collect unreferenced objects."""
        note: str = yield Call(partial(self.repository.collect, now=now))
        return note


class WorkspaceHook(RefHook):
    """Claims the directory for each run, and saves it with each root checkpoint."""

    shadow: Shadow

    def __init__(self, shadow: Shadow) -> None:
        super().__init__(shadow.repository)
        self.shadow = shadow

    def begin(self, session: Session, reading: Reading) -> Plan[None]:
        """Claim and save the directory for a run; refuse a run without durability "sync"."""
        if not begins_run(reading.config):
            return
        if reading.config["configurable"].get(CONFIG_KEY_DURABILITY) != "sync":
            raise InvalidInput(
                f"thread {reading.address.thread_id!r}: with workspace= a run needs durability='sync', otherwise the "
                "next step changes files while they are saved. Nothing of this run was stored, and no node has run. "
                "Use graph.invoke(..., durability='sync')"
            )
        thread, run = name_thread(session, reading.address.thread_id), live.find_run(reading.config)
        yield Call(partial(self.shadow.begin, run, thread))

    def draft_put(self, session: Session, put: Put) -> Plan[None]:
        """Save the directory, and store its tree in the checkpoint."""
        if put.address.checkpoint_ns:
            return
        # The first step of a run may have started: LangGraph does not wait for the checkpoint of an input.
        run = live.find_run(put.config)
        tree = self.shadow.take_first(run) if put.source in ("input", "fork") else ""
        if not tree:
            tree = yield Call(partial(self.shadow.save, name_thread(session, put.address.thread_id)))
        put.header.about[TREE] = bytes.fromhex(tree)

    def after_put(self, session: Session, put: Put) -> Plan[None]:
        """Keep the tree again, as a prune may have dropped it since it was saved."""
        if tree := tree_in(put.header.about):
            yield Call(partial(self.repository.keep, name_thread(session, put.address.thread_id), tree))

    def close(self) -> None:
        """Release the directory."""
        self.shadow.end()


def open_hook(workspace: Workspace | None, store: Path | None) -> RefHook:
    """Return the hook of a workspace, or of an existing repository next to the store."""
    place = workspace.repository if workspace else None
    if place is None and store is not None:
        place = f"{os.path.realpath(store)}.workspace"
    if place is None:
        raise InvalidInput(
            "workspace= needs a place for its shadow repository, as this store is not a file on this machine: "
            "Workspace(directory, repository='agent.workspace')"
        )
    repository = Repository(Path(place))
    return RefHook(repository) if workspace is None else WorkspaceHook(Shadow(workspace, repository, store))
