"""Vectors in Qdrant, in a local folder or on a server."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigurationError, IndexUnavailable
from penstock.vectors.catalogue import Row
from penstock.vectors.embedders import Vectors
from penstock.vectors.replicas import FEW, Numbers, nearest_among

try:
    from qdrant_client import QdrantClient, models
except ImportError as error:
    raise ConfigurationError("Qdrant is not installed: pip install 'penstock[qdrant]'") from error


class Qdrant:
    """A Qdrant collection; its points include the text and the path for other programs.

    In a folder, searches are exact, and only one process may open it; many may use a server. The
    key for a server is read from the environment variable `QDRANT_API_KEY`.
    """

    def __init__(self, folder: Path, url: str, name: str, dimensions: int) -> None:
        self._name = name
        self._dimensions = dimensions
        self._where = url or str(folder)
        self._client = self._call(lambda: _client(folder, url))
        try:
            if not self._call(lambda: self._client.collection_exists(name)):
                self._create()
        except BaseException:
            self._client.close()
            raise

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors."""
        points = [
            models.PointStruct(
                id=row.number,
                vector=row.vector.tolist(),
                payload={"id": row.id, "path": row.path, "type": row.type, "text": row.text},
            )
            for row in rows
        ]
        self._call(lambda: self._client.upsert(self._name, points, wait=True))

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove vectors."""
        gone = models.PointIdsList(points=list(numbers))
        self._call(lambda: self._client.delete(self._name, gone, wait=True))

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Return the nearest that Qdrant finds."""
        if among is None:
            return self._query(vector, k)
        if len(among) <= FEW:
            chosen = models.HasIdCondition(has_id=among.tolist())
            return self._query(vector, k, models.Filter(must=[chosen]))
        return nearest_among(lambda wanted: self._query(vector, wanted), k, among)

    def clear(self) -> None:
        """Remove all vectors but keep the collection, which other processes may be querying."""
        everything = models.FilterSelector(filter=models.Filter())
        self._call(lambda: self._client.delete(self._name, everything, wait=True))

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _create(self) -> None:
        size = models.VectorParams(size=self._dimensions, distance=models.Distance.DOT)
        self._call(lambda: self._client.create_collection(self._name, vectors_config=size))

    def _query(self, vector: Vectors, k: int, only: Any = None) -> list[tuple[int, float]]:
        found = self._call(
            lambda: self._client.query_points(
                self._name, query=vector.tolist(), limit=k, query_filter=only, with_payload=False
            )
        )
        return [(int(point.id), float(point.score)) for point in found.points]

    def _call(self, call: Any) -> Any:
        """Call Qdrant, whose errors have no common base class."""
        try:
            return call()
        except Exception as error:
            raise IndexUnavailable(f"Qdrant in {self._where} failed: {error}") from error


def _client(folder: Path, url: str) -> QdrantClient:
    if url:
        return QdrantClient(url=url, api_key=os.environ.get("QDRANT_API_KEY"), timeout=60)
    return QdrantClient(path=str(folder))
