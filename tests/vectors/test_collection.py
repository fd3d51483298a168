from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError
from penstock.vectors import Collection, Document, EmbedderUnavailable, Vectors, Where, collection
from tests.vectors.support import HashingEmbedder

GUIDE = "# Guide\n\nHow to begin.\n\n## Leases\n\n" + "A worker holds a job for a while. " * 10
SOURCE = "def renew(lease):\n    '''Hold it longer.'''\n    return lease.until\n" * 3


class Watched(HashingEmbedder):
    """Records its batches, and fails at a given one."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.fails_at = 0

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.batches.append(list(texts))
        if len(self.batches) == self.fails_at:
            raise EmbedderUnavailable("not just now")
        return super().embed(texts)


@pytest.fixture
def embedder() -> Watched:
    return Watched()


@pytest.fixture
def documents(embedder: Watched, tmp_path: Path) -> Iterator[Collection]:
    with Collection.open(tmp_path, embedder) as opened:
        yield opened


def paths(found: Collection, text: str, **where: Any) -> set[str]:
    return {hit.path for hit in found.search(text, where=Where(**where))}


def test_document_is_found_with_its_lines_and_its_metadata(documents: Collection) -> None:
    written = documents.replace([Document("a/guide.md", GUIDE, {"team": "core"})])
    assert written == documents.count() > 0
    hit = documents.search("worker holds")[0]
    assert (hit.path, hit.type, hit.title) == ("a/guide.md", "section", "Guide > Leases")
    assert hit.metadata == {
        "team": "core",
        "start_line": 1,
        "end_line": 7,
        "language": "markdown",
        "symbol": "Guide > Leases",
    }


def test_name_around_a_chunk_is_embedded_with_it(documents: Collection, embedder: Watched) -> None:
    documents.replace([Document("a.md", GUIDE)])
    assert all(text.startswith("Guide > Leases\n") for text in embedder.batches[0])


def test_new_version_takes_the_place_of_the_old_one(documents: Collection) -> None:
    documents.replace([Document("a.txt", "red fox\n" * 2_000), Document("b.txt", "red fox")])
    before = documents.count()
    assert documents.replace([Document("a.txt", "blue sea")]) == 1
    assert documents.count() == 2 < before
    assert documents.search("fox", mode="bm25")[0].path == "b.txt"


def test_same_again_changes_nothing(documents: Collection) -> None:
    both = [Document("a.md", GUIDE), Document("b.py", SOURCE)]
    documents.replace(both)
    before = documents.search("lease", k=50)
    documents.replace(both[::-1])
    assert documents.search("lease", k=50) == before


def test_document_without_words_leaves_nothing(documents: Collection) -> None:
    documents.replace([Document("a.txt", "red fox")])
    assert documents.replace([Document("a.txt", " \n\n")]) == 0
    assert documents.count() == 0


def test_documents_are_forgotten_by_path_or_filter(documents: Collection) -> None:
    names = ["a/x.txt", "a/y.txt", "b/x.txt", "c.txt"]
    documents.replace(Document(name, "red fox") for name in names)
    assert documents.forget(["c.txt", "unknown"]) == 1
    assert documents.forget(where=Where(under="a")) == 2
    assert documents.forget() == 0
    assert paths(documents, "fox") == {"b/x.txt"}


def test_batches_bound_what_is_in_memory(
    documents: Collection, embedder: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "BATCH", 8)
    made = 0

    def many() -> Iterator[Document]:
        nonlocal made
        for n in range(100):
            assert made <= documents.count() + 8  # no further ahead than a batch
            yield Document(f"{n}.txt", f"fox {n}")
            made += 1

    assert documents.replace(many()) == 100
    assert max(len(batch) for batch in embedder.batches) == 8
    documents.replace([Document("long.txt", "some words\n" * 4_000)])
    assert max(len(batch) for batch in embedder.batches) == 8


def test_equal_paths_in_one_call_leave_the_last(documents: Collection) -> None:
    documents.replace([Document("a.txt", "red fox"), Document("a.txt", "blue sea")])
    assert documents.count() == 1
    assert documents.search("sea", mode="bm25")[0].text == "blue sea"


def test_document_stays_as_it_was_when_its_embedding_fails(
    documents: Collection, embedder: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "BATCH", 4)
    documents.replace([Document("a.txt", "red fox")])
    embedder.fails_at = len(embedder.batches) + 3
    with pytest.raises(EmbedderUnavailable):
        documents.replace([Document("a.txt", "blue sea\n" * 5_000)])
    assert [hit.text for hit in documents.search("fox", mode="bm25")] == ["red fox"]
    assert documents.count() == 1


def test_search_by_words_needs_no_embedder(documents: Collection, embedder: Watched) -> None:
    documents.replace([Document("a.txt", "red fox")])
    embedder.fails_at = len(embedder.batches) + 1
    assert len(documents.search("fox", mode="bm25")) == 1


def test_collection_of_another_embedder_is_refused(documents: Collection, tmp_path: Path) -> None:
    class Other(HashingEmbedder):
        name = "other"

    with pytest.raises(ConfigurationError, match="was created for"):
        Collection.open(tmp_path, Other())


def test_mode_that_is_none_is_refused(documents: Collection) -> None:
    with pytest.raises(ValueError, match="semantic"):
        documents.search("fox", mode="semantic")
