"""The settings of indexing, and the names that other programs have for some of them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from penstock import ConfigurationError

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0.1, le=31_536_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How folders are indexed. Times are in seconds."""

    ALSO_CALLED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_queue": ("AGENT_BRAIN_MAX_QUEUE",),
        "job_timeout": ("AGENT_BRAIN_JOB_TIMEOUT",),
        "max_retries": ("AGENT_BRAIN_MAX_RETRIES",),
        "checkpoint_interval": ("AGENT_BRAIN_CHECKPOINT_INTERVAL",),
        "project_root": ("PENSTOCK_PROJECT_ROOT",),
        "allow_external_paths": (
            "PENSTOCK_ALLOW_EXTERNAL_PATHS",
            "AGENT_BRAIN_ALLOW_EXTERNAL_PATHS",
        ),
    }

    max_queue: Count = 100
    """How many jobs may wait; more are refused with 429."""
    job_timeout: Seconds = 7_200
    """How long a job may run before its process is killed, and it has failed."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    """How often a job runs again after an attempt that failed or was killed."""
    retry_delay: Annotated[float, Meta(ge=0, le=86_400)] = 5
    """How long it rests before that; twice as long after each further attempt."""
    lease: Seconds = 15
    """How long after a kill of the server a job is taken up again."""
    checkpoint_interval: Count = 50
    """Files after which progress is told; after four times as many, what was done is durable.

    Both happen every second as well.
    """
    project_root: str | None = None
    """The folder that all indexed ones lie in; by default where the server was started."""
    allow_external_paths: bool = False
    """Whether folders outside of it may be indexed; no request has to say so."""
    max_file_size: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 5_000_000
    """Bytes; larger files are skipped."""
    embedder: str = "wordllama"
    """What turns text into vectors."""
    vectors: str = "faiss"
    """What finds the nearest: `faiss`, or a server: `chroma:URL`, `qdrant:URL`."""
    watch_debounce: Seconds = 2
    """How long a watched folder has to be quiet before it is indexed again."""
    runtime_file: bool = False
    """Whether `.agent-brain/runtime.json` tells the project's clients where the server is."""

    def check(self) -> None:
        """Raise `ConfigurationError` for what cannot work."""
        kind, _, url = self.vectors.partition(":")
        if self.vectors != "faiss" and (kind not in ("chroma", "qdrant") or not url):
            raise ConfigurationError(
                f"indexing.vectors is {self.vectors!r}: expected faiss, chroma:URL or qdrant:URL; "
                "a folder of Chroma or Qdrant can be open in one process only, and jobs have theirs"
            )
