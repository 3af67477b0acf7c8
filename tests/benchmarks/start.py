"""Measure 19, `start`: the processor time of `keel` commands on a small store.

It is the time of the whole process, with compiled modules, as pip installs them. It is compared with `import
langgraph.checkpoint.base`, which every saver needs.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from .graphs import chat_graph, take_turn
from .plan import Plan
from .report import Row
from .sqlite import url_of
from .timing import interleaved

BASE = ("-c", "import langgraph.checkpoint.base")
_KEEL = ("-c", "from langgraph_keel.cli import main; main()")


def _seconds() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(words: Sequence[str], compiled: Path) -> float:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(compiled)
    before = _seconds()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=env)
    return _seconds() - before


def measure(plan: Plan) -> list[Row]:
    directory = plan.directory("start")
    with plan.pair.ours.open(directory) as saver:
        graph = chat_graph(saver)
        for thread in ("a", "b", "c"):
            for turn in range(3):
                take_turn(graph, thread, 2 * turn)
    store = ("--url", url_of(directory))
    commands = {
        "import langgraph_keel": ("-c", "import langgraph_keel"),
        "keel --version": (*_KEEL, "--version"),
        "keel --help": (*_KEEL, "--help"),
        "keel threads": (*_KEEL, "threads", *store),
        "keel history": (*_KEEL, "history", "a", *store),
        "keel timeline": (*_KEEL, "timeline", "a", *store),
    }
    compiled = plan.directory("compiled")
    runs = {name: partial(_run, words, compiled) for name, words in {"base": BASE, **commands}.items()}
    took = interleaved(plan.rounds(9), runs)
    return [
        Row(
            "start",
            f"{name}, processor time; compared with import langgraph.checkpoint.base",
            took["base"],
            took[name],
            "ms",
            plan.target(name),
            took.spread(name, "base"),
        )
        for name in commands
    ]
