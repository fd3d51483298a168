"""Embedders and indexes that are opened once, and closed."""

from pathlib import Path

import pytest

from penstock.apps.kit import Indexes, LazyEmbedder
from penstock.vectors import Embedder, open_embedder


class Opened:
    """Counts how often an embedder is opened."""

    def __init__(self) -> None:
        self.configurations: list[str] = []

    def __call__(self, configuration: str) -> Embedder:
        self.configurations.append(configuration)
        return open_embedder(configuration)


def test_embedder_is_opened_on_first_use_and_again_after_it_was_closed() -> None:
    opened = Opened()
    embedder = LazyEmbedder("wordllama", opened)
    assert opened.configurations == []
    assert embedder.get() is embedder.get()
    embedder.close()
    embedder.close()
    embedder.get()
    assert opened.configurations == ["wordllama"] * 2
    embedder.close()


def test_each_folder_has_one_index(tmp_path: Path) -> None:
    opened = Opened()
    indexes = Indexes(LazyEmbedder("wordllama", opened))
    one, other = tmp_path / "one", tmp_path / "other"
    assert indexes.of(one) is indexes.of(one)
    assert indexes.of(one) is not indexes.of(other)
    assert opened.configurations == ["wordllama"]
    before = indexes.of(one)
    indexes.close()
    assert indexes.of(one) is not before
    indexes.close()


def test_unknown_embedder_is_refused_whenever_it_is_asked_for() -> None:
    embedder = LazyEmbedder("nonsense")
    for _ in range(2):
        with pytest.raises(Exception, match="nonsense"):
            embedder.get()
    embedder.close()
