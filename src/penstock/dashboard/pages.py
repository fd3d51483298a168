"""The files of the dashboard, served from memory with headers that restrict what pages may do."""

from hashlib import sha256
from importlib.resources import files
from typing import Annotated, NamedTuple

from msgspec import Meta

from penstock.web.bodies import header
from penstock.web.problems import Problem
from penstock.web.routes import Answer, Call, route

Name = Annotated[str, Meta(min_length=1, max_length=50)]

_KINDS = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # revalidated each time, mostly with 304
)


class File(NamedTuple):
    """A file as it is sent."""

    body: bytes
    kind: bytes
    etag: bytes


def load() -> dict[str, File]:
    """Return the files by name."""
    found: dict[str, File] = {}
    for one in files("penstock.dashboard").joinpath("files").iterdir():
        _, _, ending = one.name.rpartition(".")
        if ending in _KINDS:
            body = one.read_bytes()
            etag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
            found[one.name] = File(body, _KINDS[ending], etag)
    return found


class PageRoutes:
    """The files of the dashboard, none of which contains a secret."""

    def __init__(self) -> None:
        self._files = load()

    # Links from other sites may carry parameters that are not ours.
    @route("GET", "/", None, produces="text/html", also={304: None}, any_query=True)
    async def page(self, call: Call) -> Answer[bytes]:
        """Get the dashboard.

        The page itself; everything that it shows comes from the API.
        """
        return _answer(self._files["index.html"], call)

    @route(
        "GET",
        "/dashboard/{name}",
        None,
        produces="text/javascript",
        also={304: None},
        any_query=True,
    )
    async def file(self, name: Name, call: Call) -> Answer[bytes]:
        """Get a file of the dashboard.

        A script, a style sheet or an image of the page.
        """
        found = self._files.get(name)
        if found is None:
            raise Problem(404, f"the dashboard has no file {name!r:.80}")
        return _answer(found, call)


def _answer(file: File, call: Call) -> Answer[bytes]:
    headers = ((b"etag", file.etag), *_HEADERS)
    known = header(call.scope, b"if-none-match") or b""
    if file.etag in (one.strip().removeprefix(b"W/") for one in known.split(b",")):
        return Answer(304, None, headers)
    return Answer(200, file.body, ((b"content-type", file.kind), *headers))
