"""Search by meaning: embeddings of texts, and cosines of vectors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from math import inf
from threading import Lock
from typing import Any, TypeAlias

from langchain_core.embeddings import Embeddings
from langgraph.store.base import ensure_embeddings

from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import InvalidInput

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as error:
    needed = "pip install 'numpy>=1.26' (Keel's extra 'search')"
    raise InvalidInput(f"search by meaning needs the package numpy: {needed}") from error

Vectors: TypeAlias = "NDArray[np.float32]"
MOST_TEXTS = 1000
"""Maximum number of texts whose vectors an embedder caches."""


def digest_of(text: str) -> bytes:
    """Return the hash of a text, the key of its cached vector."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def unit_rows(vectors: Vectors) -> Vectors:
    """Return vectors scaled to length 1; rows of zeros are unchanged."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    rows: Vectors = (vectors / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)
    return rows


def cosines(vectors: Sequence[Vectors], query: Vectors) -> Vectors:
    """Return the cosine of each vector with the vector of a query."""
    scores: Vectors = unit_rows(np.stack(vectors)) @ unit_rows(query[None])[0]
    return scores


def best_of(scores: Sequence[float] | Vectors, most: int) -> list[int]:
    """Return the positions of the highest scores, best first, in a stable order."""
    scores = np.asarray(scores, np.float32)
    positions = np.arange(len(scores))
    if most < len(scores):
        positions = np.flatnonzero(scores >= np.partition(scores, -most)[-most])
    order: list[int] = positions[np.argsort(-scores[positions], kind="stable")][:most].tolist()
    return order


def pack_rows(vectors: Sequence[Vectors]) -> bytes:
    """Return vectors in their stored form: consecutive little-endian float32 numbers."""
    return np.concatenate(vectors).astype("<f4").tobytes()


def unpack_rows(data: bytes, count: int, dims: int) -> Vectors:
    """Return stored vectors, one per row; `ValueError` if the size does not match."""
    return np.frombuffer(data, "<f4").reshape(count, dims)


class Embedder:
    """Embeds texts, equal ones once, and caches the vectors of the last thousand.

    Args:
        embed: As in LangGraph's stores: `Embeddings`, a blocking or asynchronous function, or the name of a model.
        dims: The required number of dimensions; 0 for any number.
        most: Maximum number of cached texts.

    Raises:
        InvalidInput: If `embed` cannot embed texts.
    """

    def __init__(self, embed: Any, dims: int = 0, most: int = MOST_TEXTS) -> None:
        try:
            if not (isinstance(embed, str | Embeddings) or callable(embed)):
                raise ValueError("use Embeddings, a function of a list of texts, or the name of a model")
            self.embeddings = ensure_embeddings(embed)
        except (ValueError, ImportError) as error:
            raise InvalidInput(f"embed={embed!r:.200} cannot embed texts: {error}") from error
        self.dims = dims
        self._most = most
        self._known: OrderedDict[tuple[bytes, bool], Vectors] = OrderedDict()

    @property
    def model(self) -> str:
        """The name of the model, or of the embedding's class or function."""
        held = self.embeddings
        source = getattr(held, "func", None) or getattr(held, "afunc", None) or type(held)
        names = [getattr(held, name, None) for name in ("model", "model_name", "model_id")]
        names.append(getattr(source, "__name__", None))
        return next((name for name in names if isinstance(name, str) and name), type(source).__name__)

    def knows(self, digest: bytes) -> bool:
        """Return whether the vector of a text is cached, by the hash of the text."""
        return (digest, False) in self._known

    def remember(self, digest: bytes, vector: Vectors, is_query: bool = False) -> None:
        """Cache the vector of a text, by the hash of the text."""
        # Each step is atomic in the interpreter, so that no lock is needed.
        self._known.pop((digest, is_query), None)
        self._known[digest, is_query] = vector
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def embed(self, texts: Iterable[str], is_query: bool = False) -> Plan[Mapping[str, Vectors]]:
        """Return the vectors of texts, by text.

        One call for all texts that are not cached; for queries, one call each.

        Raises:
            InvalidInput: If the embedding does not return a vector of finite numbers for each text.
        """
        digests = {text: digest_of(text) for text in texts}
        found = {text: self._known.get((digest, is_query)) for text, digest in digests.items()}
        missing = [text for text, vector in found.items() if vector is None]
        made: list[Any] = []
        if is_query:
            for text in missing:
                query, aquery = self.embeddings.embed_query, self.embeddings.aembed_query
                made.append((yield Call(partial(query, text), partial(aquery, text))))
        elif missing:
            documents, adocuments = self.embeddings.embed_documents, self.embeddings.aembed_documents
            made = yield Call(partial(documents, missing), partial(adocuments, missing))
        known = {text: vector for text, vector in found.items() if vector is not None}
        if missing:
            known |= zip(missing, self._check(made, len(missing)), strict=True)
        for text, vector in known.items():
            self.remember(digests[text], vector, is_query)
        return known

    def _check(self, made: Sequence[Any], count: int) -> Iterator[Vectors]:
        try:
            with np.errstate(over="ignore"):
                vectors = np.array(made, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the embedding returns vectors that are not lists of numbers: {error}") from error
        shape = vectors.shape
        if len(shape) != 2 or shape[0] != count or shape[1] != (self.dims or shape[1]):
            found = " x ".join(map(str, shape))
            wanted = f"{count} x {self.dims or 'any'}"
            raise InvalidInput(f"the embedding returns {found} numbers for {count} texts: {wanted} are needed")
        if not np.isfinite(vectors).all():
            raise InvalidInput("the embedding returns numbers that are not finite")
        self.dims = shape[1]
        return (row.copy() for row in vectors)  # a view would keep all of them in memory


_embedders: OrderedDict[int, tuple[Any, Embedder]] = OrderedDict()


def embedder_of(embed: Any) -> Embedder:
    """Return the embedder of an embedding object or function; the last four are kept.

    An embedder caches the vectors of 10,000 texts.
    """
    _, found = _embedders.pop(id(embed), (None, None))
    found = found or Embedder(embed, most=10 * MOST_TEXTS)
    _embedders[id(embed)] = embed, found  # the reference keeps the id unique
    while len(_embedders) > 4:
        _embedders.popitem(last=False)
    return found


class VectorCache:
    """Cached vectors by cell key and token, as unit rows of one matrix."""

    def __init__(self, dims: int, memory: int) -> None:
        self._most = max(memory // (4 * dims), 1)
        self._rows: Vectors = np.zeros((0, dims), np.float32)
        self._free: list[int] = []
        self._held: dict[str, tuple[str, list[int]]] = {}
        self._last: tuple[list[str], list[str], Any, Any] | None = None  # keys and tokens, their counts and rows
        self._lock = Lock()

    def add(self, found: Mapping[str, tuple[str, Vectors]], needed: Collection[str]) -> None:
        """Cache the vectors of cells; drop the oldest, except `needed` keys, if full."""
        with self._lock:
            found = {key: new for key, new in found.items() if self._held.get(key, ("",))[0] != new[0]}
            if not found:
                return
            self._last = None
            self._free += [row for key in found for row in self._held.pop(key, ("", []))[1]]
            size, have = sum(len(vectors) for _, vectors in found.values()), len(self._rows)
            if size > len(self._free) and have < self._most:
                grown = min(self._most, max(2 * have, have + size))
                self._free += range(have, grown)
                self._rows = np.concatenate([self._rows, np.zeros((grown - have, self._rows.shape[1]), np.float32)])
            if size > len(self._free) or len(self._held) >= self._most:
                for key in [key for key in self._held if key not in needed][: max(size, len(self._held) // 8)]:
                    self._free += self._held.pop(key)[1]
            for key, (token, vectors) in found.items():
                if len(vectors) <= len(self._free) and len(self._held) < self._most:
                    rows = [self._free.pop() for _ in vectors]
                    self._rows[rows] = vectors
                    self._held[key] = token, rows

    def rank(
        self, listed: Mapping[str, str], apart: Mapping[str, tuple[str, float]], query: Vectors, most: int
    ) -> tuple[list[str], list[tuple[str, float]]]:
        """Return the keys without cached vectors, or else the best keys and scores.

        Args:
            listed: The tokens of the cells, by key.
            apart: The tokens and scores of cells that are not cached, by key.
            query: The vector to compare with, of length 1.
            most: Maximum number of keys to return. Those without vectors come last, with the score `-inf`.
        """
        keys, tokens, none, beside = [*listed], [*listed.values()], list[int](), list[int]()
        with self._lock:
            # Finding the rows of 50,000 cells takes several times as long as comparing their vectors.
            if self._last is None or self._last[:2] != (keys, tokens):
                held = [
                    known[1] if known is not None and known[0] == token else none
                    for known, token in zip(map(self._held.get, keys), tokens, strict=True)
                ]
                beside = [place for place, rows in enumerate(held) if rows is none]
                missing = [key for place in beside if apart.get(key := keys[place], ("",))[0] != listed[key]]
                if missing:
                    return missing, []
                sizes = np.array([*map(len, held)], np.intp)
                rows = np.array([*chain.from_iterable(held)], np.intp)
                self._last = None if beside else (keys, tokens, sizes, rows)
            else:
                _, _, sizes, rows = self._last
            is_few = 4 * len(rows) < len(self._rows)
            products = self._rows[rows] @ query if is_few else (self._rows @ query)[rows]
        scores = np.full(len(keys), -inf, np.float32)
        if len(rows):
            starts = np.cumsum(sizes) - sizes
            scores[sizes > 0] = np.maximum.reduceat(products, starts[sizes > 0])
        for place in beside:
            scores[place] = apart[keys[place]][1]
        return [], [(keys[place], float(scores[place])) for place in best_of(scores, most)]
