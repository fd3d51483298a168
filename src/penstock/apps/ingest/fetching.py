"""Fetches a URL that the settings allow: from an address that was checked, and from no other."""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.writing import Rejected
from penstock.core.redaction import redacted

_PIECE = 1 << 16
_TYPES = {
    "application/zip": ".zip",
    "application/gzip": ".tar.gz",
    "application/x-tar": ".tar",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
}


class FetchFailed(Exception):
    """A URL that did not answer, or not as it should; another attempt may fare better."""


def is_public(address: str) -> bool:
    """Whether an address belongs to the open internet, not to this machine or its network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast


def fetch(
    url: str, folder: Path, settings: Settings, *, admits: Callable[[str], bool] = is_public
) -> Path:
    """What a URL answers, as a file in a folder; raises `Rejected` or `FetchFailed`.

    The name is looked up once, every address of it has to be admitted, and the connection goes to
    the first: a name that means another machine a moment later changes nothing. Redirects are not
    followed.
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
            f"{redacted(url)} is not allowed: PENSTOCK_INGEST_URLS names what URLs may begin with"
        )
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise Rejected(f"{redacted(url)} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise Rejected(f"{redacted(url)} is not the URL of a plain document")
    if any(ord(letter) <= ord(" ") or ord(letter) == 0x7F for letter in url):  # noqa: PLR2004 - that of DEL
        raise Rejected("a URL has no blanks and no control characters in it")
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _address(parts: SplitResult, admits: Callable[[str], bool]) -> str:
    found = socket.getaddrinfo(parts.hostname, _port(parts), type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        if not admits(address):
            raise Rejected(f"{parts.hostname} is {address}, which is not on the open internet")
    return addresses[0]


def _connection(parts: SplitResult, address: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to that very address, which speaks to the host that the URL names."""
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
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP's own numbers
        raise Rejected(
            f"{parts.geturl()} leads elsewhere ({status}), and redirects are not followed"
        )
    if status != http.HTTPStatus.OK:
        kind = FetchFailed if status >= 500 or status == 429 else Rejected  # noqa: PLR2004 - statuses of HTTP
        raise kind(f"{parts.geturl()} was answered with {status}")
    file = folder / _name(parts, answer.getheader("Content-Type") or "")
    size = 0
    with file.open("wb") as writing:
        while piece := answer.read(_PIECE):
            size += len(piece)
            if size > largest:
                raise Rejected(f"{parts.geturl()} is larger than {largest:,} bytes")
            if time.monotonic() > until:
                raise FetchFailed(f"{parts.geturl()} took too long")
            writing.write(piece)
    return file


def _name(parts: SplitResult, kind: str) -> str:
    """A name for a file that tells what is in it."""
    last = PurePosixPath(unquote(parts.path)).name or "index"
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in last)[
        -100:
    ]
    ending = _TYPES.get(kind.partition(";")[0].strip().lower(), "")
    return plain if PurePosixPath(plain).suffix or not ending else plain + ending
