"""Any model of sentence-transformers, where that package is installed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.errors import ConfigurationError, EmbeddingRefused
from penstock.vectors.embedding import Vectors, clean, normalised


class SentenceTransformers:
    """Embeds texts with a model by its name or folder; sentence-transformers may download it."""

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigurationError(
                f"sentence-transformers:{model} needs the package sentence-transformers, which "
                "brings torch: pip install sentence-transformers"
            ) from error
        try:
            self._model = SentenceTransformer(model)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"sentence-transformers could not load {model!r}: {error}"
            ) from error
        self.name = f"sentence-transformers-{model}"
        # Asked by an example: the method that tells it has another name in each major version.
        self.dimensions = self._encode(["dimensions"]).shape[1]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text; what is too long for the model is cut by it."""
        if not texts:
            return np.zeros((0, self.dimensions), np.float32)
        rows = self._encode(texts)
        rows[[not text for text in texts]] = 0
        return normalised(rows)

    def close(self) -> None:
        """Do nothing: the model leaves with the object."""

    def _encode(self, texts: Sequence[str]) -> Any:
        try:
            rows = self._model.encode([clean(text) for text in texts], show_progress_bar=False)
        except (RuntimeError, ValueError) as error:
            raise EmbeddingRefused(f"{self.name} failed: {error}") from error
        return np.array(rows, dtype=np.float32)
