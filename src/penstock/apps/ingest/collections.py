"""The collections of ingested documents: one per tenant, collection and branch."""

import hashlib
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from penstock import Snooze
from penstock.apps.ingest import shapes
from penstock.apps.ingest.items import CollectionName, Rejected, canonical
from penstock.apps.ingest.settings import Settings
from penstock.apps.kit import LazyEmbedder

if TYPE_CHECKING:
    from penstock.vectors import Collection, Document

HASH = "hash"
"""The key of the document's digest in the metadata of chunks."""
_MOST_OPEN = 16
_LONGEST = 150
_CATALOGUE = "catalogue.db"
_REMOVED = ".gone-"
_ROUNDS = 3
_PAUSE = timedelta(seconds=1)


class _Open:
    """An open collection and the number of its users."""

    def __init__(self, collection: "Collection", inode: int) -> None:
        self.collection = collection
        self.inode = inode
        self.users = 0


class Collections:
    """The collections of one server, opened on demand; thread-safe.

    Other processes may have the same collections open. A collection that another process has
    removed is opened again, since inodes are compared rather than only names.
    """

    def __init__(self, settings: Settings, data: Path) -> None:
        self.root = data / "ingest"
        self.embedder = LazyEmbedder(settings.embedder)
        self._vectors = settings.vectors
        self._lock = threading.Lock()
        self._open: OrderedDict[CollectionName, _Open] = OrderedDict()

    @contextmanager
    def using(self, target: CollectionName) -> Iterator["Collection"]:
        """Keep a collection open inside the block; create it if it does not exist."""
        one = self._acquire(target)
        try:
            yield one.collection
        finally:
            with self._lock:
                one.users -= 1

    def exists(self, target: CollectionName) -> bool:
        """Return whether anything was ever ingested there."""
        return (self._folder(target) / _CATALOGUE).exists()

    def search(self, query: shapes.IngestQuestion) -> shapes.IngestResults:
        """Return the chunks that match a query best.

        Raises `ConfigurationError` if the collection was created with another embedder.
        """
        from penstock.vectors import Where

        target = CollectionName(query.tenant_id, query.collection, query.branch)
        if not self.exists(target):
            return shapes.IngestResults(results=[])
        where = Where(under=query.under or "")
        with self.using(target) as collection:
            hits = collection.search(query.query, k=query.top_k, where=where, mode=query.mode)
        return shapes.IngestResults(
            results=[
                shapes.IngestResult(
                    id=hit.id,
                    text=hit.text,
                    path=hit.path,
                    score=hit.score,
                    metadata=dict(hit.metadata),
                )
                for hit in hits
            ]
        )

    def remove_tenant(self, tenant_id: str) -> int:
        """Remove all collections of a tenant; return how many.

        A rename removes them in one step, so that no process opens a partly removed one.
        """
        folder = self.root / _file_name(tenant_id)
        removed = self.root / f"{_REMOVED}{uuid.uuid4().hex}"
        with self._lock:
            for target in [one for one in self._open if one.tenant_id == tenant_id]:
                self._open.pop(target).collection.close()
            try:
                folder.rename(removed)
            except FileNotFoundError:
                return 0
        found = len(list(removed.glob(f"*/*/{_CATALOGUE}")))
        shutil.rmtree(removed, ignore_errors=True)
        return found

    def clean_up(self) -> None:
        """Complete removals that were interrupted."""
        for left in self.root.glob(f"{_REMOVED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def close(self) -> None:
        """Close all collections and the embedder."""
        with self._lock:
            for one in self._open.values():
                one.collection.close()
            self._open.clear()
        self.embedder.close()

    def _acquire(self, target: CollectionName) -> _Open:
        from penstock.vectors import Collection

        embedder = self.embedder.get()
        with self._lock:
            one = self._open.get(target)
            if one is not None and _inode(self._folder(target)) != one.inode:
                self._open.pop(target).collection.close()
                one = None
            if one is None:
                folder = self._folder(target)
                found = Collection.open(folder, embedder, vectors=self._vectors)
                one = self._open[target] = _Open(found, _inode(folder))
            self._open.move_to_end(target)
            one.users += 1
            self._close_idle()
            return one

    def _close_idle(self) -> None:
        for target in [target for target, one in self._open.items() if not one.users]:
            if len(self._open) <= _MOST_OPEN:
                return
            self._open.pop(target).collection.close()

    def _folder(self, target: CollectionName) -> Path:
        return self.root.joinpath(*map(_file_name, target))


def _inode(folder: Path) -> int:
    try:
        return os.stat(folder / _CATALOGUE).st_ino  # noqa: PTH116 - called for every batch
    except OSError:
        return 0


def _file_name(name: str) -> str:
    """Return a folder name that is valid on every file system and never leads elsewhere."""
    quoted = quote(name, safe=" ").replace(".", "%2E")
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{quoted[:100]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


# Writing documents


class Source(NamedTuple):
    """A document to write: a text, or the file at its path."""

    path: str
    metadata: Mapping[str, Any] = {}
    text: str | None = None


class Written(NamedTuple):
    """The result of writing a source."""

    path: str
    changed: bool


class Writer:
    """Updates collections from sources; thread-safe."""

    def __init__(self, largest: int, check: Callable[[str], None]) -> None:
        """`check` raises `Rejected` for a file that may not be read."""
        self._largest = largest
        self._check = check

    def write(
        self, collection: "Collection", sources: Sequence[Source]
    ) -> list[Written | Exception]:
        """Replace the documents at the paths of the sources; skip unchanged ones.

        A file that changed while it was written is read again; if it keeps changing, its result
        is a `Snooze`. Writing the same source twice changes nothing.
        """
        results: dict[int, Written | Exception] = {}
        left = list(range(len(sources)))
        for _ in range(_ROUNDS):
            found = {place: self._read(sources[place]) for place in left}
            results |= {n: one for n, one in found.items() if isinstance(one, Exception)}
            documents = {n: one for n, one in found.items() if not isinstance(one, Exception)}
            results |= self._replace(collection, documents)
            left = [n for n in documents if self._has_changed(sources[n], documents[n], results[n])]
        for n in left:
            results[n] = Snooze(_PAUSE, f"{sources[n].path} keeps changing while it is read")
        return [results[n] for n in range(len(sources))]

    def _replace(
        self, collection: "Collection", documents: Mapping[int, "Document"]
    ) -> dict[int, Written | Exception]:
        known = collection.index.metadata_at([one.path for one in documents.values()])
        changed = {
            n: one
            for n, one in documents.items()
            if known.get(one.path, {}).get(HASH) != one.metadata[HASH]
        }
        results: dict[int, Written | Exception] = {
            n: Written(one.path, n in changed) for n, one in documents.items()
        }
        return results | self._replace_changed(collection, changed)

    def _replace_changed(
        self, collection: "Collection", changed: Mapping[int, "Document"]
    ) -> dict[int, Exception]:
        """Write documents together; if that fails, one by one, so that only bad ones fail."""
        try:
            collection.replace(changed.values())
        except Exception as error:  # noqa: BLE001 - raised for the source that caused it
            if len(changed) == 1:
                return dict.fromkeys(changed, error)
        else:
            return {}
        failed: dict[int, Exception] = {}
        for n, one in changed.items():
            failed |= self._replace_changed(collection, {n: one})
        return failed

    def _has_changed(
        self, source: Source, document: "Document", result: Written | Exception
    ) -> bool:
        """Return whether a file has changed since it was written."""
        if source.text is not None or isinstance(result, Exception):
            return False
        again = self._read(source)
        return isinstance(again, Exception) or again.metadata[HASH] != document.metadata[HASH]

    def _read(self, source: Source) -> "Document | Exception":
        from penstock.vectors import Document, UnreadableFile, decode_text, read_file

        try:
            if source.text is None:
                self._check(source.path)
                content = read_file(source.path, self._largest)
                text = decode_text(content)
            else:
                text, content = source.text, source.text.encode()
        except UnreadableFile as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return Rejected(f"there is no file {source.path}")
            return Rejected(f"{source.path}: {error}")
        except (Rejected, UnicodeError) as error:
            return error if isinstance(error, Rejected) else Rejected(f"{source.path}: {error}")
        digest = digest_of(content, canonical(dict(source.metadata)))
        return Document(source.path, text, {**source.metadata, HASH: digest})


def digest_of(content: bytes, metadata: str = "") -> str:
    """Return the digest of a document: of its content and the metadata of its chunks."""
    digest = hashlib.sha256(content)
    if metadata:
        digest.update(metadata.encode())
    return digest.hexdigest()


def count_results(results: Iterable[Written | Exception]) -> dict[str, int]:
    """Return how many sources were written, were unchanged, and failed."""
    counts = {"written": 0, "unchanged": 0, "failed": 0}
    for result in results:
        if isinstance(result, Exception):
            counts["failed"] += 1
        else:
            counts["written" if result.changed else "unchanged"] += 1
    return counts
