"""`saver.workspace`: previews, restores and compares the files of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph_keel.engine.config import address_of
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import InvalidInput
from langgraph_keel.workspace.records import WorkspaceDiff, WorkspaceRestore

if TYPE_CHECKING:
    from langgraph_keel.workspace.shadow import Shadow

Directory: TypeAlias = str | os.PathLike[str]


class WorkspaceMethods(Component):
    """`saver.workspace`: the files of a directory at each checkpoint (`workspace=`)."""

    def __init__(self, saver: EngineSaver, shadow: Shadow | None) -> None:
        super().__init__(saver)
        self._shadow = shadow

    def _at(self, into: Directory | None = None) -> Shadow:
        if self._shadow is None:
            raise InvalidInput("this saver saves no files: open it with workspace=Workspace(directory)")
        return self._shadow if into is None else self._shadow.at(into)

    def _preview(self, config: Mapping[str, Any], into: Directory | None = None) -> Plan[WorkspaceRestore]:
        """Return the effect of `restore`, with the same arguments, errors and round trips.

        An interrupted restore is finished first.
        """
        return (yield from self._go(config, into, ""))

    preview, apreview = faces(_preview)

    def _restore(self, config: Mapping[str, Any], into: Directory | None = None) -> Plan[WorkspaceRestore]:
        """Restore the files of a checkpoint, not its conversation (see `saver.rewind`).

        Only paths that are unchanged since the thread's last snapshot are removed or replaced. Changed paths in the way
        are moved to `.keel-aside` in the directory; new files stay. Finally the directory is compared with the
        checkpoint. The next snapshot, preview or restore finishes an interrupted restore. It takes one round trip, and
        some git processes.

        Args:
            config: The checkpoint, or a thread for its latest one.
            into: Another directory, so that two branches can work side by side; created if it is missing.

        Raises:
            NotFound: If there is no such checkpoint, or no files were saved with it.
            WorkspaceTaken: If a run uses the directory.
            StoreFull: If the disk is full.
            StoreError: If git or the disk fails, or the directory differs from the checkpoint afterwards.
        """
        session = self.engine.session
        return (yield from self._go(config, into, f"{session.clock():%Y%m%dT%H%M%S}-{session.new_token()[:8]}"))

    restore, arestore = faces(_restore)

    def _go(self, config: Mapping[str, Any], into: Directory | None, name: str) -> Plan[WorkspaceRestore]:
        from langgraph_keel.workspace.hook import find_tree, name_thread

        shadow, address, session = self._at(into), address_of(config), self.engine.session
        tree, checkpoint_id = yield from find_tree(session, address)
        thread = name_thread(session, address.thread_id)
        done: WorkspaceRestore = yield Call(partial(shadow.restore, thread, tree, checkpoint_id, name))
        return done

    def _diff(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Plan[WorkspaceDiff]:
        """Return the differences between the files of two checkpoints.

        They may belong to different threads. Takes two round trips.

        Raises:
            NotFound: If there is no such checkpoint, or no files were saved with it.
            StoreError: If git fails.
        """
        from langgraph_keel.workspace.hook import find_tree

        repository, session = self._at().repository, self.engine.session
        old, _ = yield from find_tree(session, address_of(before))
        new, _ = yield from find_tree(session, address_of(after))
        found, patch = yield Call(lambda: (repository.compare(old, new), repository.patch(old, new)))
        kinds = {(True, False): "removed", (False, True): "added", (True, True): "changed"}
        return WorkspaceDiff({os.fsdecode(path): kinds[had, has] for path, had, has in found}, patch)

    diff, adiff = faces(_diff)

    def _files(self, config: Mapping[str, Any]) -> Plan[Mapping[str, int]]:
        """Return the files and links of a checkpoint, with their sizes in bytes.

        Takes one round trip, and raises the same errors as `diff`.
        """
        from langgraph_keel.workspace.hook import find_tree

        repository = self._at().repository
        tree, _ = yield from find_tree(self.engine.session, address_of(config))
        found = yield Call(partial(repository.files, tree))
        return {os.fsdecode(path): size for path, size in found.items()}

    files, afiles = faces(_files)
