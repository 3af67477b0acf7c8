"""The command line: `python -m tests.benchmarks --help`."""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from . import (
    cells,
    chat,
    diff,
    footprint,
    fork,
    growth,
    items,
    ledger,
    lists,
    log,
    marks,
    memory,
    provenance,
    prune,
    requests,
    service,
    start,
    tenants,
    threads,
    tiered,
    travel,
    turns,
    vectors,
)
from .graphs import SEED
from .plan import Plan, work_directory
from .profile import SUBJECTS, profile
from .report import TAIL, Row, markdown, show
from .savers import PAIRS
from .shapes import SHAPES

MEASURES = {
    "chat": chat.measure,
    "cells": cells.measure,
    "turns": turns.measure,
    "service": service.measure,
    "processes": service.measure_processes,
    "growth": growth.measure,
    "bytes": growth.measure_bytes,
    "fork": fork.measure,
    "prune": prune.measure,
    "threads": threads.measure,
    "lists": lists.measure,
    "tenants": tenants.measure,
    "memory": memory.measure,
    "requests": requests.measure,
    "footprint": footprint.measure,
    "log": log.measure,
    "ledger": ledger.measure,
    "provenance": provenance.measure,
    "marks": marks.measure,
    "diff": diff.measure,
    "travel": travel.measure,
    "start": start.measure,
    "hits": tiered.measure,
    "vectors": vectors.measure,
    "items": items.measure,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--messages", type=int, default=1000, metavar="N", help="messages in a chat (1000)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MEASURES,
        metavar="NAME",
        help=f"{', '.join(MEASURES)}; default: all of the backend",
    )
    parser.add_argument("--backend", choices=PAIRS, default="sqlite")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, metavar="NAME", help=f"of cells: {', '.join(SHAPES)}")
    parser.add_argument("--seed", default="1", help="seed of all generated texts (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument(
        "--gate",
        type=Path,
        metavar="FILE",
        help="exit with 1 if a cell is slower than LangGraph's, or grows faster than its target, and was not in FILE",
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a tenth of the steps and threads")
    parser.add_argument("--calibrate", action="store_true", help="compare LangGraph's saver with itself: the noise")
    parser.add_argument("--dir", metavar="DIR", help="directory for temporary databases (/var/tmp)")
    parser.add_argument("--profile", choices=SUBJECTS, metavar="NAME", help=", ".join(SUBJECTS))
    options = parser.parse_args()
    has = PAIRS[options.backend].measures
    options.only = options.only or has
    if others := set(options.only) - set(has):
        parser.error(f"{options.backend} has no {', '.join(sorted(others))}: its measures are {', '.join(has)}")
    return options


def run(plan: Plan, names: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for name in (name for name in MEASURES if name in names):
        start = perf_counter()
        try:
            rows += MEASURES[name](plan)
        except Exception:  # continue with the other measures
            traceback.print_exc()
        print(f"{name}: {perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    options = arguments()
    os.environ[SEED] = options.seed
    pair = PAIRS[options.backend]
    with work_directory(options.dir) as root, pair.serve(Path(root)) as server:
        shapes = tuple(SHAPES[name] for name in options.shapes or ())
        plan = Plan(pair, Path(root), options.messages, options.quick, options.calibrate, shapes)
        if options.profile:
            return profile(plan, options.profile)
        rows = run(plan, options.only)
    title = f"Keel compared with LangGraph's savers, {options.messages} messages, {server or options.backend}"
    show(rows, title)
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps([row.as_json() for row in rows], indent=1))
    if options.gate and (worse := slower(rows, json.loads(options.gate.read_text()))):
        sys.exit("slower than LangGraph's saver or the target, and was not before: " + "; ".join(worse))


def slower(rows: Sequence[Row], before: Sequence[dict[str, Any]]) -> list[str]:
    """Return the medians that are too slow, but were not in an earlier run (of `--json`)."""
    level = {row["measure"] for row in before if row.get("slower") is False and TAIL not in row["measure"]}
    return [f"{row.measure}: {row.ratio or row.ours:.2f}" for row in rows if row.measure in level and row.slower]


if __name__ == "__main__":
    main()
