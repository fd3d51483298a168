"""The task that indexes: in a child process, so that it can be killed."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock import ConfigurationError, Context, Penstock, RetryPolicy, context
from penstock.apps.indexing.parameters import Parameters
from penstock.apps.indexing.places import INSTALL, OutOfBounds, Places, missing_packages
from penstock.apps.indexing.report import NothingIndexed, Report
from penstock.apps.indexing.settings import Settings

if TYPE_CHECKING:
    from penstock.vectors import Embedder

QUEUE = "indexing"
TASK = "indexing.run"
# Progress is cheap; making files durable costs as much for one as for some hundred.
_AT_ONCE = 4


class FolderMissing(Exception):
    """The folder of a job is not there any more."""


def register(penstock: Penstock, settings: Settings, places: Places) -> None:
    """Make the task known."""

    def run(parameters: Parameters) -> dict[str, object]:
        """Bring a collection up to date; what is there already is recognised by its content."""
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
    """Run a job: where an earlier attempt has left a checkpoint, from there."""
    if missing := missing_packages():
        raise ConfigurationError(f"indexing needs {', '.join(missing)}: {INSTALL}")
    from penstock.apps.indexing.files import Files, held
    from penstock.apps.indexing.indexer import Indexer
    from penstock.vectors import open_index

    folder = places.collection(parameters.collection)
    check_arguments(parameters, places)
    after, before = "", None
    if isinstance(run.state, dict):
        after, before = run.state["after"], msgspec.convert(run.state["report"], Report)
    embedder = _embedder(settings.embedder)
    # Waits for who resets the collection, and for an earlier run that is being killed.
    with (
        held(folder, wait=True),
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
            Teller(run, settings.checkpoint_interval),
            job=run.job.id,
            largest=settings.max_file_size,
            at_once=_AT_ONCE * settings.checkpoint_interval,
            besides=(str(places.data),),
        )
        report = indexer.run(after, before)
    return msgspec.to_builtins(report)  # type: ignore[no-any-return] # a Struct is a dict then


def check_arguments(parameters: Parameters, places: Places) -> None:
    """Raise unless everything that a job names may be read, now that it runs.

    A route has checked the same, if it was a route that stored the job.
    """
    from penstock.apps.indexing.choosing import check

    check(parameters.choice)
    if parameters.cutting.overlap * 2 > parameters.cutting.size:
        raise ConfigurationError("at most half of a chunk can be shared with the next")
    folder = Path(parameters.folder)
    if "\0" in parameters.folder or folder.resolve() != folder:  # a link may lead anywhere
        raise FolderMissing(f"there is no folder {parameters.folder!r} any more")
    for path in (*parameters.paths, parameters.metadata_file):
        if path is not None:
            places.check(path)
    if parameters.operation == "index":
        if parameters.paths:
            raise OutOfBounds("only a job that adds files names paths")
        places.check(parameters.folder)
    elif folder not in _around(parameters.paths):
        raise OutOfBounds(f"{folder} is not the folder around what is to be added")
    if not folder.is_dir():
        raise FolderMissing(f"there is no folder {folder} any more")


def _around(paths: Sequence[str]) -> tuple[Path, ...]:
    """What may be the folder around paths. It may be any: nothing else of it is read."""
    around = Path(os.path.commonpath(paths)) if paths else None
    return () if around is None else (around, around.parent)


@cache
def _embedder(configuration: str) -> "Embedder":
    """Kept for the next job of the same process."""
    from penstock.vectors import open_embedder

    return open_embedder(configuration)


class Teller:
    """Tells the job's context how far it is, and ends the run when it should end."""

    def __init__(self, run: Context, interval: int) -> None:
        self._run = run
        self._interval = interval
        self._told_at = float("-inf")

    def progress(self, report: Report, done: int, path: str) -> None:
        """At the first and the last file, every so many files, and every second."""
        self._run.raise_if_cancelled()
        now = time.monotonic()
        if (
            done in (1, report.files_total)
            or done % self._interval == 0
            or now - self._told_at >= 1.0
        ):
            self._told_at = now
            self._run.progress(done, report.files_total, note=path)

    def checkpoint(self, after: str, report: Report) -> None:
        """Let a later attempt go on from here."""
        self._run.checkpoint({"after": after, "report": msgspec.to_builtins(report)})
