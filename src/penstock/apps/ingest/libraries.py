"""The documentation of a library: out of a folder, an archive, or what a URL answers."""

import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from penstock.apps.ingest.fetching import fetch
from penstock.apps.ingest.folders import Wanted, files_of
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.writing import Rejected, Source

_PIECE = 1 << 16
_AT_ONCE = 200
_TEXTS = frozenset(
    {".adoc", ".htm", ".html", ".md", ".markdown", ".mdx", ".org", ".rst", ".tex", ".text", ".txt"}
)


class Libraries:
    """Finds the documents of libraries, within the limits of the settings."""

    def __init__(self, settings: Settings, roots: Roots) -> None:
        self._settings = settings
        self._roots = roots

    def documents(self, source: str, place: str) -> Iterator[list[Source]]:
        """The documents of a library, some hundred at a time, as sources below `place`."""
        with self._local(source) as path:
            if path.is_dir():
                yield from self._of_folder(path, place)
            elif zipfile.is_zipfile(path) or tarfile.is_tarfile(path):
                with tempfile.TemporaryDirectory(prefix="penstock-library-") as folder:
                    self._unpack(path, Path(folder))
                    yield from self._of_folder(Path(folder), place)
            elif path.suffix.lower() in _TEXTS:
                yield [self._single(path, f"{place}/{path.name}")]
            else:
                raise Rejected(f"{path.name} is neither an archive nor a document")

    @contextmanager
    def _local(self, source: str) -> Iterator[Path]:
        """The source as a file or folder of this machine, inside the block."""
        if source.startswith(("http://", "https://")):
            with tempfile.TemporaryDirectory(prefix="penstock-library-") as folder:
                yield fetch(source, Path(folder), self._settings)
            return
        path = Path(source.removeprefix("file://"))
        if "://" in str(source) and not source.startswith("file:///"):
            raise Rejected(f"{source}: expected a folder, an archive, or a URL of http or https")
        self._roots.admit(str(path))
        if not path.exists():
            raise Rejected(f"there is no {path}")
        yield path.resolve()

    def _of_folder(self, folder: Path, place: str) -> Iterator[list[Source]]:
        largest = self._settings.max_file_size
        for found in files_of(Wanted(str(folder)), largest, self._roots.besides):
            texts = [
                self._single(Path(one.path), f"{place}/{Path(one.path).relative_to(folder)}")
                for one in found
                if one.why_not is None and Path(one.path).suffix.lower() in _TEXTS
            ]
            for start in range(0, len(texts), _AT_ONCE):
                yield texts[start : start + _AT_ONCE]

    def _single(self, path: Path, place: str) -> Source:
        from penstock.vectors.reading import Unfit, content_of, text_of

        try:
            text = text_of(content_of(str(path), self._settings.max_file_size))
        except Unfit as error:
            raise Rejected(f"{path.name}: {error}") from error
        return Source(place, {"item_type": "library"}, text)

    # Archives

    def _unpack(self, archive: Path, into: Path) -> None:
        """Write the texts of an archive into a folder; raises `Rejected` for what is hostile.

        Only regular files are written, under names of their own; links and devices are passed by.
        """
        if archive.stat().st_size > self._settings.max_archive_size:
            raise Rejected(f"{archive.name} is larger than an archive may be")
        files, size = 0, 0
        for name, content in _members(archive):
            files += 1
            if files > self._settings.max_archive_files:
                raise Rejected(f"{archive.name} has more files than an archive may have")
            path = into.joinpath(*_safe(archive, name))
            if path.suffix.lower() not in _TEXTS:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            size += _copy(content, path, self._settings.max_archive_size - size, archive)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for info in opened.infolist():
                    kind = stat.S_IFMT(info.external_attr >> 16)
                    if not info.is_dir() and kind in (0, stat.S_IFREG):
                        with opened.open(info) as content:
                            yield info.filename, content
            return
        with tarfile.open(archive) as tar:
            for member in tar:
                packed = tar.extractfile(member) if member.isreg() else None
                if packed is not None:
                    with packed:
                        yield member.name, packed
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, RuntimeError, OSError) as error:
        raise Rejected(f"{archive.name} cannot be unpacked: {error}") from error


def _safe(archive: Path, name: str) -> tuple[str, ...]:
    """The parts of a member's name; raises `Rejected` for one that leads elsewhere."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in name or ":" in parts[0]:
        raise Rejected(f"{archive.name} has a file that would lie outside of it: {name!r:.100}")
    return tuple(part for part in parts if part != ".")


def _copy(content: IO[bytes], path: Path, room: int, archive: Path) -> int:
    """Write what is read, as far as there is room; a size that a header tells is not believed."""
    written = 0
    with path.open("wb") as file:
        while piece := content.read(_PIECE):
            written += len(piece)
            if written > room:
                raise Rejected(f"{archive.name} holds more bytes than an archive may")
            file.write(piece)
    return written
