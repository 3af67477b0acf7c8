"""Predictable embeddings that record their calls, and a store used by one face."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from langgraph_keel import KeelSaver
from langgraph_keel.store.keel_store import KeelStore

DIMS = 16


def vector_of(text: str, dims: int = DIMS) -> list[float]:
    """Return a vector that is unique to the text."""
    seed = int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())
    found: list[float] = np.random.default_rng(seed).standard_normal(dims).tolist()
    return found


def cosine(one: str, other: str, dims: int = DIMS) -> float:
    """Return the score that a search should compute for two texts."""
    a, b = np.array(vector_of(one, dims)), np.array(vector_of(other, dims))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


class Recorded(Embeddings):
    """Embeds by `vector_of`; fails if a text contains "poison"."""

    def __init__(self, dims: int = DIMS, model: str = "recorded") -> None:
        self.dims, self.model = dims, model
        self.calls: list[list[str]] = []
        self.queries: list[str] = []
        self.awaited = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls.append([*texts])
        found = []
        for text in texts:
            if "poison" in text:
                raise RuntimeError("the model is down")
            found.append(vector_of(text, self.dims))
        return found

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        return vector_of(text, self.dims)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.awaited += 1
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        self.awaited += 1
        return self.embed_query(text)


class Shelf:
    """A store of a saver, by one of its faces."""

    def __init__(self, saver: KeelSaver, face: str = "sync", fields: Sequence[str] = ("text",), **index: Any) -> None:
        self.embed = index.setdefault("embed", Recorded())
        config: Any = {"dims": DIMS, "fields": [*fields], **index}
        self.store: KeelStore = saver.store(index=config)
        self.face = face

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        if self.face == "sync":
            return getattr(self.store, name)(*args, **options)
        return asyncio.run(getattr(self.store, f"a{name}")(*args, **options))

    def put(self, key: str, text: str | None, *, place: tuple[str, ...] = ("a", "b"), **more: Any) -> None:
        index = more.pop("index", None)
        self.call("put", place, key, {"text": text, **more}, index=index)

    def search(self, query: str | None, *, place: tuple[str, ...] = ("a", "b"), **options: Any) -> list[Any]:
        found: list[Any] = self.call("search", place, query=query, **options)
        return found

    def keys(self, query: str | None, **options: Any) -> list[str]:
        return [item.key for item in self.search(query, **options)]
