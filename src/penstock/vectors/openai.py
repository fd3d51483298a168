"""An embedding service with the OpenAI API, local or remote."""

import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import numpy as np

from penstock.core.errors import ConfigurationError, EmbedderUnavailable, EmbeddingRefused
from penstock.vectors.embedders import Vectors, clean, normalised

TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses below 500 that are worth another attempt."""


class OpenAIEmbedder:
    """Embeds texts by `POST {url}/embeddings`, in batches.

    Makes up to `attempts` attempts at a request that fails for a transient reason, and waits as
    long as the service requests, at most `longest_pause` seconds. The key never appears in a
    message or in `repr`.
    """

    def __init__(
        self,
        model: str,
        url: str,
        *,
        key: str = "",
        batch: int = 64,
        timeout: float = 60.0,
        attempts: int = 4,
        longest_pause: float = 30.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = f"openai-{model}@{url}"
        self._model = model
        self._batch = batch
        self._attempts = attempts
        self._longest_pause = longest_pause
        self._pause = pause
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Create one from `MODEL@URL`, with the key from the environment."""
        model, _, url = text.rpartition("@")
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ConfigurationError(
                "the URL of an embedding service must not contain a key; set OPENAI_API_KEY instead"
            )
        if not model or parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(
                f"openai:{text} does not name a model and a URL; write openai:MODEL@URL, such as "
                "openai:text-embedding-3-small@https://api.openai.com/v1"
            )
        return cls(model, url, key=os.environ.get("OPENAI_API_KEY", ""))

    @cached_property
    def dimensions(self) -> int:
        """The number of dimensions of a vector, determined by one request."""
        return int(self._embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text; blank texts are not sent."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        places = [place for place, text in enumerate(texts) if text.strip()]
        for start in range(0, len(places), self._batch):
            batch = places[start : start + self._batch]
            rows = self._embed([clean(texts[place]) for place in batch])
            if rows.shape[1] != self.dimensions:
                raise EmbeddingRefused(f"{self.name} changed the length of its vectors")
            vectors[batch] = rows
        return vectors

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _embed(self, texts: list[str]) -> Vectors:
        for attempt in range(1, self._attempts + 1):
            try:
                reply = self._client.post("embeddings", json={"model": self._model, "input": texts})
            except httpx.TransportError as error:
                problem, requested = f"{type(error).__name__}: {error}", None
            else:
                if reply.is_success:
                    return self._rows(reply, len(texts))
                problem, requested = f"HTTP {reply.status_code}", reply.headers.get("Retry-After")
                if reply.status_code < 500 and reply.status_code not in TRANSIENT:  # noqa: PLR2004 - HTTP
                    raise EmbeddingRefused(f"{self.name} refused: {problem} {reply.text[:200]}")
            if attempt < self._attempts:
                self._pause(self._delay(attempt, requested))
        raise EmbedderUnavailable(f"{self.name} failed {self._attempts} times, last with {problem}")

    def _delay(self, attempt: int, requested: str | None) -> float:
        """Return the seconds to wait: as requested, otherwise twice as long each time."""
        is_number = requested is not None and requested.isdecimal()
        wanted = float(requested or 0) if is_number else 0.5 * 2 ** (attempt - 1)
        return min(wanted, self._longest_pause)

    def _rows(self, reply: httpx.Response, wanted: int) -> Vectors:
        """Return the vectors of a reply, in the order of the texts."""
        try:
            data: list[dict[str, Any]] = reply.json()["data"]
            ordered = sorted(data, key=lambda each: int(each["index"]))
            rows = np.array([each["embedding"] for each in ordered], dtype=np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise EmbeddingRefused(f"{self.name} returned no embeddings: {error!r}") from error
        if rows.ndim != 2 or len(rows) != wanted:  # noqa: PLR2004 - texts and numbers
            raise EmbeddingRefused(f"{self.name} returned {len(rows)} vectors for {wanted} texts")
        return normalised(rows)
