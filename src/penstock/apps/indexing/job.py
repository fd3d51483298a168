"""The indexing job: its arguments, its task and its report.

The task runs in a child process, so that it can be killed. Arguments are decoded into these types
when a job runs: values that a route would refuse fail to decode. `Places.check` checks at that
moment whether a path may be read.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from penstock import ConfigurationError, Context, Penstock, RetryPolicy, context
from penstock.apps.indexing.places import PACKAGES, OutOfBounds, Places
from penstock.apps.indexing.settings import Settings
from penstock.apps.kit import locked

if TYPE_CHECKING:
    from penstock.vectors import Embedder

QUEUE = "indexing"
TASK = "indexing.run"
# Progress is cheap; making files durable costs as much for one as for some hundred.
_AT_ONCE = 4

COLLECTION = "default"
"""The collection of requests that do not name one."""

Collection = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""The name of a collection, which is also the name of its folder."""

Operation = Literal["index", "add"]
Strategy = Literal["ast_aware", "text_based"]
_Names = Annotated[tuple[Annotated[str, Meta(max_length=100)], ...], Meta(max_length=100)]
_Patterns = Annotated[tuple[Annotated[str, Meta(max_length=1_000)], ...], Meta(max_length=1_000)]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which files of a folder are indexed."""

    recursive: bool = True
    include_code: bool = False
    languages: _Names = ()
    """Programming languages; by default all known ones."""
    include: _Patterns = ()
    """Patterns, as in a `.gitignore`, of files to index besides documents and code."""
    exclude: _Patterns = ()
    types: _Names = ()
    """Names of presets; if given, only their files are indexed."""


class Cutting(msgspec.Struct, frozen=True, kw_only=True):
    """How files are split into chunks. When it changes, all files are embedded again."""

    size: Annotated[int, Meta(ge=16, le=8_192)] = 512
    overlap: Annotated[int, Meta(ge=0, le=4_096)] = 50
    strategy: Strategy = "ast_aware"


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a folder is kept indexed from now on; None changes nothing."""

    on: bool | None = None
    debounce: Annotated[float, Meta(ge=0.1, le=3_600)] | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of an indexing job.

    `folder` is the folder to index or, for `add`, the folder that contains `paths`. With `force`,
    unchanged files are embedded again as well.
    """

    folder: Annotated[str, Meta(min_length=1)]
    operation: Operation = "index"
    paths: Annotated[tuple[str, ...], Meta(max_length=1_001)] = ()
    collection: Collection = COLLECTION
    choice: Choice = Choice()
    cutting: Cutting = Cutting()
    watching: Watching = Watching()
    metadata_file: str | None = None
    force: bool = False
    source: Literal["manual", "auto"] = "manual"

    @property
    def dedupe(self) -> str:
        """The same for all jobs that would do the same work."""
        same = msgspec.structs.replace(self, source="manual", force=False)
        return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()


# The report


class NothingIndexed(Exception):
    """There was nothing to index, and a retry would not find anything either."""


class NotVerified(Exception):
    """The collection does not match what was written; the next attempt repairs it."""


class Report(msgspec.Struct, kw_only=True):
    """The result of a job."""

    files_total: int = 0
    files_indexed: int = 0
    files_unchanged: int = 0
    files_deleted: int = 0
    files_skipped: int = 0
    skipped: dict[str, int] = {}
    """How many files were skipped for each reason."""
    examples: list[tuple[str, str]] = []
    """Some skipped files, each with its reason."""
    chunks_created: int = 0
    chunks_removed: int = 0
    total_chunks: int = 0
    """The chunks of the folder at the end of the job."""


class Observer(Protocol):
    """Receives the progress of a job."""

    def progress(self, report: Report, done: int, path: str) -> None:
        """Report that `done` files are finished, `path` the last of them."""
        ...

    def checkpoint(self, after: str, report: Report) -> None:
        """Report that all files up to this path are durable in the collection."""
        ...


# The task


class FolderMissing(Exception):
    """The folder of a job no longer exists."""


def register(penstock: Penstock, settings: Settings, places: Places) -> None:
    """Register the task of indexing jobs."""

    def run(parameters: Parameters) -> dict[str, object]:
        """Bring a collection up to date; files that it already has are recognised by content."""
        return index(parameters, settings, places, context())

    penstock.task(
        TASK,
        run,
        queue=QUEUE,
        isolation="process",
        timeout=timedelta(seconds=settings.job_timeout),
        lease=timedelta(seconds=settings.lease),
        retry=RetryPolicy(
            attempts=settings.max_retries + 1, delay=timedelta(seconds=settings.retry_delay)
        ),
        permanent=(TimeoutError, ConfigurationError, FolderMissing, NothingIndexed, OutOfBounds),
    )


def index(
    parameters: Parameters, settings: Settings, places: Places, run: Context
) -> dict[str, object]:
    """Run a job, from the checkpoint of an earlier attempt if there is one."""
    PACKAGES.check()
    from penstock.apps.indexing.files import LOCK, Files
    from penstock.apps.indexing.indexer import Indexer
    from penstock.vectors import open_index

    folder = places.collection(parameters.collection)
    check_arguments(parameters, places)
    after, before = "", None
    if isinstance(run.state, dict):
        after, before = run.state["after"], msgspec.convert(run.state["report"], Report)
    embedder = _embedder(settings.embedder)
    # Wait for a reset of the collection, and for an earlier run that is being killed.
    with (
        locked(folder / LOCK),
        Files(folder) as files,
        open_index(
            folder, embedder.dimensions, fingerprint=embedder.name, vectors=settings.vectors
        ) as collection,
    ):
        indexer = Indexer(
            parameters,
            files,
            collection,
            embedder,
            ContextObserver(run, settings.checkpoint_interval),
            job=run.job.id,
            largest=settings.max_file_size,
            at_once=_AT_ONCE * settings.checkpoint_interval,
            except_folders=(str(places.data),),
        )
        report = indexer.run(after, before)
    return msgspec.to_builtins(report)  # type: ignore[no-any-return] # a Struct is a dict then


def check_arguments(parameters: Parameters, places: Places) -> None:
    """Raise unless everything that a job names may be read at this moment.

    A route checks the same, but the job may have been stored by other means.
    """
    from penstock.apps.indexing.selection import check

    check(parameters.choice)
    if parameters.cutting.overlap * 2 > parameters.cutting.size:
        raise ConfigurationError("chunks may overlap by at most half of their size")
    folder = Path(parameters.folder)
    if "\0" in parameters.folder or folder.resolve() != folder:  # a link may lead anywhere
        raise FolderMissing(f"the folder {parameters.folder!r} no longer exists")
    for path in (*parameters.paths, parameters.metadata_file):
        if path is not None:
            places.check(path)
    if parameters.operation == "index":
        if parameters.paths:
            raise OutOfBounds("only a job that adds files may name paths")
        places.check(parameters.folder)
    elif folder not in _around(parameters.paths):
        raise OutOfBounds(f"{folder} is not the folder that contains the paths to add")
    if not folder.is_dir():
        raise FolderMissing(f"the folder {folder} no longer exists")


def _around(paths: Sequence[str]) -> tuple[Path, ...]:
    """Return the folders that may contain paths; nothing else in them is read."""
    around = Path(os.path.commonpath(paths)) if paths else None
    return () if around is None else (around, around.parent)


@cache
def _embedder(configuration: str) -> "Embedder":
    """Return an embedder, which stays open for further jobs of the process."""
    from penstock.vectors import open_embedder

    return open_embedder(configuration)


class ContextObserver:
    """Reports the progress of a job to its context, and ends the run if it was cancelled."""

    def __init__(self, run: Context, interval: int) -> None:
        self._run = run
        self._interval = interval
        self._reported_at = float("-inf")

    def progress(self, report: Report, done: int, path: str) -> None:
        """Report at the first and the last file, at each interval of files, and every second."""
        self._run.raise_if_cancelled()
        now = time.monotonic()
        if (
            done in (1, report.files_total)
            or done % self._interval == 0
            or now - self._reported_at >= 1.0
        ):
            self._reported_at = now
            self._run.progress(done, report.files_total, note=path)

    def checkpoint(self, after: str, report: Report) -> None:
        """Save where a later attempt continues."""
        self._run.checkpoint({"after": after, "report": msgspec.to_builtins(report)})
