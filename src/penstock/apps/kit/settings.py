"""Types and checks of the settings that several applications have."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from penstock.core.errors import ConfigurationError

DATA = Path("penstock-data")
"""The folder for the files of applications, unless the server sets another one."""

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0.1, le=31_536_000)]
RetryDelay = Annotated[float, Meta(ge=0, le=86_400)]
Processes = Annotated[int, Meta(ge=0, le=64)]


def check_vectors(setting: str, value: str) -> None:
    """Raise `ConfigurationError` unless several processes can share such an index of vectors."""
    kind, _, url = value.partition(":")
    if value != "faiss" and (kind not in ("chroma", "qdrant") or not url):
        raise ConfigurationError(
            f"{setting} is {value!r}: expected faiss, chroma:URL or qdrant:URL; only one process "
            "at a time can open a folder of Chroma or Qdrant"
        )
