"""The stack of a saver: the layers between its engine and its backend, and the engine with its hooks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_keel.approvals.arrivals import ArrivalHook
from langgraph_keel.approvals.hook import ApprovalHook
from langgraph_keel.blobs.objects import Ask, Objects
from langgraph_keel.blobs.opening import open_objects
from langgraph_keel.blobs.store import BlobStore
from langgraph_keel.engine.engine import Engine, bare
from langgraph_keel.engine.errands import AsyncErrandDriver, Call, ErrandDriver
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.plan import AsyncDriver, Driver, Errand, is_in_loop
from langgraph_keel.engine.runs import Drain
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.labels import LabelHook
from langgraph_keel.history.notes import NoteHook
from langgraph_keel.keys.gate import Gate
from langgraph_keel.keys.keyring import Keyring
from langgraph_keel.keys.store import SealedStore
from langgraph_keel.moving.marks import CopyHook
from langgraph_keel.moving.notes import MovedHook
from langgraph_keel.options import SaverOptions
from langgraph_keel.provenance.hook import PACKAGE_VERSIONS, Recorder
from langgraph_keel.retention.owners import OwnerHook
from langgraph_keel.runs.hook import RunClaims
from langgraph_keel.runs.marks import Marks
from langgraph_keel.store.hook import ItemHook
from langgraph_keel.summaries.archive.hook import ArchiveHook, ArchiveRule
from langgraph_keel.tools.hook import LedgerHook
from langgraph_keel.upgrades.chain import Chain
from langgraph_keel.upgrades.hook import UpgradeHook
from langgraph_keel.workspace.records import Workspace

if TYPE_CHECKING:
    from langgraph_keel.moving.touch import Mover
    from langgraph_keel.workspace.hook import RefHook

_CANNOT_MOVE = (
    "moving_from= stores threads without a tenant, so it needs a writable saver without tenants='required'. "
    "To move threads of a tenant, use saver.for_tenant(name).moving.import_from(source, threads=[...])"
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers and drivers of a saver, shared by all its copies and views."""

    store: Store[Any, Any]  # the top layer, or the store of the backend
    settled: Store[Any, Any]  # as `store`, without the layer that imports threads: the mover writes to it
    driver: Driver[Any, Any]
    async_driver: AsyncDriver[Any, Any]
    gate: Gate | None  # refuses an encrypted store to a saver without keys
    is_read_only: bool
    is_async_only: bool
    keyring: Keyring | None
    objects: Objects | None  # the place of large values outside the store
    mover: Mover | None
    upgrades: Chain
    files: RefHook | None  # of a shadow repository
    drain: Drain = field(default_factory=Drain)


def stack_of(
    store: Store[Any, Any],
    driver: Driver[Any, Any],
    async_driver: AsyncDriver[Any, Any],
    options: SaverOptions,
    is_read_only: bool = False,
    is_async_only: bool = False,
    beside: Path | None = None,
) -> Stack:
    """Return a stack, built from the backend upwards: a write passes its layers from the last to the first.

    `beside` is the file or directory of the store, if it has one; a shadow repository is searched there.

    The layer of objects is below encryption, so objects are encrypted. Threads are imported above the objects and below
    encryption. Names are hidden inside `SealedStore`, so that seals bind the names that the program uses.
    """
    upgrades, kinds = Chain(options["upgrades"]), list[type[Errand]]()
    driver, async_driver = bare(driver), bare(async_driver)  # they may belong to another saver
    objects, mover, keyring = None, None, options["encryption"]
    if options["blobs"] is not None:
        objects = open_objects(options["blobs"])
        store = BlobStore(store, objects, options["blob_limit"], options["memo_bytes"])
        kinds.append(Ask)
    settled = store
    if options["moving_from"] is not None:
        from langgraph_keel.moving.sources import source_of
        from langgraph_keel.moving.touch import Mover, MovingStore

        if is_read_only or options["tenants"] == "required":
            raise InvalidInput(_CANNOT_MOVE)
        mover = Mover(source_of(options["moving_from"]))
        store = MovingStore(store, mover)
        kinds.append(Call)
    files = _open_files(options["workspace"], beside)
    if files and Call not in kinds:
        kinds.append(Call)
    if kinds:
        driver, async_driver = ErrandDriver(driver, *kinds), AsyncErrandDriver(async_driver, *kinds)
    gate = Gate(settled, driver, async_driver) if keyring is None else None
    if keyring is not None:
        settled = SealedStore(settled, keyring)
        store = settled if mover is None else SealedStore(store, keyring)
    above = keyring, objects, mover, upgrades, files
    return Stack(store, settled, driver, async_driver, gate, is_read_only, is_async_only, *above)


def _open_files(workspace: Workspace | None, beside: Path | None) -> RefHook | None:
    """Return the hook of the requested shadow repository, or of one next to the store."""
    is_blind = beside is None or is_in_loop()
    if workspace is None and (is_blind or not os.path.isdir(f"{os.path.realpath(str(beside))}.workspace/keel")):
        return None
    if os.name != "posix":
        raise InvalidInput("workspace= needs the file locks of POSIX, which this system does not have")
    from langgraph_keel.workspace.hook import open_hook

    return open_hook(workspace, beside)


def open_engine(
    stack: Stack,
    store: Store[Any, Any],
    tenant: str | None,
    options: SaverOptions,
    serde: SerializerProtocol,
    upkeep: Hook | None,
) -> Engine:
    """Return an engine for the store of a stack, or of a tenant."""
    drivers = (stack.driver, stack.async_driver) if stack.gate is None else stack.gate.drivers(tenant or "")
    session = Session(
        store,
        Codec(serde, inf if stack.objects is None else options["blob_limit"]),
        Memo(options["memo_entries"], options["memo_bytes"]),
        Hooks([*_hooks_of(options, stack, upkeep)]),
        clock=partial(datetime.now, UTC),
        new_token=partial(token_hex, 16),
        new_id=lambda step: str(uuid6(clock_seq=step)),
        driver=drivers[0],
        on_conflict=options["on_conflict"],
        owner=options["owner"],
        tenant=tenant,
        state_version=stack.upgrades.version,
        ephemeral=frozenset(options["ephemeral"]),
    )
    return Engine(session, drivers[1])


def _hooks_of(options: SaverOptions, stack: Stack, upkeep: Hook | None) -> Iterator[Hook]:
    """Yield the hooks in order. Each tenant has its own, because features remember threads by id."""
    yield from options["extra_hooks"]
    # The claim of a thread comes first, so that no other run changes the values that the run reads afterwards.
    claims = RunClaims(
        options["plain_resume"], options["on_busy"], options["busy_timeout"], options["on_unfinished"], stack.drain
    )
    yield claims
    if options["recoverable"]:
        yield Marks(claims.keeper)
    yield from (OwnerHook(), ApprovalHook())
    yield Recorder(PACKAGE_VERSIONS, options["graph_version"], options["on_drift"], options["provenance"])
    yield from (LabelHook(), NoteHook(), ArrivalHook(), LedgerHook(), ArchiveHook(), ItemHook())
    yield from (MovedHook(), CopyHook())
    if removed := options["archive_removed"]:
        yield ArchiveRule(None if removed is True else frozenset(removed))
    if upkeep is not None:
        yield upkeep
    if stack.files is not None:
        yield stack.files
    if stack.upgrades.steps:
        yield UpgradeHook(stack.upgrades)
