"""Search in collections: by meaning, by words, or by both with weights.

An index stays open between searches, and sees what the processes of jobs have written.
"""

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from penstock.apps.indexing import shapes
from penstock.apps.indexing.places import Places
from penstock.apps.indexing.settings import Settings
from penstock.apps.kit import Indexes, LazyEmbedder, Problem

if TYPE_CHECKING:
    from penstock.vectors import Hit, Index, Where

MODES = {"vector": "vector", "semantic": "vector", "bm25": "bm25", "hybrid": "hybrid"}
KINDS = ("doc", "code", "test")
_DEPTH = 5
_LEAST_DEPTH = 50
_SMOOTHING = 60
"""The usual constant of reciprocal rank fusion: it flattens the lead of the first ranks."""
_WORD = re.compile(r"\w+")


class Searcher:
    """Answers queries, in any number of threads."""

    def __init__(self, settings: Settings, places: Places) -> None:
        self._places = places
        self._indexes = Indexes(LazyEmbedder(settings.embedder), vectors=settings.vectors)
        self.close = self._indexes.close

    def search(self, question: shapes.Question) -> shapes.Results:
        """Return the best chunks for a query."""
        began = time.perf_counter()
        mode = MODES.get(question.mode.lower())
        if mode is None:
            raise Problem(
                400,
                f"mode: {question.mode!r} is unknown; choose from {', '.join(MODES)}. This "
                "server has no knowledge graph",
                field="mode",
            )
        index = self.index(question.collection)
        scored = [] if index is None else self._ranked(index, question, mode)
        best = scored[: question.top_k]
        return shapes.Results(
            results=[_result(question, *one) for one in best],
            query_time_ms=round((time.perf_counter() - began) * 1_000, 3),
            total_results=len(best),
        )

    def _ranked(
        self, index: "Index", question: shapes.Question, mode: str
    ) -> list[tuple[float, float, float, "Hit"]]:
        """Return the hits, best first: the score, the shares of both searches in it, the hit."""
        shares = {"vector": (1.0, 0.0), "bm25": (0.0, 1.0)}
        by_meaning, by_words = shares.get(mode, (question.alpha, 1 - question.alpha))
        wheres = list(wheres_of(question))
        near = self._near(index, question, wheres) if by_meaning else []
        words = self._with_words(index, question, wheres) if by_words else []
        hits = {hit.id: hit for hit in (*words, *near)}
        meaning = {hit.id: (n, hit.score) for n, hit in enumerate(near, 1)}
        wording = {hit.id: (n, hit.score) for n, hit in enumerate(words, 1)}
        return sorted(
            (_scored(hit, meaning, wording, by_meaning, by_words) for hit in hits.values()),
            key=lambda one: (-one[0], one[3].id),
        )

    def _near(
        self, index: "Index", question: shapes.Question, wheres: Sequence["Where"]
    ) -> list["Hit"]:
        vector = self._indexes.embedder.embed([question.query])[0]
        found = [
            hit
            for where in wheres
            for hit in index.search(vector, k=_deep(question), where=where, mode="vector")
            if hit.score >= question.similarity_threshold
        ]
        return _merged(found)

    def _with_words(
        self, index: "Index", question: shapes.Question, wheres: Sequence["Where"]
    ) -> list["Hit"]:
        return _merged(
            [
                hit
                for where in wheres
                for hit in index.search(
                    text=question.query, k=_deep(question), where=where, mode="bm25"
                )
            ]
        )

    def index(self, collection: str) -> "Index | None":
        """Return the open index of a collection; None before anything was indexed into it."""
        folder = self._places.collection(collection)
        return self._indexes.of(folder) if folder.is_dir() else None


def wheres_of(question: shapes.Question) -> Iterator["Where"]:
    """Yield the filters of a query: each of its paths is a separate search."""
    from penstock.apps.indexing.selection import LANGUAGE_NAMES
    from penstock.vectors import Where

    types: tuple[str, ...] = ()
    if question.source_types or question.languages:
        kinds = [kind.lower() for kind in question.source_types or KINDS]
        languages = [one.lower() for one in question.languages or (*LANGUAGE_NAMES, "markdown", "")]
        types = tuple(f"{kind}:{language}" for kind in kinds for language in languages)
    for path in question.file_paths or ("",):
        if not path:
            yield Where(types=types)
        else:
            yield Where(types=types, glob=path if path.startswith(("/", "*")) else f"*/{path}")


def _deep(question: shapes.Question) -> int:
    """Return how many hits to fetch: the common ones may rank lower in each search."""
    return max(_DEPTH * question.top_k, _LEAST_DEPTH)


def _merged(hits: list["Hit"]) -> list["Hit"]:
    """Return the hits of several searches as one ranking."""
    unique = {hit.id: hit for hit in hits}
    return sorted(unique.values(), key=lambda hit: (-hit.score, hit.id))


def _scored(
    hit: "Hit",
    meaning: dict[str, tuple[int, float]],
    wording: dict[str, tuple[int, float]],
    by_meaning: float,
    by_words: float,
) -> tuple[float, float, float, "Hit"]:
    """Return a hit with its score: its own in one search, weighted reciprocal ranks in both.

    The first hit of both searches scores 1. A BM25 weight is unbounded, and scaled below 1.
    """
    near, worded = meaning.get(hit.id), wording.get(hit.id)

    hit = replace(
        hit,
        vector_score=None if near is None else near[1],
        bm25_score=None if worded is None else worded[1],
    )
    if not by_words:
        return max(0.0, hit.score), 1.0, 0.0, hit
    if not by_meaning:
        return max(0.0, hit.score / (1 + hit.score)), 0.0, 1.0, hit
    first = by_meaning * (1 + _SMOOTHING) / (_SMOOTHING + near[0]) if near else 0.0
    second = by_words * (1 + _SMOOTHING) / (_SMOOTHING + worded[0]) if worded else 0.0
    return first + second, first, second, hit


def _result(
    question: shapes.Question, score: float, by_meaning: float, by_words: float, hit: "Hit"
) -> shapes.Result:
    kind, _, language = hit.type.partition(":")
    explanation: shapes.Ranking | UnsetType = UNSET
    if question.explain:
        explanation = _explained(question, hit, by_meaning, by_words)
    return shapes.Result(
        text=hit.text,
        source=hit.path,
        score=score,
        chunk_id=hit.id,
        vector_score=hit.vector_score,
        bm25_score=hit.bm25_score,
        source_type=kind,
        language=language or None,
        metadata=dict(hit.metadata),
        explanation=explanation,
    )


def _explained(
    question: shapes.Question, hit: "Hit", by_meaning: float, by_words: float
) -> shapes.Ranking:
    words = dict.fromkeys(_WORD.findall(question.query.lower()))
    there = set(_WORD.findall(f"{hit.title} {hit.text}".lower()))
    matched = [word for word in words if word in there]
    reasons = []
    if hit.vector_score is not None:
        reasons.append(f"its meaning is near (cosine {hit.vector_score:.2f})")
    if hit.bm25_score is not None:
        reasons.append(f"it has words of the question (bm25 {hit.bm25_score:.2f})")
    return shapes.Ranking(
        reason=" and ".join(reasons),
        matched_terms=matched,
        fusion={"vector": by_meaning, "bm25": by_words},
    )
