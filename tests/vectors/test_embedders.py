import numpy as np
import pytest

from penstock import ConfigurationError
from penstock.vectors import open_embedder
from penstock.vectors.embedders import clean, normalised


@pytest.mark.parametrize(
    "configuration", ["", "word2vec", "openai", "openai:", "sentence-transformers", "minilm:x"]
)
def test_unknown_embedder_names_the_known_ones(configuration: str) -> None:
    with pytest.raises(ConfigurationError, match="wordllama, minilm"):
        open_embedder(configuration)


def test_rows_have_length_one_unless_they_are_zero_or_not_finite() -> None:
    rows = normalised(np.array([[3, 4], [0, 0], [np.nan, 0], [np.inf, 0]]))
    assert rows.tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0], [0, 0], [0, 0]]


def test_lone_surrogates_are_replaced() -> None:
    assert clean("a\ud800b") == "a?b"
    assert clean("naïve") == "naïve"
