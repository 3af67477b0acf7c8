"""Methods of a saver for runs: ending them before their process ends, and repeating those that were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph_keel.runs.drain import Draining


class DrainMethods(EngineSaver):
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


class RunMethods(Component):
    """`saver.runs`: runs of graphs on a thread that others run on, too."""

    def _invoke_with_retry(
        self,
        /,
        graph: Any,
        given: Any,
        config: RunnableConfig,
        *,
        attempts: int = 5,
        timeout: float = 60.0,
        **options: Any,
    ) -> Plan[Any]:
        """Invoke a graph; if another run on the thread was quicker, invoke it again when that has ended.

        Before each repetition it waits until no step of the thread is left. Refused runs wait in line, those of other
        processes too, in the order of their refusals. The input is given again unless it is in the thread
        (`CheckpointConflict.input_again`): then the run does the steps that are left, and returns the state. Steps of
        the refused run are repeated; a `ToolCache` answers its calls of tools.

        No trip more than `graph.invoke` if nothing is refused; else about two a look, and five for the place in line.

        Args:
            graph: A graph that is compiled with this saver.
            given: What to invoke it with.
            config: The config, which names the thread.
            attempts: How often it is invoked at most.
            timeout: Seconds that it waits before each further attempt at most.
            **options: As for `graph.invoke`.

        Returns:
            The result of the graph.

        Raises:
            CheckpointConflict: The last attempt was refused, too; or the thread has not come to its end in time; or it
                waits for a person; or only the thread can tell whether it has the input (`may_be_stored`).
            InvalidInput: The graph runs on another saver, or `attempts` or `timeout` cannot be meant so.
        """
        from langgraph_keel.runs.retry import invoke_with_retry

        return invoke_with_retry(self.engine, graph, given, config, attempts, timeout, options)

    invoke_with_retry, ainvoke_with_retry = faces(_invoke_with_retry)
