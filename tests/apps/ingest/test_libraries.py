import io
import socket
import ssl
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import State
from penstock.apps.ingest.items import Rejected
from penstock.apps.ingest.libraries import FetchFailed, fetch, is_public
from penstock.apps.ingest.settings import Settings
from tests.apps.ingest.support import Bench, bench

CERTIFICATES = Path(__file__).with_name("certificates")
"""A private certificate authority and its certificate for localhost, valid for a hundred years."""
Pack = Callable[[Path, dict[str, str]], Path]


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def tarred(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def library(source: Path | str, version: str = "1") -> dict[str, str]:
    return {"library_name": "pump", "library_version": version, "source_url": str(source)}


@pytest.mark.parametrize("pack", [zipped, tarred])
async def test_an_archive_is_ingested_and_brought_up_to_date(table: Bench, pack: Pack) -> None:
    files = {"docs/a.md": "A", "docs/b.rst": "B", "docs/c.png": "\0"}
    archive = pack(table.folder / "docs.archive", files)
    job = await table.run("library", "ingest", library(archive))
    assert job.returned == {"documents": 2, "written": 2, "unchanged": 0, "failed": 0, "removed": 0}
    place = "library:pump@1/docs"
    assert table.chunks() == {f"{place}/a.md": "A", f"{place}/b.rst": "B"}
    archive = pack(table.folder / "newer.archive", {"docs/a.md": "A", "docs/d.txt": "D"})
    job = await table.run("library", "update", library(archive))
    assert job.returned == {"documents": 2, "written": 1, "unchanged": 1, "failed": 0, "removed": 1}
    await table.run("library", "ingest", library(archive, "2"))
    await table.run("library", "delete", {"library_name": "pump", "library_version": "1"})
    assert set(table.chunks()) == {"library:pump@2/docs/a.md", "library:pump@2/docs/d.txt"}


@pytest.mark.parametrize("name", ["../out.md", "/etc/out.md", "a/../../out.md", "..\\out.md"])
@pytest.mark.parametrize("pack", [zipped, tarred])
async def test_nothing_leaves_an_archive(table: Bench, pack: Pack, name: str) -> None:
    archive = pack(table.folder / "docs.archive", {"a.md": "A", name: "out"})
    job = await table.run("library", "ingest", library(archive))
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "unsafe path" in str(job.error)
    assert table.chunks() == {}


async def test_links_in_archives_are_skipped(table: Bench) -> None:
    path = table.folder / "links.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("link.md")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
        good = tarfile.TarInfo("a.md")
        good.size = 1
        archive.addfile(good, io.BytesIO(b"A"))
    await table.run("library", "ingest", library(path))
    assert table.chunks() == {"library:pump@1/a.md": "A"}
    path = table.folder / "links.zip"
    with zipfile.ZipFile(path, "w") as packed:
        link = zipfile.ZipInfo("link.md")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "/etc/passwd")
        packed.writestr("b.md", "B")
    await table.run("library", "update", library(path))
    assert table.chunks() == {"library:pump@1/b.md": "B"}


async def test_archives_have_limits(tmp_path: Path) -> None:
    async with bench(tmp_path, max_archive_size=10_000, max_archive_files=3) as table:
        bomb = zipfile.ZipFile(table.folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED)
        with bomb:
            bomb.writestr("a.md", "a" * 1_000_000)
        job = await table.run("library", "ingest", library(table.folder / "bomb.zip"))
        assert "more bytes" in str(job.error)
        many = zipped(table.folder / "many.zip", {f"{n}.md": "x" for n in range(4)})
        job = await table.run("library", "ingest", library(many))
        assert "more files" in str(job.error)
        table.write("broken.zip", b"PK\x03\x04" + b"broken" * 10)
        job = await table.run("library", "ingest", library(table.folder / "broken.zip"))
        assert job.state is State.FAILED


async def test_a_url_is_not_fetched_unless_it_is_allowed(table: Bench) -> None:
    job = await table.run("library", "ingest", library("https://example.org/docs.zip"))
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "PENSTOCK_INGEST_URLS" in str(job.error)


@contextmanager
def site(
    answers: dict[str, tuple[int, dict[str, str], bytes]], certificate: Path | None = None
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers[self.path]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # the client reports its own refusal

    server, scheme = Server(("127.0.0.1", 0), Handler), "http"
    if certificate is not None:
        scheme, tls = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{scheme}://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_urls_that_are_fetched_and_refused(tmp_path: Path) -> None:
    answers = {
        "/a/docs.md": (200, {"Content-Type": "text/markdown"}, b"# Docs"),
        "/a/page?x=1": (200, {"Content-Type": "text/html; charset=utf-8"}, b"<p>"),
        "/a/moved": (302, {"Location": "/a/docs.md"}, b""),
        "/a/large": (200, {}, b"x" * 2_000),
        "/a/gone": (404, {}, b""),
        "/a/busy": (503, {}, b""),
    }
    with site(answers) as url:
        settings = Settings(urls=(f"{url}/a/",), max_archive_size=1_000)

        def get(path: str) -> Path:
            return fetch(f"{url}{path}", tmp_path, settings, admits=lambda _: True)

        assert get("/a/docs.md").read_text() == "# Docs"
        assert get("/a/docs.md").name == "docs.md"
        assert get("/a/page?x=1").name == "page.html"
        for path, why in (
            ("/a/moved", "redirects"),
            ("/a/large", "larger than"),
            ("/a/gone", "404"),
            ("/b/docs.md", "not allowed"),
        ):
            with pytest.raises(Rejected, match=why):
                get(path)
        with pytest.raises(FetchFailed, match="503"):
            get("/a/busy")
        with pytest.raises(Rejected, match="not on the public internet"):
            fetch(f"{url}/a/docs.md", tmp_path, settings)
    with pytest.raises(FetchFailed):
        get("/a/docs.md")
    with pytest.raises(Rejected):
        fetch("http://me@localhost/", tmp_path, Settings(urls=("http://me@localhost/",)))


def test_https_verifies_the_host_of_the_url_at_the_checked_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "/a/docs.md": (200, {"Content-Type": "text/markdown"}, b"# Docs"),
        "/a/moved": (301, {"Location": "https://localhost/elsewhere"}, b""),
        "/a/large": (200, {}, b"x" * 2_000),
    }
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    with site(answers, CERTIFICATES / "localhost.pem") as url:
        other = url.replace("localhost", "other.test")
        settings = Settings(urls=(f"{url}/a/", f"{other}/a/"), max_archive_size=1_000)
        looked_up: list[object] = []
        real = socket.getaddrinfo

        def lookup(host: Any, *given: Any, **named: Any) -> Any:
            """Resolve a name to this machine once; a second lookup fails."""
            if host == "127.0.0.1":  # the connection itself
                return real(host, *given, **named)
            looked_up.append(host)
            here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
            return [here] if len(looked_up) == 1 else []

        def get(path: str) -> Path:
            looked_up.clear()
            with monkeypatch.context() as patched:
                patched.setattr("penstock.apps.ingest.libraries.socket.getaddrinfo", lookup)
                return fetch(path, tmp_path, settings, admits=lambda at: at == "127.0.0.1")

        assert get(f"{url}/a/docs.md").read_text() == "# Docs"
        assert looked_up == ["localhost"]
        with pytest.raises(Rejected, match="redirects are not followed"):
            get(f"{url}/a/moved")
        with pytest.raises(Rejected, match="larger than"):
            get(f"{url}/a/large")
        with pytest.raises(FetchFailed, match="certificate is not valid for"):
            get(f"{other}/a/docs.md")
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(FetchFailed, match="CERTIFICATE_VERIFY_FAILED"):
            get(f"{url}/a/docs.md")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),  # noqa: S104 - is what is refused
        *("::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "224.0.0.1", "100.64.0.1"),
    ],
)
def test_private_addresses_are_refused(address: str) -> None:
    assert not is_public(address)
    assert is_public("93.184.216.34")
