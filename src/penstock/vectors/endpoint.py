"""An embedding service that speaks the OpenAI API, on this machine or elsewhere."""

import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import numpy as np

from penstock.core.errors import ConfigurationError, EmbedderUnavailable, EmbeddingRefused
from penstock.vectors.embedding import Vectors, clean, normalised

PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may get over."""


class Endpoint:
    """Embeds texts by `POST {url}/embeddings`, so many at a time.

    Repeats what the service could not do just now up to `attempts` times, waiting as long as it
    asks for, at most `longest_pause` seconds. Nothing of the key is in a message or in `repr`.
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
        """One from `MODEL@URL`, with the key from the environment."""
        model, _, url = text.rpartition("@")
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ConfigurationError(
                "the address of an embedding service may hold no key; set OPENAI_API_KEY"
            )
        if not model or parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(
                f"openai:{text} names no model and address; write openai:MODEL@URL, such as "
                "openai:text-embedding-3-small@https://api.openai.com/v1"
            )
        return cls(model, url, key=os.environ.get("OPENAI_API_KEY", ""))

    @cached_property
    def dimensions(self) -> int:
        """How many numbers a vector has: the service is asked, once."""
        return int(self._embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text; a text without words is not sent."""
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
                problem, asked = f"{type(error).__name__}: {error}", None
            else:
                if reply.is_success:
                    return self._rows(reply, len(texts))
                problem, asked = f"HTTP {reply.status_code}", reply.headers.get("Retry-After")
                if reply.status_code < 500 and reply.status_code not in PASSING:  # noqa: PLR2004 - HTTP
                    raise EmbeddingRefused(f"{self.name} refused: {problem} {reply.text[:200]}")
            if attempt < self._attempts:
                self._pause(self._how_long(attempt, asked))
        raise EmbedderUnavailable(f"{self.name} did not answer {self._attempts} times: {problem}")

    def _how_long(self, attempt: int, asked: str | None) -> float:
        """Seconds before the next try: what the service asks for, else twice as long each time."""
        wanted = float(asked) if asked and asked.isdecimal() else 0.5 * 2 ** (attempt - 1)
        return min(wanted, self._longest_pause)

    def _rows(self, reply: httpx.Response, wanted: int) -> Vectors:
        """The vectors of a reply, in the order of the texts."""
        try:
            data: list[dict[str, Any]] = reply.json()["data"]
            ordered = sorted(data, key=lambda each: int(each["index"]))
            rows = np.array([each["embedding"] for each in ordered], dtype=np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise EmbeddingRefused(f"{self.name} sent no embeddings: {error!r}") from error
        if rows.ndim != 2 or len(rows) != wanted:  # noqa: PLR2004 - texts and numbers
            raise EmbeddingRefused(f"{self.name} sent {len(rows)} vectors for {wanted} texts")
        return normalised(rows)
