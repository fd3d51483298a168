"""A collection of documents: split into chunks, embedded, indexed and searched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.vectors.chunks import Chunk, chunker_for
from penstock.vectors.embedders import Embedder
from penstock.vectors.index import Index, open_index
from penstock.vectors.items import ALL, Hit, Item, Mode, Where

BATCH = 512
"""Chunks that are embedded, and usually written, together."""


class Document(msgspec.Struct, frozen=True):
    """A text and its path; every hit includes the metadata of its document."""

    path: str
    text: str
    metadata: Mapping[str, Any] = {}


class Collection:
    """Searchable documents: split into chunks, embedded, and stored in an index; thread-safe.

    The metadata of a hit is that of its document plus `start_line`, `end_line`, `language` and
    `symbol`.
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
        """Open a collection in a folder; see `open_index`. `close` keeps the embedder open."""
        index = open_index(folder, embedder.dimensions, fingerprint=embedder.name, vectors=vectors)
        return cls(index, embedder, size=size, overlap=overlap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chunks(self, document: Document) -> list[Chunk]:
        """Return the chunks of a document."""
        return chunker_for(document.path, self._size, self._overlap).chunk(document.text)

    def replace(self, documents: Iterable[Document]) -> int:
        """Replace the documents with these paths; return how many chunks the new ones have.

        A document is replaced completely or not at all. Several documents share a transaction, up
        to some hundred chunks. Replacing a document by itself changes nothing.
        """
        return sum(self._write(batch) for batch in self._batches(documents))

    def forget(self, paths: Iterable[str] = (), where: Where = ALL) -> int:
        """Remove the chunks of these paths and all that match; return how many."""
        wanted = tuple(paths)
        removed = self.index.delete(where=Where(paths=wanted)) if wanted else 0
        return removed + (self.index.delete(where=where) if where else 0)

    def search(
        self, text: str, *, k: int = 10, where: Where = ALL, mode: Mode | str = Mode.HYBRID
    ) -> list[Hit]:
        """Return the best k chunks for a query."""
        vector = None
        if mode != Mode.BM25:
            vector = self.embedder.embed([text])[0]
        return self.index.search(vector, text, k=k, where=where, mode=mode)

    def count(self, where: Where = ALL) -> int:
        """Return the number of matching chunks."""
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
            # The enclosing names or headings tell what a chunk is about, so they are embedded too.
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
