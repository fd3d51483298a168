"""What an embedder is, and the one map from a configuration to one."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ConfigurationError

Vectors: TypeAlias = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors of length one, so that like texts have a large inner product.

    May be used by several threads at once.
    """

    @property
    def name(self) -> str:
        """Says which model this is, weights included: vectors of equal names can be compared."""
        ...

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, in their order; an empty one has a row of zeros.

        Raises `EmbedderUnavailable` if it is worth another try, else `EmbeddingRefused`.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def normalised(vectors: NDArray[Any]) -> Vectors:
    """Rows of length one; rows of zeros, and rows that are no numbers, become zeros."""
    rows = np.nan_to_num(np.asarray(vectors, dtype=np.float32), posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return result


def clean(text: str) -> str:
    """The text as UTF-8 can have it: tokenizers take nothing else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def open_embedder(configuration: str = "wordllama") -> Embedder:
    """The embedder that a configuration asks for.

    `wordllama`, `minilm`, `sentence-transformers:NAME`, or `openai:MODEL@URL` for a service that
    speaks the OpenAI API, such as `openai:nomic-embed-text@http://localhost:11434/v1`; its key is
    the environment variable `OPENAI_API_KEY`. Raises `ConfigurationError` for any other, and where
    a package that it needs is missing or has other weights than it should.
    """
    kind, _, rest = configuration.partition(":")
    if configuration == "wordllama":
        from penstock.vectors.wordllama import WordLlama

        return WordLlama()
    if configuration == "minilm":
        from penstock.vectors.minilm import MiniLM

        return MiniLM()
    if kind == "sentence-transformers" and rest:
        from penstock.vectors.sentences import SentenceTransformers

        return SentenceTransformers(rest)
    if kind == "openai" and rest:
        from penstock.vectors.endpoint import Endpoint

        return Endpoint.parse(rest)
    raise ConfigurationError(
        f"there is no embedder {configuration!r}; known are wordllama, minilm, "
        "sentence-transformers:NAME and openai:MODEL@URL"
    )
