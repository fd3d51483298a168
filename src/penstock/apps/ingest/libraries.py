"""The documentation of libraries: from a folder, an archive or a URL.

A URL is fetched only if the settings allow it, and only from addresses on the public internet.
"""

import http.client
import ipaddress
import socket
import ssl
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.apps.ingest.collections import Source
from penstock.apps.ingest.folders import Selection, files_of
from penstock.apps.ingest.items import Rejected
from penstock.apps.ingest.settings import Roots, Settings
from penstock.apps.kit import redacted
from penstock.vectors import UnreadableFile, decode_text, read_file

_PIECE = 1 << 16
_BATCH = 200
_TEXTS = frozenset(
    {".adoc", ".htm", ".html", ".md", ".markdown", ".mdx", ".org", ".rst", ".tex", ".text", ".txt"}
)
_SUFFIXES = {
    "application/zip": ".zip",
    "application/gzip": ".tar.gz",
    "application/x-tar": ".tar",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
}


class Libraries:
    """Finds the documents of libraries within the limits of the settings."""

    def __init__(self, settings: Settings, roots: Roots) -> None:
        self._settings = settings
        self._roots = roots

    def documents(self, source: str, place: str) -> Iterator[list[Source]]:
        """Yield batches of the documents of a library, as sources below `place`."""
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
        """Provide the source as a local file or folder inside the block."""
        if source.startswith(("http://", "https://")):
            with tempfile.TemporaryDirectory(prefix="penstock-library-") as folder:
                yield fetch(source, Path(folder), self._settings)
            return
        path = Path(source.removeprefix("file://"))
        if "://" in str(source) and not source.startswith("file:///"):
            raise Rejected(f"{source} must be a folder, an archive, or an http or https URL")
        self._roots.check(str(path))
        if not path.exists():
            raise Rejected(f"{path} does not exist")
        yield path.resolve()

    def _of_folder(self, folder: Path, place: str) -> Iterator[list[Source]]:
        largest = self._settings.max_file_size
        for found in files_of(Selection(str(folder)), largest, self._roots.data):
            texts = [
                self._single(Path(one.path), f"{place}/{Path(one.path).relative_to(folder)}")
                for one in found
                if one.why_not is None and Path(one.path).suffix.lower() in _TEXTS
            ]
            for start in range(0, len(texts), _BATCH):
                yield texts[start : start + _BATCH]

    def _single(self, path: Path, place: str) -> Source:
        try:
            text = decode_text(read_file(str(path), self._settings.max_file_size))
        except UnreadableFile as error:
            raise Rejected(f"{path.name}: {error}") from error
        return Source(place, {"item_type": "library"}, text)

    # Archives

    def _unpack(self, archive: Path, into: Path) -> None:
        """Extract the texts of an archive into a folder; raise `Rejected` for a hostile one.

        Only regular files are extracted; links and devices are skipped.
        """
        if archive.stat().st_size > self._settings.max_archive_size:
            raise Rejected(f"{archive.name} is larger than ingest.max_archive_size")
        files, size = 0, 0
        for name, content in _members(archive):
            files += 1
            if files > self._settings.max_archive_files:
                raise Rejected(f"{archive.name} has more files than ingest.max_archive_files")
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
        raise Rejected(f"{archive.name} cannot be extracted: {error}") from error


def _safe(archive: Path, name: str) -> tuple[str, ...]:
    """Return the parts of a member's name; raise `Rejected` if it leads out of the folder."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in name or ":" in parts[0]:
        raise Rejected(f"{archive.name} contains a file with an unsafe path: {name!r:.100}")
    return tuple(part for part in parts if part != ".")


def _copy(content: IO[bytes], path: Path, room: int, archive: Path) -> int:
    """Copy a member and return its actual size; raise `Rejected` if it exceeds `room`."""
    written = 0
    with path.open("wb") as file:
        while piece := content.read(_PIECE):
            written += len(piece)
            if written > room:
                raise Rejected(f"{archive.name} contains more bytes than ingest.max_archive_size")
            file.write(piece)
    return written


# URLs


class FetchFailed(Exception):
    """A download failed for a transient reason; another attempt may succeed."""


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet, not on this machine or its network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast


def fetch(
    url: str, folder: Path, settings: Settings, *, admits: Callable[[str], bool] = is_public
) -> Path:
    """Download a URL into a folder and return the file; raise `Rejected` or `FetchFailed`.

    The host name is resolved once, `admits` must accept all its addresses, and the connection goes
    to the first of them, so that a change of the name has no effect. Redirects are not followed.
    """
    parts = _allowed(url, settings)
    until = time.monotonic() + settings.url_timeout
    try:
        address = _address(parts, admits)
        connection = _connection(parts, address, settings.url_timeout)
        try:
            return _saved(connection, parts, folder, settings.max_archive_size, until)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(f"{redacted(url)}: {type(error).__name__} {error}") from error


def _allowed(url: str, settings: Settings) -> SplitResult:
    if not any(url.startswith(one) for one in settings.urls):
        raise Rejected(
            f"{redacted(url)} is not allowed; PENSTOCK_INGEST_URLS sets the allowed prefixes"
        )
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise Rejected(f"{redacted(url)} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise Rejected(f"{redacted(url)} must be an http or https URL without credentials")
    if any(ord(letter) <= ord(" ") or ord(letter) == 0x7F for letter in url):  # noqa: PLR2004 - DEL
        raise Rejected("the URL must not contain spaces or control characters")
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _address(parts: SplitResult, admits: Callable[[str], bool]) -> str:
    found = socket.getaddrinfo(parts.hostname, _port(parts), type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        if not admits(address):
            raise Rejected(f"{parts.hostname} is {address}, which is not on the public internet")
    return addresses[0]


def _connection(parts: SplitResult, address: str, timeout: float) -> http.client.HTTPConnection:
    """Connect to this address, but talk to the host in the URL."""
    host, port = str(parts.hostname), _port(parts)
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    plain = socket.create_connection((address, port), timeout)
    connection.sock = plain
    if parts.scheme == "https":
        try:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
    return connection


def _saved(
    connection: http.client.HTTPConnection,
    parts: SplitResult,
    folder: Path,
    largest: int,
    until: float,
) -> Path:
    path = parts.path or "/"
    connection.putrequest(
        "GET", f"{path}?{parts.query}" if parts.query else path, skip_accept_encoding=True
    )
    connection.putheader("Accept-Encoding", "identity")
    connection.putheader("User-Agent", "penstock")
    connection.endheaders()
    answer = connection.getresponse()
    status = answer.status
    if 300 <= status < 400:  # noqa: PLR2004 - statuses of HTTP
        raise Rejected(f"{parts.geturl()} redirects ({status}), and redirects are not followed")
    if status != http.HTTPStatus.OK:
        kind = FetchFailed if status >= 500 or status == 429 else Rejected  # noqa: PLR2004 - statuses of HTTP
        raise kind(f"{parts.geturl()} returned status {status}")
    file = folder / _name(parts, answer.getheader("Content-Type") or "")
    size = 0
    with file.open("wb") as writing:
        while piece := answer.read(_PIECE):
            size += len(piece)
            if size > largest:
                raise Rejected(f"{parts.geturl()} is larger than {largest:,} bytes")
            if time.monotonic() > until:
                raise FetchFailed(f"{parts.geturl()} took longer than ingest.url_timeout")
            writing.write(piece)
    return file


def _name(parts: SplitResult, kind: str) -> str:
    """Return a file name with a suffix that reflects the content."""
    last = PurePosixPath(unquote(parts.path)).name or "index"
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in last)[
        -100:
    ]
    suffix = _SUFFIXES.get(kind.partition(";")[0].strip().lower(), "")
    return plain if PurePosixPath(plain).suffix or not suffix else plain + suffix
