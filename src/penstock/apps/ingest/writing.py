"""Files and texts into a collection, many at once: read, cut, embed, write, look again."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import Snooze
from penstock.apps.ingest.items import canonical

if TYPE_CHECKING:
    from penstock.vectors import Collection, Document

_ROUNDS = 3
_REST = timedelta(seconds=1)
HASH = "hash"
"""The name in the metadata of chunks of what their document was when they were made."""


class Rejected(Exception):
    """What is there cannot be ingested, now or later; the message says why."""


class FileMissing(Rejected):
    """There is no such file."""


class Source(NamedTuple):
    """A document that is asked for: a text, or the file at its path."""

    path: str
    metadata: Mapping[str, Any] = {}
    text: str | None = None


class Written(NamedTuple):
    """What became of a source."""

    path: str
    changed: bool


class Writer:
    """Brings collections up to date with sources; for any number of threads."""

    def __init__(self, largest: int, admit: Callable[[str], None]) -> None:
        """`admit` raises `Rejected` for a file that may not be read."""
        self._largest = largest
        self._admit = admit

    def write(
        self, collection: "Collection", sources: Sequence[Source]
    ) -> list[Written | Exception]:
        """Each source as it is now, in place of what its path had; what is unchanged stays.

        A file that has changed when it was written is read again; one that does not come to rest
        is put off. Doing it twice changes nothing.
        """
        answers: dict[int, Written | Exception] = {}
        left = list(range(len(sources)))
        for _ in range(_ROUNDS):
            found = {place: self._read(sources[place]) for place in left}
            answers |= {n: one for n, one in found.items() if isinstance(one, Exception)}
            documents = {n: one for n, one in found.items() if not isinstance(one, Exception)}
            answers |= self._replace(collection, documents)
            left = [n for n in documents if self._moved(sources[n], documents[n], answers[n])]
        for n in left:
            answers[n] = Snooze(_REST, f"{sources[n].path} keeps changing while it is read")
        return [answers[n] for n in range(len(sources))]

    def _replace(
        self, collection: "Collection", documents: Mapping[int, "Document"]
    ) -> dict[int, Written | Exception]:
        known = collection.index.metadata_at([one.path for one in documents.values()])
        changed = {
            n: one
            for n, one in documents.items()
            if known.get(one.path, {}).get(HASH) != one.metadata[HASH]
        }
        answers: dict[int, Written | Exception] = {
            n: Written(one.path, n in changed) for n, one in documents.items()
        }
        return answers | self._replace_changed(collection, changed)

    def _replace_changed(
        self, collection: "Collection", changed: Mapping[int, "Document"]
    ) -> dict[int, Exception]:
        """Write them together; when that fails, one by one, so that one fails for itself alone."""
        try:
            collection.replace(changed.values())
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            if len(changed) == 1:
                return dict.fromkeys(changed, error)
        else:
            return {}
        failed: dict[int, Exception] = {}
        for n, one in changed.items():
            failed |= self._replace_changed(collection, {n: one})
        return failed

    def _moved(self, source: Source, document: "Document", answer: Written | Exception) -> bool:
        """Whether a file that was written is another by now."""
        if source.text is not None or isinstance(answer, Exception):
            return False
        again = self._read(source)
        return isinstance(again, Exception) or again.metadata[HASH] != document.metadata[HASH]

    def _read(self, source: Source) -> "Document | Exception":
        from penstock.vectors import Document
        from penstock.vectors.reading import Unfit, content_of, text_of

        try:
            if source.text is None:
                self._admit(source.path)
                content = content_of(source.path, self._largest)
                text = text_of(content)
            else:
                text, content = source.text, source.text.encode()
        except Unfit as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return FileMissing(f"there is no file {source.path}")
            return Rejected(f"{source.path}: {error}")
        except (Rejected, UnicodeError) as error:
            return error if isinstance(error, Rejected) else Rejected(f"{source.path}: {error}")
        digest = digest_of(content, canonical(dict(source.metadata)))
        return Document(source.path, text, {**source.metadata, HASH: digest})


def digest_of(content: bytes, besides: str = "") -> str:
    """What a document was: its content, and what else its chunks say."""
    digest = hashlib.sha256(content)
    if besides:
        digest.update(besides.encode())
    return digest.hexdigest()


def total(answers: Iterable[Written | Exception]) -> dict[str, int]:
    """How many were written, were unchanged, and failed."""
    counts = {"written": 0, "unchanged": 0, "failed": 0}
    for answer in answers:
        if isinstance(answer, Exception):
            counts["failed"] += 1
        else:
            counts["written" if answer.changed else "unchanged"] += 1
    return counts
