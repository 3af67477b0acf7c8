"""How the runs of a saver end before its process does: `draining`, `drain` and `adrain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph_keel.runs.drain import Draining


class RunMethods(EngineSaver):
    """The methods that end runs."""

    def draining(self, grace: float = 30.0) -> Draining:
        """Return a block in which SIGTERM and SIGINT end all runs of this saver after the steps that they are in.

        Write `with saver.draining():`, and in asyncio `async with saver.draining():`. After the first signal, each run
        raises LangGraph's `GraphDrained` when its step has ended, and a run that begins raises `SaverDraining`. At its
        end, the block waits for the runs, and then does what the signal did before: SIGTERM ends the program
        with status 0, or 1 if runs have not ended (`SystemExit`), SIGINT raises `KeyboardInterrupt`, and a handler of
        the program is called. These two errors do not leave the block then; others do. A second signal does what it
        did before at once. In a running loop, the end of a plain `with` does not wait for asynchronous runs. Blocks
        may be nested, also of several savers: a signal ends the runs of all, and the outermost acts on it.

        With `recoverable=True`, `status` says of the threads that they were drained, and may be continued.

        Args:
            grace: Seconds to wait for the end of the steps. A run that takes longer is logged, and is not stopped.

        Raises:
            InvalidInput: If the saver is a tenant's view, `grace` is no number of seconds, or the block is not entered
                by the main thread.
        """
        from langgraph_keel.runs.drain import Draining

        self._check_drain(grace)
        return Draining(self._engine, self.stack.drain, grace)

    def _drain(self, grace: float = 30.0) -> Plan[tuple[str, ...]]:
        """End all runs of this saver after the steps that they are in, for a program that handles signals itself.

        As `draining` does after a signal; no run begins on this saver from then on. In a running loop, the blocking
        form does not wait for asynchronous runs: await the other one.

        Args:
            grace: Seconds to wait for the end of the steps. A run that takes longer is logged, and is not stopped.

        Returns:
            The threads of the runs that have not ended; empty if all have.

        Raises:
            InvalidInput: If the saver is a tenant's view, or `grace` is no number of seconds.
        """
        from langgraph_keel.runs.drain import drain_runs

        self._check_drain(grace)
        self.stack.drain.reason = self.stack.drain.reason or "drain"
        return drain_runs(self.stack.drain, grace)

    drain, adrain = faces(_drain, on="_engine")

    def _check_drain(self, grace: float) -> None:
        if self.tenant is not None:
            raise InvalidInput(f"this saver is tenant {self.tenant!r}'s: drain the saver that it came from, with all")
        if not isinstance(grace, int | float) or not grace >= 0:
            raise InvalidInput(f"grace must be seconds, not {grace!r}")
