"""Vectors in Chroma, in a folder or on a server."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.core.errors import ConfigurationError, IndexUnavailable
from penstock.vectors.catalogue import Row
from penstock.vectors.embedding import Vectors
from penstock.vectors.neighbours import FEW, Numbers, sifted


class Chroma:
    """A collection of Chroma; its documents also have the text and the path, for other programs.

    Chroma searches approximately. A folder belongs to one process; a server can have many.
    """

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self._name = name
        self._where = url or str(folder)
        self._client = self._reach(lambda: _client(folder, url))
        self._collection = self._reach(self._open)

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors."""
        self._reach(
            lambda: self._collection.upsert(
                ids=[str(row.number) for row in rows],
                embeddings=[row.vector for row in rows],
                documents=[row.text for row in rows],
                metadatas=[{"id": row.id, "path": row.path, "type": row.type} for row in rows],
            )
        )

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove vectors."""
        self._reach(lambda: self._collection.delete(ids=[str(number) for number in numbers]))

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """The nearest that Chroma finds."""
        if among is None:
            return self._ask(vector, k)
        if not len(among):
            return []
        if len(among) <= FEW:
            return self._ask(vector, k, ids=[str(number) for number in among.tolist()])
        return sifted(lambda wanted: self._ask(vector, wanted), k, among)

    def clear(self) -> None:
        """Remove all, but not the collection, which other processes know by its number."""
        while some := self._reach(lambda: self._collection.get(limit=FEW, include=[])["ids"]):
            self._reach(partial(self._collection.delete, ids=some))

    def close(self) -> None:
        """Let go of the client."""
        self._client.close()

    def _open(self) -> Any:
        return self._client.get_or_create_collection(
            self._name, embedding_function=None, configuration={"hnsw": {"space": "ip"}}
        )

    def _ask(self, vector: Vectors, k: int, **options: Any) -> list[tuple[int, float]]:
        most = min(k, self._reach(self._collection.count))
        if not most:
            return []
        found = self._reach(
            lambda: self._collection.query(
                query_embeddings=[vector], n_results=most, include=["distances"], **options
            )
        )
        pairs = zip(found["ids"][0], found["distances"][0], strict=True)
        return [(int(number), 1.0 - distance) for number, distance in pairs]

    def _reach(self, call: Any) -> Any:
        """Call Chroma, whose errors have no useful root."""
        try:
            return call()
        except ConfigurationError:
            raise
        except Exception as error:
            raise IndexUnavailable(f"Chroma in {self._where} failed: {error}") from error


def _client(folder: Path, url: str) -> Any:
    try:
        import chromadb
        from chromadb.config import Settings
    except ImportError as error:
        raise ConfigurationError(
            "Chroma is not installed: pip install 'penstock[chroma]'"
        ) from error
    quiet = Settings(anonymized_telemetry=False)
    if not url:
        return chromadb.PersistentClient(str(folder), settings=quiet)
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(
            f"{url!r} is no address of a Chroma server; write http://HOST:PORT"
        )
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8000)
    return chromadb.HttpClient(parts.hostname, port, ssl=secure, settings=quiet)
