"""What a removal would give back, found without removing anything: in pages, so in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from langgraph_keel.core.checkpoints import Checkpoints
from langgraph_keel.core.model import touches
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Entry, Found, Graph, Node, Run
from langgraph_keel.core.removing import Doomed, Survey, live_runs, merged

PAGE = 16
"""Checkpoints whose values are read at once."""


def weigh(core: Checkpoints[Q, R], read: Survey, doom: Doomed) -> Plan[Q, R, tuple[int, int]]:
    """Return how many rows would go, and how many bytes: of headers, writes and rows, as they are stored.

    A trip for each 16 entries that would go. What an earlier removal that was cut off has left is not among it.
    """
    live = live_runs(Graph([left for node in read.graph.nodes if (left := _left(node, doom))], {}, None))
    gone = [node for node in reversed(read.graph.nodes) if node.stamp in doom.gone or node.stamp in doom.ghosts]
    size = sum(len(node.header) for node in gone if node.stamp in doom.gone)
    rows: dict[tuple[str, str, int], int] = {}
    entries = list(_to_read(gone, live))
    for start in range(0, len(entries), PAGE):
        found = yield from core.store.read_values(entries[start : start + PAGE])
        for each in found:
            size += sum(len(batch.body) for batch in each.batches) if each.entry.stamp in doom.gone else 0
            rows.update(_dead(each, live))
    return len(rows), size + sum(rows.values())


def _left(node: Node, doom: Doomed) -> Node | None:
    """Return what is left of an entry; `None` if nothing is."""
    if node.stamp in doom.gone:
        return None
    channels = doom.ghosts.get(node.stamp)
    if channels is None:
        return node
    return replace(node, refs={name: ref for name, ref in node.refs.items() if name in channels})


def _to_read(gone: Sequence[Node], live: Mapping[tuple[str, str], Sequence[Run]]) -> Iterator[Entry]:
    """Yield the entries that go, each only with the channels of which it shows what those before it did not."""
    known = {key: list(runs) for key, runs in live.items()}
    for node in gone:
        refs = {}
        for channel, ref in node.refs.items():
            runs = known.setdefault((node.address.checkpoint_ns, channel), [])
            if not all(_is_within(run, runs) for run in ref.runs):
                refs[channel] = ref
                runs[:] = merged([*runs, *ref.runs])
        yield Entry(node.address, node.parent, node.stamp, node.header, refs, node.run_id)


def _is_within(run: Run, runs: Sequence[Run]) -> bool:
    return any(lo <= run[0] and run[1] <= hi for lo, hi in runs)


def _dead(found: Found, live: Mapping[tuple[str, str], Sequence[Run]]) -> Iterator[tuple[tuple[str, str, int], int]]:
    namespace = found.entry.address.checkpoint_ns
    for channel, rows in found.rows.items():
        shown = live.get((namespace, channel), ())
        for row in rows:
            if not touches(row, shown):
                yield (namespace, channel, row.lo), len(row.body)
