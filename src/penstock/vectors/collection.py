"""Files into an index and questions to it: chunk, embed, write."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.vectors.choosing import chunker_for
from penstock.vectors.chunks import Chunk
from penstock.vectors.embedding import Embedder
from penstock.vectors.index import ALL, Index, open_index
from penstock.vectors.values import Hit, Item, Mode, Where

BATCH = 512
"""Chunks that are embedded, and as a rule written, together."""


class Document(msgspec.Struct, frozen=True):
    """A text with the path it is found under; its metadata come back with every hit."""

    path: str
    text: str
    metadata: Mapping[str, Any] = {}


class Collection:
    """Documents that can be searched: cut into chunks, embedded, and kept in an index.

    A hit's metadata have `start_line`, `end_line`, `language` and `symbol` beside those of its
    document. May be used by any number of threads at once.
    """

    def __init__(
        self, index: Index, embedder: Embedder, *, size: int = 512, overlap: int = 50
    ) -> None:
        self.index = index
        self.embedder = embedder
        self._size = size
        self._overlap = overlap

    @classmethod
    def open(
        cls,
        folder: str | Path,
        embedder: Embedder,
        *,
        vectors: str = "faiss",
        size: int = 512,
        overlap: int = 50,
    ) -> Self:
        """A collection in a folder; see `open_index`. It does not close the embedder."""
        index = open_index(folder, embedder.dimensions, fingerprint=embedder.name, vectors=vectors)
        return cls(index, embedder, size=size, overlap=overlap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chunks(self, document: Document) -> list[Chunk]:
        """The chunks that a document is cut into."""
        return chunker_for(document.path, self._size, self._overlap).chunk(document.text)

    def replace(self, documents: Iterable[Document]) -> int:
        """Put documents in place of what their paths had; returns how many chunks they have.

        A document is replaced whole or not at all. Several are written in one transaction, up to
        some hundred chunks; with the same documents again nothing but time is lost.
        """
        return sum(self._write(batch) for batch in self._batches(documents))

    def forget(self, paths: Iterable[str] = (), where: Where = ALL) -> int:
        """Remove all chunks of these paths, or all that fit; returns how many there were."""
        wanted = tuple(paths)
        removed = self.index.delete(where=Where(paths=wanted)) if wanted else 0
        return removed + (self.index.delete(where=where) if where else 0)

    def search(
        self, text: str, *, k: int = 10, where: Where = ALL, mode: Mode | str = Mode.HYBRID
    ) -> list[Hit]:
        """The best k chunks for a question."""
        vector = None
        if mode != Mode.BM25:
            vector = self.embedder.embed([text])[0]
        return self.index.search(vector, text, k=k, where=where, mode=mode)

    def count(self, where: Where = ALL) -> int:
        """How many chunks there are."""
        return self.index.count(where)

    def close(self) -> None:
        """Close the index."""
        self.index.close()

    def _batches(
        self, documents: Iterable[Document]
    ) -> Iterator[dict[str, tuple[Document, list[Chunk]]]]:
        batch: dict[str, tuple[Document, list[Chunk]]] = {}
        held = 0
        for document in documents:
            chunks = self.chunks(document)
            if batch and (held + len(chunks) > BATCH or document.path in batch):
                yield batch
                batch, held = {}, 0
            batch[document.path] = document, chunks
            held += len(chunks)
        if batch:
            yield batch

    def _write(self, batch: Mapping[str, tuple[Document, list[Chunk]]]) -> int:
        pairs = [
            (document, place, chunk)
            for document, chunks in batch.values()
            for place, chunk in enumerate(chunks)
        ]
        self.index.replace(list(batch), self._items(pairs))
        return len(pairs)

    def _items(self, pairs: Sequence[tuple[Document, int, Chunk]]) -> Iterator[Item]:
        for start in range(0, len(pairs), BATCH):
            part = pairs[start : start + BATCH]
            # What is around a chunk says what it is about, so it is embedded too.
            texts = [f"{chunk.symbol}\n{chunk.text}".lstrip("\n") for _, _, chunk in part]
            vectors = self.embedder.embed(texts)
            for (document, place, chunk), vector in zip(part, vectors, strict=True):
                yield _item(document, place, chunk, vector)


def _item(document: Document, place: int, chunk: Chunk, vector: Any) -> Item:
    metadata = {
        **document.metadata,
        "start_line": chunk.start_line,
        "end_line": chunk.end_line,
        "language": chunk.language,
        "symbol": chunk.symbol,
    }
    return Item(
        id=f"{document.path}#{place}",
        vector=vector,
        text=chunk.text,
        path=document.path,
        type=chunk.type,
        title=chunk.symbol,
        metadata=metadata,
    )
