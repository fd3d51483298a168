"""What the tests of `penstock.vectors` share."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np

from penstock.vectors import Item
from penstock.vectors.embedding import Vectors, normalised

DIMENSIONS = 32
LONG = 30.0
"""Seconds that a loaded machine may need for what takes a moment."""


class HashingEmbedder:
    """For tests only: words as places in a vector, so that texts with equal words are near."""

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
