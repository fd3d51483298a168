"""Checks that settings of several applications share."""

import pytest

from penstock import ConfigurationError
from penstock.apps.kit import check_vectors


@pytest.mark.parametrize("value", ["faiss", "chroma:http://localhost:8001", "qdrant:http://q"])
def test_vectors_that_processes_can_share(value: str) -> None:
    check_vectors("indexing.vectors", value)


@pytest.mark.parametrize("value", ["", "chroma", "qdrant", "qdrant:", "annoy:http://a"])
def test_other_vectors_are_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"indexing.vectors is '{value}': expected faiss"):
        check_vectors("indexing.vectors", value)
