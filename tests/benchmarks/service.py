"""Measures 24 and 25, `service` and `processes`: many short threads, as in a web service.

A thread starts with 10 messages and ends before it has 30. A turn is a `get_tuple` and four pairs of calls: a `put`
that adds a message, and the `put_writes` of the next message. As in LangGraph's loop, they run on a thread pool that is
created for the turn. The last `put_writes` is still pending when the next turn reads, as after an interrupt. Of the
turns in `service`, 30 % start a thread, and 25 % follow a turn of another process on the thread. Both savers take the
same turns. Processor time includes this process and the server's processes that work for the saver. The time of a turn
is the sum of its nine calls.

In `processes`, one to eight processes take turns concurrently, each on its own threads.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from .backend import Backend, Saver
from .child import PROCESSES
from .graphs import chances, history, message
from .plan import Plan
from .report import TAIL, Row
from .steps import Calls, Sequence
from .timing import Clocked, Cost, Meter, Times, interleaved

FIRST, PUTS, TURNS, LIVE = 10, 4, 5, 10
"""Messages of a first put, puts per turn, maximum turns of a thread, and number of threads at the start."""
CALLS = ("first put", "put", "put_writes", "get_tuple", "get_tuple after another process", "turn")
FIRST_CALLS = {
    "nobody": ("get_tuple of a new thread", "first put"),
    "this process": ("get_tuple", "put"),
    "another": ("get_tuple after another process", "put"),
}
"""First two calls of a turn, by the process that took the last turn of the thread."""
PROCESS_COUNTS = (1, 2, 4, 8)
CLOCKS: Mapping[str, Callable[[Cost], float]] = {
    "wall time": lambda cost: cost.wall,
    "processor time": lambda cost: cost.client + cost.server,
    "processor time of the server": lambda cost: cost.server,
}
SECONDS = 0.8
"""Seconds for which the processes take turns in a round."""


def schedule(name: str, another: int) -> Iterator[tuple[str, str]]:
    """Yield the thread of each turn, and who took its last turn: in `another` % it is another process."""
    chosen, turns = chances(name), dict[str, int]()
    for number in count():
        [last] = chosen.choices((*FIRST_CALLS,), (30, 70 - another, another))
        if number < LIVE or last == "nobody" or not turns:
            thread_id, last = f"{name}-{number}", "nobody"
        else:
            thread_id = chosen.choice(list(turns))
        turns[thread_id] = turns.get(thread_id, 0) + (2 if last == "another" else 1)
        if turns[thread_id] >= TURNS - 1:  # the next one could count twice
            del turns[thread_id]
        yield thread_id, last


class Service:
    """Takes turns with one saver, on threads that depend on `name` and the seed of the run."""

    def __init__(self, saver: Saver, name: str, other: Any = None, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self.saver, self.costs = saver, defaultdict[str, list[Cost]](list)
        self._turns, self._other, self._pids = schedule(name, 25 if other else 0), other, pids

    def take_next(self) -> float:
        thread_id, last = next(self._turns)
        if last == "another":
            self._other.send(("take_turn", thread_id, last))
            self._other.recv()
        return self.take_turn(thread_id, last)

    def take_turn(self, thread_id: str, last: str) -> float:
        """Take a turn; return the total seconds of its calls."""
        meter = Meter(self._pids())
        with ThreadPoolExecutor() as pool:
            calls = Calls(self.saver, pool, meter)
            sequence = Sequence(self.saver, thread_id, calls)  # calls get_tuple
            said = sequence.values.get("messages") or history(FIRST - 1)
            for number in range(len(said), len(said) + PUTS):
                said = [*said, message(number)]
                sequence.put({"messages": said, "branch:to:reply": None})
                calls.put_writes(sequence.config, [("messages", [message(number + 1)])])
        names = (*FIRST_CALLS[last], "put_writes", *["put", "put_writes"] * (PUTS - 1))
        for name, cost in zip(names, meter.costs, strict=True):
            self.costs[name].append(cost)
        turn = Cost(*(sum(getattr(cost, clock) for cost in meter.costs) for clock in ("wall", "client", "server")))
        self.costs["turn"].append(turn)
        return turn.wall

    def take_many(self, seconds: float) -> tuple[float, list[float]]:
        """Take turns for a time; return the turns per second, and the seconds of each turn."""
        start, took = perf_counter(), list[float]()
        while perf_counter() < start + seconds:
            took.append(self.take_next())
        return len(took) / (perf_counter() - start), took


def _serve(backend: Backend, directory: Path, name: str, orders: Any) -> None:
    """Call the methods that `orders` requests; runs in its own process."""
    with backend.open(directory) as saver:
        service = Service(saver, name)
        while order := orders.recv():
            orders.send(getattr(service, order[0])(*order[1:]))


@contextmanager
def process(backend: Backend, directory: Path, name: str) -> Iterator[Any]:
    """Another process with a saver of the kind, and the end of a pipe to it."""
    here, there = PROCESSES.Pipe()
    child = PROCESSES.Process(target=_serve, args=(backend, directory, name, there), daemon=True)
    child.start()
    there.close()  # so that a dead child is noticed
    try:
        yield here
    finally:
        if child.is_alive():
            here.send(None)
        child.join(60)


def _opened(plan: Plan, stack: ExitStack, backend: Backend) -> Service:
    directory = plan.directory(f"service-{backend.name}")
    saver = stack.enter_context(backend.open(directory))
    other = stack.enter_context(process(backend, directory, "another"))
    return Service(saver, "service", other, partial(backend.pids, directory))


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        services = {side: _opened(plan, stack, backend) for side, backend in plan.sides.items()}
        for service in services.values():
            for _ in range(LIVE):
                service.take_next()
            service.costs.clear()
        interleaved(plan.rounds(450), {side: service.take_next for side, service in services.items()})
    costs = {name: {side: service.costs[name] for side, service in services.items()} for name in CALLS}
    return [row for name in CALLS for row in _rows(plan, name, costs[name])]


def _rows(plan: Plan, name: str, costs: Mapping[str, list[Cost]]) -> list[Row]:
    rows = []
    for what, clock in CLOCKS.items():
        took = Times({side: [1000 * clock(cost) for cost in taken] for side, taken in costs.items()})
        label = f"{name}, {what}"
        if took["ours"]:  # empty if the backend has no server
            ratio = took.get("theirs"), took["ours"]
            rows.append(Row("service", label, *ratio, "ms", plan.target(label), took.spread()))
        if what == "wall time":
            rows.append(Row("service", f"{label}, {TAIL}", took.tail("theirs"), took.tail("ours"), "ms"))
    return rows


def measure_processes(plan: Plan) -> list[Row]:
    took = defaultdict[str, list[float]](list)

    def take_turns(name: str, workers: list[Any]) -> float:
        for worker in workers:
            worker.send(("take_many", SECONDS))
        rates, turns = zip(*(worker.recv() for worker in workers), strict=True)
        took[name] += (1000 * seconds for each in turns for seconds in each)
        return 1 / float(sum(rates))

    with ExitStack() as stack:
        runs: dict[str, Clocked] = {}
        for side, backend in plan.sides.items():
            workers = _workers(plan, stack, backend)
            runs |= {f"{side} {n}": partial(take_turns, f"{side} {n}", workers[:n]) for n in PROCESS_COUNTS}
        each = interleaved(plan.rounds(9), runs)
    rows, tails = [], Times(took)
    for number in PROCESS_COUNTS:
        theirs, ours, label = f"theirs {number}", f"ours {number}", f"{number} process{'es' * (number > 1)}"
        rate = (1000 / each[theirs] if theirs in each else None), 1000 / each[ours]
        rows += [
            Row("processes", f"{label}: turns", *rate, "/s", plan.target("processes"), each.spread(theirs, ours)),
            Row("processes", f"{label}: a turn, {TAIL}", tails.tail(theirs), tails.tail(ours), "ms"),
        ]
    return rows


def _workers(plan: Plan, stack: ExitStack, backend: Backend) -> list[Any]:
    directory = plan.directory(f"processes-{backend.name}")
    with backend.open(directory) as saver:
        Service(saver, "first").take_next()  # creates the tables: LangGraph's savers cannot do so concurrently
    names = [f"process-{number}" for number in range(max(PROCESS_COUNTS))]
    return [stack.enter_context(process(backend, directory, name)) for name in names]
