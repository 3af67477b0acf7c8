"""Graphs in graphs that call models: as nodes, called in nodes, stored and not."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START
from provenance_runs import ASK, Scene, a_run, both, calling, graph_of


def inner(scene: Scene, **options: Any) -> Any:
    return graph_of(("x", calling(scene.model())), ("y", calling(scene.model()))).compile(**options)


async def around(scene: Scene, node: Any) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("sub", node), ("b", calling(scene.model())))
    await scene.run(graph)
    await scene.run(graph)


@a_run
async def subgraph(scene: Scene) -> None:
    await around(scene, inner(scene))


@a_run
async def subgraph_with_a_memory(scene: Scene) -> None:
    await around(scene, inner(scene, checkpointer=True))


@a_run
async def subgraph_not_stored(scene: Scene) -> None:
    if scene.durability == "sync":  # LangGraph 1.2 fails: its loop waits for a put that there is none of
        scene.durability = "async"
    await around(scene, inner(scene, checkpointer=False))


@a_run
async def subgraphs_in_subgraphs(scene: Scene) -> None:
    model = calling(scene.model())
    await around(scene, graph_of(("x", model), ("y", inner(scene)), ("z", model)).compile())


@a_run
async def subgraph_called_in_a_node(scene: Scene) -> None:
    sub, model = inner(scene), scene.model()

    def node(state: Any) -> Any:
        said = [model.invoke(ASK), sub.invoke(state), model.invoke(ASK)]
        return {"said": [str(len(said))]}

    async def anode(state: Any) -> Any:
        said = [await model.ainvoke(ASK), await sub.ainvoke(state), await model.ainvoke(ASK)]
        return {"said": [str(len(said))]}

    await around(scene, both(node, anode))


@a_run
async def subgraphs_called_in_one_node(scene: Scene) -> None:
    """LangGraph tells their namespaces apart by a number."""
    subs = inner(scene), inner(scene)

    def node(state: Any) -> Any:
        return {"said": [str(len([sub.invoke(state) for sub in subs]))]}

    async def anode(state: Any) -> Any:
        return {"said": [str(len([await sub.ainvoke(state) for sub in subs]))]}

    await around(scene, both(node, anode))


def piped(scene: Scene) -> Any:
    """A node that is a sequence: its model runs outside of the context of its task."""

    def ask(state: Any) -> Any:
        scene.told.look()
        return ASK

    async def aask(state: Any) -> Any:
        return ask(state)

    def said(answer: Any) -> Any:
        return {"said": [str(answer.content)]}

    return both(ask, aask) | scene.model() | said


@a_run
async def sequences(scene: Scene) -> None:
    await around(scene, piped(scene))


@a_run
async def sequences_in_subgraphs(scene: Scene) -> None:
    inner = graph_of(("x", piped(scene)), ("y", calling(scene.model())), ("z", piped(scene))).compile()
    await around(scene, inner)


@a_run
async def sequences_at_once(scene: Scene) -> None:
    builder = graph_of(("a", piped(scene)))
    for name in ("b", "c"):
        builder.add_node(name, piped(scene))
        builder.add_edge(START, name)
    await scene.run(builder.compile(checkpointer=scene.saver))


@a_run
async def sequences_not_stored(scene: Scene) -> None:
    if scene.durability == "sync":
        scene.durability = "async"
    await around(scene, graph_of(("x", piped(scene))).compile(checkpointer=False))
