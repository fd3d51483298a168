"""Authentication: tokens in a header or a cookie, and protection against pages of other sites.

A browser sends requests of any page to any address, this machine included. On a server without
tokens, a page of another site is recognised by what the browser says about it (`Sec-Fetch-Site`,
`Origin`), and a page whose own name now points to this machine (DNS rebinding) by the name that it
calls (`Host`). Programs send no such headers and are served.
"""

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

from penstock.apps.kit.background import in_background
from penstock.core.errors import PenstockError
from penstock.core.times import from_micros
from penstock.core.tokens import Access, Token, digest_of
from penstock.engine.penstock import Penstock
from penstock.web.bodies import Scope, header
from penstock.web.problems import Problem
from penstock.web.routes import ANYBODY, Identity

_log = logging.getLogger(__name__)

_REFRESH = 30.0
"""Seconds after which tokens are read again although nothing in the store has changed."""
_PAUSE = 1.0
"""Seconds between two reads of the tokens: a revoked one may be accepted for this long."""

_LOCALHOST = "localhost"
_REMEMBERED_HOSTS = 1_000

PAGE_HEADER, PAGE = b"x-requested-with", b"penstock"
"""The header that the dashboard sends and a page of another site cannot."""


class Holder(Protocol):
    """A token, or a user of the application that a server is mounted in."""

    @property
    def name(self) -> str:
        """The name in the log and on pages."""
        ...

    @property
    def scopes(self) -> Collection[Access]:
        """What is permitted."""
        ...


class Guard(Protocol):
    """Authenticates the callers of a service."""

    is_open: bool
    """Whether every caller may call every route."""
    is_external: bool
    """Whether users sign in elsewhere, and not with a token."""

    def __call__(self, scope: Scope, access: Access) -> Identity:
        """Return who calls; raise a `Problem` if they lack the scope `access`."""
        ...

    def holder_of(self, scope: Scope) -> Holder:
        """Return who calls; raise a `Problem` if the caller cannot be identified."""
        ...

    def token(self, secret: str) -> Holder:
        """Return the token with this secret; raise a `Problem` if it is not valid here."""
        ...


class Authenticator:
    """Authenticates callers by their tokens; without any token it accepts all, where allowed."""

    is_external = False

    def __init__(
        self, penstock: Penstock, *, open_without_tokens: bool, site: "Site | None" = None
    ) -> None:
        self._penstock = penstock
        self.is_open = open_without_tokens
        """Whether every program on this machine may call every route; pages of other sites not."""
        self._site = site or Site()
        self._tokens: Mapping[str, Token] = {}

    async def refresh(self) -> None:
        """Read the tokens from the store."""
        self._tokens = {token.digest: token for token in await self._penstock.tokens.list()}
        if self._tokens:  # revoking the last token must not open the server again
            self.is_open = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow changes of the tokens in the store, inside the block."""
        await self.refresh()
        async with in_background(self._follow()):
            yield

    async def _follow(self) -> None:
        seen = 0
        while True:
            try:
                seen = await self._penstock.wait(seen, _REFRESH)
                await self.refresh()
            except PenstockError as error:
                _log.warning("cannot read the access tokens: %s", error)
            await asyncio.sleep(_PAUSE)

    def __call__(self, scope: Scope, access: Access) -> Identity:
        """Return who calls; raise a `Problem` if they lack the scope `access`."""
        if self.is_open:
            self._site.check(scope)
            return ANYBODY
        token = self.holder_of(scope)
        if access not in token.scopes:
            raise Problem(403, f"the token {token.name!r} does not have the scope {access}")
        return Identity(token.name, Access.ADMIN in token.scopes)

    def holder_of(self, scope: Scope) -> Token:
        """Return the token of a request; raise a `Problem` if there is none or it is not valid."""
        kind, _, secret = (header(scope, b"authorization") or b"").partition(b" ")
        if kind.lower() == b"bearer" and secret:
            return self.token(secret.decode("latin-1").strip())
        cookie = session_cookie(scope)
        if cookie is None:
            raise _unauthorised("a token is required: send the header Authorization: Bearer TOKEN")
        # A browser adds its cookie to the requests of every page: only ours may use it.
        check_own_page(scope)
        return self.token(cookie)

    def token(self, secret: str) -> Token:
        """Return the token with this secret; raise a `Problem` if it is unknown or expired."""
        digest = digest_of(secret)
        token = self._tokens.get(digest)
        if token is None or not hmac.compare_digest(token.digest, digest):
            raise _unauthorised("the token is unknown; it may have been revoked")
        if token.has_expired(from_micros(self._penstock.clock())):
            raise _unauthorised("the token has expired")
        return token


def _unauthorised(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})


# Pages of other sites


def is_loopback(host: str) -> bool:
    """Return whether a name or an address always means this machine."""
    if host == _LOCALHOST:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Site:
    """The server's own names: its host, loopback, and the allowed origins."""

    def __init__(self, host: str = _LOCALHOST, origins: Collection[str] = ()) -> None:
        self._host = host.lower()
        self._origins = frozenset(origin.lower() for origin in origins)
        self._own_hosts: set[bytes] = set()  # already checked

    def check(self, scope: Scope) -> None:
        """Raise a `Problem` if a page of another site sent this request."""
        host = origin = relation = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                if value not in self._own_hosts:
                    self._check_host(value)
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                relation = value
        if origin is not None:
            self._check_origin(origin.decode("latin-1").lower(), host or b"")
        elif relation is not None and relation.strip().lower() in (b"cross-site", b"same-site"):
            raise _foreign("this one was sent by a page of another site")

    def _check_host(self, host: bytes) -> None:
        name = _without_port(host.decode("latin-1").strip().lower())
        if name != self._host and not is_loopback(name):
            raise _foreign(f"this one is addressed to {name!r:.80}")
        if len(self._own_hosts) < _REMEMBERED_HOSTS:
            self._own_hosts.add(host)

    def _check_origin(self, origin: str, host: bytes) -> None:
        if origin in self._origins:
            return
        _, _, place = origin.partition("://")
        if not place or place != host.decode("latin-1").strip().lower():
            raise _foreign(f"this one was sent by the page {origin!r:.80}")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _foreign(what: str) -> Problem:
    return Problem(
        403,
        f"without access tokens, only requests from this machine are served, and {what}; "
        "create a token: penstock token create NAME --scope SCOPE",
    )


def check_own_page(scope: Scope) -> None:
    """Raise a `Problem` unless the server's own page sent this request, which uses a cookie.

    A request that changes something has to carry a header that pages of other sites cannot send:
    browsers ask for permission first (CORS), which is not granted.
    """
    relation = (header(scope, b"sec-fetch-site") or b"none").strip().lower()
    if relation not in (b"same-origin", b"none"):
        raise Problem(403, "a page of another site cannot use the cookie of this one")
    origin = (header(scope, b"origin") or b"").decode("latin-1").lower()
    host = (header(scope, b"host") or b"").decode("latin-1").strip().lower()
    if origin and relation == b"none" and origin.partition("://")[2] != host:
        raise Problem(403, "a page of another site cannot use the cookie of this one")
    if scope["method"] not in ("GET", "HEAD") and header(scope, PAGE_HEADER) != PAGE:
        raise Problem(
            403,
            "this request needs the header X-Requested-With: penstock, which pages of other sites "
            "cannot send; or authenticate it with Authorization: Bearer, without a cookie",
        )


# The cookie that keeps a token in a browser, where no script can read it


def session_cookie(scope: Scope) -> str | None:
    """Return the secret that a browser keeps for this server."""
    try:
        found = SimpleCookie((header(scope, b"cookie") or b"").decode("latin-1"))
    except CookieError:
        return None
    kept = found.get(_cookie_name(scope))
    return kept.value if kept is not None and kept.value else None


def set_session_cookie(scope: Scope, secret: str) -> tuple[bytes, bytes]:
    """Return the header that makes a browser keep a secret until it is closed.

    An empty secret deletes the cookie.
    """
    origin = header(scope, b"origin") or b""
    secure = scope.get("scheme") == "https" or origin.lower().startswith(b"https://")
    text = f"{_cookie_name(scope)}={secret}; Path=/; HttpOnly; SameSite=Strict"
    if secure:
        text += "; Secure"
    if not secret:
        text += "; Max-Age=0"
    return b"set-cookie", text.encode("ascii")


def _cookie_name(scope: Scope) -> str:
    """Include the port: browsers send the cookies of one port to all others of the same host."""
    host = (header(scope, b"host") or b"").decode("latin-1")
    _, _, port = host.rpartition(":")
    return f"penstock_{port}" if port.isascii() and port.isdigit() else "penstock"
