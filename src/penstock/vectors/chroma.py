"""Vectors in Chroma, in a local folder or on a server."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.core.errors import ConfigurationError, IndexUnavailable
from penstock.vectors.catalogue import Row
from penstock.vectors.embedders import Vectors
from penstock.vectors.replicas import FEW, Numbers, nearest_among


class Chroma:
    """A Chroma collection; its documents include the text and the path for other programs.

    Chroma searches approximately. Only one process may open a folder; many may use a server.
    """

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self._name = name
        self._where = url or str(folder)
        self._client = self._call(lambda: _client(folder, url))
        self._collection = self._call(self._open)

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors."""
        self._call(
            lambda: self._collection.upsert(
                ids=[str(row.number) for row in rows],
                embeddings=[row.vector for row in rows],
                documents=[row.text for row in rows],
                metadatas=[{"id": row.id, "path": row.path, "type": row.type} for row in rows],
            )
        )

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove vectors."""
        self._call(lambda: self._collection.delete(ids=[str(number) for number in numbers]))

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Return the nearest that Chroma finds."""
        if among is None:
            return self._query(vector, k)
        if not len(among):
            return []
        if len(among) <= FEW:
            return self._query(vector, k, ids=[str(number) for number in among.tolist()])
        return nearest_among(lambda wanted: self._query(vector, wanted), k, among)

    def clear(self) -> None:
        """Remove all vectors but keep the collection, which other processes refer to by its ID."""
        while some := self._call(lambda: self._collection.get(limit=FEW, include=[])["ids"]):
            self._call(partial(self._collection.delete, ids=some))

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _open(self) -> Any:
        return self._client.get_or_create_collection(
            self._name, embedding_function=None, configuration={"hnsw": {"space": "ip"}}
        )

    def _query(self, vector: Vectors, k: int, **options: Any) -> list[tuple[int, float]]:
        most = min(k, self._call(self._collection.count))
        if not most:
            return []
        found = self._call(
            lambda: self._collection.query(
                query_embeddings=[vector], n_results=most, include=["distances"], **options
            )
        )
        pairs = zip(found["ids"][0], found["distances"][0], strict=True)
        return [(int(number), 1.0 - distance) for number, distance in pairs]

    def _call(self, call: Any) -> Any:
        """Call Chroma, whose errors have no common base class."""
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
            f"{url!r} is not the URL of a Chroma server; write http://HOST:PORT"
        )
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8000)
    return chromadb.HttpClient(parts.hostname, port, ssl=secure, settings=quiet)
