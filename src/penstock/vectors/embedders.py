"""Embedders: the protocol, and the embedder that a configuration names."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ConfigurationError

Vectors: TypeAlias = NDArray[np.float32]
"""One vector, or rows of vectors, of 32-bit floats."""


class Embedder(Protocol):
    """Turns texts into vectors of length one; similar texts have a large inner product.

    Several threads may use an embedder at once.
    """

    @property
    def name(self) -> str:
        """Identify the model, including its weights: vectors of equal names are comparable."""
        ...

    @property
    def dimensions(self) -> int:
        """The number of dimensions of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text, in order; the row of an empty text is zero.

        Raises `EmbedderUnavailable` if trying again may help, otherwise `EmbeddingRefused`.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


def normalised(vectors: NDArray[Any]) -> Vectors:
    """Scale rows to length one; rows that are zero or not finite become zero."""
    rows = np.nan_to_num(np.asarray(vectors, dtype=np.float32), posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return result


def clean(text: str) -> str:
    """Replace lone surrogates, which neither UTF-8 nor a tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def open_embedder(configuration: str = "wordllama") -> Embedder:
    """Open the embedder that a configuration names.

    The configuration is `wordllama`, `minilm`, `sentence-transformers:NAME`, or `openai:MODEL@URL`
    for a service with the OpenAI API, such as `openai:nomic-embed-text@http://localhost:11434/v1`;
    its key is read from the environment variable `OPENAI_API_KEY`. Raises `ConfigurationError` for
    any other, and if a required package is missing or has unexpected weights.
    """
    kind, _, rest = configuration.partition(":")
    if kind == "openai" and rest:
        from penstock.vectors.openai import OpenAIEmbedder

        return OpenAIEmbedder.parse(rest)
    from penstock.vectors import models

    if configuration == "wordllama":
        return models.WordLlama()
    if configuration == "minilm":
        return models.MiniLM()
    if kind == "sentence-transformers" and rest:
        return models.SentenceTransformers(rest)
    raise ConfigurationError(
        f"{configuration!r} is not an embedder; choose wordllama, minilm, "
        "sentence-transformers:NAME or openai:MODEL@URL"
    )
