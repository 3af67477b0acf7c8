"""`saver.runs`: runs of graphs on a thread that others run on, too."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.plan import Plan


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

        Each time it waits until the thread has nothing left to do, and reads it anew. Runs that have lost wait in line,
        those of other processes too, in the order in which they lost. The input is given again unless it is in the
        thread (`CheckpointConflict.input_again`): then the run does what is left to do, and returns the state. What the
        refused run has done by then is done again; a `ToolCache` answers its calls of tools.

        No trip more than `graph.invoke` if nothing is refused; else about two a look, and five for the place in line.

        Args:
            graph: A graph that is compiled with this saver.
            given: What to invoke it with.
            config: The config, which names the thread.
            attempts: How often it is invoked at most.
            timeout: Seconds that it waits before each further attempt at most.
            **options: As for `graph.invoke`.

        Returns:
            What the graph returns.

        Raises:
            CheckpointConflict: The last attempt was refused, too; or the thread has not come to its end in time; or it
                waits for a person; or only the thread can tell whether it has the input (`may_be_stored`).
            InvalidInput: The graph runs on another saver, or `attempts` or `timeout` cannot be meant so.
        """
        from langgraph_keel.runs.retry import invoke_with_retry

        return invoke_with_retry(self.engine, graph, given, config, attempts, timeout, options)

    invoke_with_retry, ainvoke_with_retry = faces(_invoke_with_retry)
