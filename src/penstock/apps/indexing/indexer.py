"""Indexes a folder: walks through it and brings a collection up to date.

It is idempotent: files that the collection already has are recognised by content, and the chunks of
a file are replaced together.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock import ConfigurationError
from penstock.apps.indexing.files import Files, Known
from penstock.apps.indexing.job import NothingIndexed, NotVerified, Observer, Parameters, Report
from penstock.apps.indexing.selection import Selection, kind_of, language_of
from penstock.vectors import (
    Chunk,
    Chunker,
    Embedder,
    Index,
    Item,
    TextChunker,
    Walk,
    Where,
    chunker_for,
)
from penstock.vectors import FoundFile as Met
from penstock.vectors import UnreadableFile as Unfit
from penstock.vectors import decode_text as text_of
from penstock.vectors import read_file as content_of

CHUNKS_AT_ONCE = 1_000
"""Files are written after this many chunks, after a number of files, and every second."""
_EXAMPLES = 20
_METADATA_LIMIT = 100_000


class SplitFile(NamedTuple):
    """A file that was split into chunks and waits to be written."""

    known: Known
    chunks: list[Chunk]


class Indexer:
    """One run of one job on one collection."""

    def __init__(
        self,
        parameters: Parameters,
        files: Files,
        index: Index,
        embedder: Embedder,
        observer: Observer,
        *,
        job: int,
        largest: int,
        at_once: int = 50,
        except_folders: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `at_once` files are written together."""
        self._parameters = parameters
        self._files = files
        self._index = index
        self._embedder = embedder
        self._observer = observer
        self._job = job
        self._largest = largest
        self._at_once = at_once
        self._except_folders = except_folders
        self._clock = clock
        self._metadata = read_metadata(parameters.metadata_file)
        self._how = self._digest_of_how()
        self._ready: list[SplitFile] = []
        self._waiting = 0
        self._written_at = 0.0
        self._skipped: Counter[str] = Counter()
        self.report = Report()

    def run(self, after: str = "", before: Report | None = None) -> Report:
        """Index all files after a path that an earlier attempt reached with this report."""
        if self._parameters.operation == "index" or not self._files.owner(self._parameters.folder):
            self._files.ask(self._parameters)
        self._walk()
        if before is not None:
            self._resume(before)
        done = self._count_up_to(after)
        self._written_at = self._clock()
        for path in self._files.met(after):
            self._take(path)
            done += 1
            self._observer.progress(self.report, done, path)
            if self._is_time():
                self._write(path)
        self._write(None)
        if self._parameters.operation == "index":
            self._forget_missing()
        self._verify()
        self._files.note_done(self._parameters.folder, datetime.now(UTC))
        return self.report

    # Finding files

    def _walk(self) -> None:
        self._files.begin_walk()
        self._files.meet(self._met())
        self.report.files_total = self._files.count_met()
        self._count_skipped()

    def _met(self) -> Iterator[str]:
        for met in self._places():
            if met.why_not is None:
                yield met.path
            else:
                self._skip(met.path, met.why_not)

    def _places(self) -> Iterator[Met]:
        for place in self._parameters.paths or (self._parameters.folder,):
            if Path(place).is_dir():
                yield from walk_through(
                    place, self._parameters, self._largest, self._except_folders
                )
            else:
                yield Met(place)

    def _resume(self, before: Report) -> None:
        """Continue the counts of an earlier attempt; this one counted what the walk found again."""
        after = self.report
        self.report = msgspec.structs.replace(
            before,
            files_total=after.files_total,
            files_skipped=0,
            skipped={},
            examples=before.examples,
        )
        for reason, n in before.skipped.items():
            self._skipped[reason] = max(n, self._skipped[reason])
        self._count_skipped()

    def _count_up_to(self, after: str) -> int:
        return self._files.count_met_up_to(after) if after else 0

    # One file

    def _take(self, path: str) -> None:
        """Split a file into chunks if it has changed."""
        try:
            content = content_of(path, self._largest)
            digest = self._digest(content)
            known = self._files.get(path)
            if known is not None and known.digest == digest and not self._has_to(known):
                if known.job == self._job:  # by an attempt that was killed before it reported it
                    self._count(known.chunks)
                else:
                    self.report.files_unchanged += 1
                return
            chunks = self._chunker(path).chunk(text_of(content))
        except Unfit as unfit:
            self._skip(path, str(unfit))
            self._count_skipped()
            return
        folder = self._owner(path)
        self._ready.append(SplitFile(Known(path, folder, digest, len(chunks), self._job), chunks))
        self._waiting += len(chunks)
        self._count(len(chunks))

    def _has_to(self, known: Known) -> bool:
        return self._parameters.force and known.job != self._job

    def _count(self, chunks: int) -> None:
        self.report.files_indexed += 1
        self.report.chunks_created += chunks

    def _skip(self, path: str, reason: str) -> None:
        self._skipped[reason] += 1
        if len(self.report.examples) < _EXAMPLES:
            self.report.examples.append((path, reason))

    def _count_skipped(self) -> None:
        self.report.skipped = dict(self._skipped)
        self.report.files_skipped = self._skipped.total()

    def _owner(self, path: str) -> str:
        folder = self._parameters.folder
        if self._parameters.operation == "index":
            return folder
        return self._files.owner(path) or folder

    def _chunker(self, path: str) -> Chunker:
        cutting = self._parameters.cutting
        if cutting.strategy == "text_based" and kind_of(path) != "doc":
            return TextChunker(cutting.size, cutting.overlap, language_of(path))
        return chunker_for(path, cutting.size, cutting.overlap)

    def _digest(self, content: bytes) -> str:
        return f"{hashlib.blake2b(content, digest_size=16).hexdigest()}-{self._how}"

    def _digest_of_how(self) -> str:
        """Return a digest of everything except the content that the chunks of a file depend on."""
        how = (self._embedder.name, self._parameters.cutting, self._metadata)
        text = msgspec.json.encode(how, order="sorted")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    # Many files

    def _is_time(self) -> bool:
        return (
            self._waiting >= CHUNKS_AT_ONCE
            or len(self._ready) >= self._at_once
            or self._clock() - self._written_at >= 1.0
        )

    def _write(self, path: str | None) -> None:
        """Write the files that are ready; all files up to this path are durable then."""
        if self._ready:
            paths = [one.known.path for one in self._ready]
            self._files.doubt(paths)
            self._index.replace(paths, self._items())
            self._files.keep(one.known for one in self._ready)
            self._ready, self._waiting = [], 0
        if path is not None:
            self._observer.checkpoint(path, self.report)
        self._written_at = self._clock()

    def _items(self) -> Iterator[Item]:
        cut = [
            (one.known.path, n, chunk) for one in self._ready for n, chunk in enumerate(one.chunks)
        ]
        # The enclosing symbol says what a chunk is about, so it is embedded as well.
        texts = [f"{chunk.symbol}\n{chunk.text}".lstrip("\n") for _, _, chunk in cut]
        vectors = self._embedder.embed(texts) if texts else ()
        for (path, n, chunk), vector in zip(cut, vectors, strict=True):
            yield self._item(path, n, chunk, vector)

    def _item(self, path: str, n: int, chunk: Chunk, vector: Any) -> Item:
        language = chunk.language or language_of(path)
        return Item(
            id=f"{path}#{n}",
            vector=vector,
            text=chunk.text,
            path=path,
            type=f"{kind_of(path)}:{language}",
            title=chunk.symbol or Path(path).name,
            metadata={
                **self._metadata,
                "chunk_type": chunk.type,
                "end_line": chunk.end_line,
                "language": language,
                "start_line": chunk.start_line,
                "symbol": chunk.symbol,
            },
        )

    def _forget_missing(self) -> None:
        for paths in self._files.missing(self._parameters.folder):
            self.report.files_deleted += len(paths)
            self.report.chunks_removed += forget(self._files, self._index, paths)

    # Verifying

    def _verify(self) -> None:
        """Raise if the collection does not match what this job has written."""
        report, folder = self.report, self._parameters.folder
        if report.files_total == 0 and report.files_deleted == 0:
            raise NothingIndexed(f"there is nothing to index in {folder}: {_why(report)}")
        expected = self._files.chunks_under(folder)
        found = self._index.count(Where(under=folder))
        if found != expected:
            self._files.doubt_under(folder)
            raise NotVerified(
                f"verification failed: the index has {found} chunks of {folder}, not {expected}"
            )
        report.total_chunks = found
        if not found and report.files_deleted == 0:
            raise NothingIndexed(
                f"the {report.files_total} files of {folder} contain no text: {_why(report)}"
            )


def walk_through(
    folder: str, parameters: Parameters, largest: int, except_folders: tuple[str, ...]
) -> Walk:
    """Return the walk through a folder that a job requests."""
    choice = parameters.choice
    return Walk(
        folder,
        Selection(choice),
        recursive=choice.recursive,
        largest=largest,
        except_folders=except_folders,
    )


def forget(files: Files, index: Index, paths: list[str]) -> int:
    """Remove files from a collection; return the number of their chunks."""
    files.doubt(paths)
    removed = index.delete(where=Where(paths=tuple(paths)))
    files.forget(paths)
    return removed


def read_metadata(file: str | None) -> dict[str, Any]:
    """Return the JSON object that a metadata file adds to every chunk."""
    if file is None:
        return {}
    try:
        content = content_of(file, _METADATA_LIMIT)
        found = json.loads(content)
    except (Unfit, ValueError) as error:
        raise ConfigurationError(f"the metadata file {file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"the metadata file {file} must contain a JSON object")
    return found


def _why(report: Report) -> str:
    if not report.skipped:
        return "no file matches the request" if not report.files_total else "all are empty"
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(report.skipped.items()))
    return f"{report.files_skipped} skipped ({reasons})"
