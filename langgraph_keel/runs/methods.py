"""Methods of a saver for runs: draining them, and retrying refused ones."""

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
    """The methods that drain runs."""

    def draining(self, grace: float = 30.0) -> Draining:
        """Return a block in which SIGTERM and SIGINT end this saver's runs.

        Write `with saver.draining():`, and in asyncio `async with saver.draining():`. After the first signal, each run
        raises LangGraph's `GraphDrained` at the end of its current step, and a new run raises `SaverDraining`. At its
        end, the block waits for the runs, and then performs the signal's usual action: SIGTERM ends the program with
        status 0, or 1 if runs have not ended (`SystemExit`), SIGINT raises `KeyboardInterrupt`, and a handler of the
        program is called. The block then suppresses `GraphDrained` and `SaverDraining`, but no other errors. A second
        signal performs its usual action immediately. In a running loop, a plain `with` does not wait for asynchronous
        runs. Blocks may be nested, also of several savers: a signal ends the runs of all, and the outermost block acts
        on it.

        With `recoverable=True`, `status` reports the threads as drained, and workers continue them.

        Args:
            grace: Seconds to wait for the end of the steps. A run that takes longer is logged, but not stopped.

        Raises:
            InvalidInput: If the saver is a tenant's view, `grace` is not a number of seconds, or the block is not
                entered in the main thread.
        """
        from langgraph_keel.runs.drain import Draining

        self._check_drain(grace)
        return Draining(self._engine, self.stack.drain, grace)

    def _drain(self, grace: float = 30.0) -> Plan[tuple[str, ...]]:
        """End this saver's runs after their steps, if your program handles signals.

        Works like `draining` after a signal; from then on, no run can start on this saver. In a running loop, the
        blocking form does not wait for asynchronous runs: await the other one.

        Args:
            grace: Seconds to wait for the end of the steps. A run that takes longer is logged, but not stopped.

        Returns:
            The threads of the runs that have not ended; empty if all have.

        Raises:
            InvalidInput: If the saver is a tenant's view, or `grace` is not a number of seconds.
        """
        from langgraph_keel.runs.drain import drain_runs

        self._check_drain(grace)
        self.stack.drain.reason = self.stack.drain.reason or "drain"
        return drain_runs(self.stack.drain, grace)

    drain, adrain = faces(_drain, on="_engine")

    def _check_drain(self, grace: float) -> None:
        if self.tenant is not None:
            raise InvalidInput(f"this saver is a view of tenant {self.tenant!r}: drain the saver it was made from")
        if not isinstance(grace, int | float) or not grace >= 0:
            raise InvalidInput(f"grace must be a number of seconds, not {grace!r}")


class RunMethods(Component):
    """`saver.runs`: runs on threads that are shared with other runs."""

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
        """Invoke a graph, again if another run on the thread was faster.

        Before each retry it waits until the thread has no steps left. Refused runs, also of other processes, wait in
        line in the order of their refusals. The input is passed again unless the thread already contains it
        (`CheckpointConflict.input_again`): then the run executes the remaining steps, and returns the state. Steps of
        the refused run are repeated; a `ToolCache` returns the stored results of its tool calls.

        Costs no more trips than `graph.invoke` if nothing is refused; else about two per poll, and five for the place
        in line.

        Args:
            graph: A graph that is compiled with this saver.
            given: The input.
            config: The config, with the thread's id.
            attempts: Maximum number of attempts.
            timeout: Maximum wait before each retry, in seconds.
            **options: Passed to `graph.invoke`.

        Returns:
            The result of the graph.

        Raises:
            CheckpointConflict: If the last attempt was refused, too, the thread has not finished in time, it waits for
                a person, or only a look at the thread shows whether it contains the input (`may_be_stored`).
            InvalidInput: If the graph has another saver, or `attempts` or `timeout` is invalid.
        """
        from langgraph_keel.runs.retry import invoke_with_retry

        return invoke_with_retry(self.engine, graph, given, config, attempts, timeout, options)

    invoke_with_retry, ainvoke_with_retry = faces(_invoke_with_retry)
