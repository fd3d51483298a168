"""Shared by the tests of `penstock.vectors`."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.vectors import LANGUAGES_BY_SUFFIX, Chunk, Index, Item, Vectors, open_index
from penstock.vectors.chunks import count_tokens
from penstock.vectors.embedders import normalised
from tests.environment import SOON

DIMENSIONS = 32
LONG = SOON
"""Seconds that a loaded machine may need for a short operation."""
SUFFIXES = sorted({*LANGUAGES_BY_SUFFIX, ".md", ".txt"})


class HashingEmbedder:
    """Embeds each word as one dimension, so that texts with the same words are near."""

    name = "hashing"
    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
                vectors[row, digest[0] % DIMENSIONS] += 1 if digest[1] % 2 else -1
        return normalised(vectors)

    def close(self) -> None:
        """Do nothing."""


EMBEDDER = HashingEmbedder()


def vector(text: str) -> Vectors:
    row: Vectors = EMBEDDER.embed([text])[0]
    return row


def item(name: str, text: str = "", path: str = "", type: str = "", **metadata: object) -> Item:  # noqa: A002 - as the field
    return Item(name, vector(text or name), text or name, path or name, type, metadata=metadata)


def _lines_with_text(text: str) -> set[int]:
    return {number for number, line in enumerate(text.split("\n"), 1) if line.strip()}


def check_chunks(chunks: list[Chunk], text: str, size: int) -> None:
    """Check what every chunker guarantees."""
    lines = text.split("\n")
    covered: set[int] = set()
    seen = ""
    for chunk in chunks:
        span = "\n".join(lines[chunk.start_line - 1 : chunk.end_line])
        assert chunk.text.strip()
        assert chunk.text in span
        assert count_tokens(chunk.text) <= size
        covered |= set(range(chunk.start_line, chunk.end_line + 1))
        seen += chunk.text
    assert _lines_with_text(text) - covered == set()
    assert [chunk.start_line for chunk in chunks] == sorted(chunk.start_line for chunk in chunks)
    assert {each for each in text if not each.isspace()} <= set(seen)


def opened(folder: Path, vectors: str = "faiss") -> Index:
    return open_index(folder, DIMENSIONS, vectors=vectors)


def near(index: Index, text: str = "red fox", k: int = 100) -> list[str]:
    return [hit.id for hit in index.search(vector(text), k=k, mode="vector")]
