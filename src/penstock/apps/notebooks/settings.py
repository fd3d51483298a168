"""The settings of notebooks."""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock import Retention

Author = Annotated[str, Meta(max_length=300, pattern=r"^[^<>\x00-\x1f]+ <[^<>\x00-\x1f]*>$")]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Keeping = Annotated[float, Meta(ge=60, le=315_360_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where notebooks are, and how they are kept. Times are in seconds."""

    root: str | None = None
    """The folder that new notebooks are made in; by default `notebooks` in the data folder."""
    allowed: str = ""
    """Folders whose subfolders may become notebooks; between two of them a `:`."""
    max_file_size: Annotated[int, Meta(ge=1, le=10_000_000_000)] = 50_000_000
    """Bytes; a larger content is refused with 413."""
    max_queue: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """How many operations may wait; more are refused with 429."""
    max_retries: Annotated[int, Meta(ge=1, le=100)] = 3
    """How often an operation is attempted in all, while its errors may pass."""
    retry_delay: Seconds = 1
    """How long it rests before that; twice as long after each further attempt."""
    completed_event_retention: Keeping | None = None
    """How long operations are kept after they have ended; by default as the server keeps jobs."""
    failed_event_retention: Keeping | None = None
    """The same for operations that have failed."""
    lease: Annotated[float, Meta(ge=0.1, le=86_400)] = 10
    """How long after a kill of the server an operation that was running is taken up again."""
    commit_interval: Seconds = 5
    """How long after the first change that is not in git it is committed."""
    commit_paths: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    """So many changed paths are committed at once."""
    author: Author | None = None
    """Whom git names for commits, as `NAME <ADDRESS>`; by default who git is configured for."""
    trusted_filters: Annotated[str, Meta(max_length=1_000, pattern=r"^[A-Za-z0-9._, -]*$")] = ""
    """Filters that attributes may name, such as `lfs`; between two of them a comma.

    Their commands are those that the git configuration of the server's user has.
    """
    watch: bool = True
    """Whether changes that others make to the files are followed."""
    scan_interval: Annotated[float, Meta(ge=0.1, le=86_400)] = 300
    """How often all files of a watched notebook are compared with what is known of them."""

    @property
    def retention(self) -> Retention:
        """How long operations are kept after their end; zero for what is left to the server."""
        return Retention(
            finished=timedelta(seconds=self.completed_event_retention or 0),
            failed=timedelta(seconds=self.failed_event_retention or 0),
        )


def folder_for_new(settings: Settings, data: Path) -> Path:
    """The folder that new notebooks are made in."""
    return Path(settings.root).absolute() if settings.root else data / "notebooks"


def is_watched(settings: Settings, *, own: bool | None) -> bool:
    """Whether a notebook is watched that has this setting of its own, or none."""
    return settings.watch if own is None else own


def allowed_roots(settings: Settings, data: Path) -> list[Path]:
    """The folders that a notebook may lie in, without links."""
    given = [Path(one) for one in settings.allowed.split(os.pathsep) if one]
    return [one.resolve() for one in (folder_for_new(settings, data), *given)]


def trusted_filters(settings: Settings) -> frozenset[str]:
    """The names of the filters that may run."""
    return frozenset(re.split(r"[, ]+", settings.trusted_filters)) - {""}
