"""The default embedder: the mean of one vector per token, from the weights of WordLlama.

Needs no torch and no network: the wheel of `wordllama` carries the weights. Its own `load()` is
not used, since it looks for them in another folder and then on the network.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from penstock.vectors.embedding import Vectors, clean, normalised
from penstock.vectors.weights import file_of, read_tensors, read_tokenizer

INSTALL = "pip install 'penstock[vectors]'"
WEIGHTS = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
TOKENS = "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68"
BATCH = 256
"""Texts at a time, so that the rows of their tokens stay small."""


class WordLlama:
    """Embeds texts of any length with WordLlama's `l2_supercat`, in 256 dimensions."""

    name = f"wordllama-l2-supercat-256-{WEIGHTS[:12]}"
    dimensions = 256

    def __init__(self) -> None:
        weights = file_of(
            "wordllama", f"weights/l2_supercat_{self.dimensions}.safetensors", WEIGHTS, INSTALL
        )
        tokens = file_of(
            "wordllama", "tokenizers/l2_supercat_tokenizer_config.json", TOKENS, INSTALL
        )
        (self._rows,) = cast("list[Vectors]", list(read_tensors(weights).values()))
        self._tokenizer = read_tokenizer(tokens)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for start in range(0, len(texts), BATCH):
            batch = [clean(text) for text in texts[start : start + BATCH]]
            encoded = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for place, each in enumerate(encoded, start):
                if each.ids:
                    vectors[place] = self._rows.take(each.ids, axis=0).mean(axis=0)
        return normalised(vectors)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
