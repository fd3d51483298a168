"""The settings of indexing, and the names that other programs use for some of them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from penstock.apps.kit import Count, RetryDelay, Seconds, check_vectors


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
    """How many jobs may be pending; more are refused with 429."""
    job_timeout: Seconds = 7_200
    """How long a job may run before its process is killed and the job fails."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    """How often a job is retried after an attempt failed or was killed."""
    retry_delay: RetryDelay = 5
    """How long to wait before the first retry; the delay doubles with each further one."""
    lease: Seconds = 15
    """How long after a crash of the server a job is taken up again."""
    checkpoint_interval: Count = 50
    """Files between progress reports; files are written in batches of four times as many.

    Both also happen every second.
    """
    project_root: str | None = None
    """The folder that contains all indexed folders; by default the server's working directory."""
    allow_external_paths: bool = False
    """Whether folders outside of the project root may be indexed. Requests cannot change this."""
    max_file_size: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 5_000_000
    """In bytes; larger files are skipped."""
    embedder: str = "wordllama"
    """The embedder that turns text into vectors."""
    vectors: str = "faiss"
    """The vector index: `faiss`, or a server: `chroma:URL`, `qdrant:URL`."""
    watch_debounce: Seconds = 2
    """How long a watched folder must be unchanged before it is indexed again."""
    runtime_file: bool = False
    """Whether `.agent-brain/runtime.json` tells the project's clients the server's address."""

    def check(self) -> None:
        """Raise `ConfigurationError` for settings that cannot work."""
        check_vectors("indexing.vectors", self.vectors)
