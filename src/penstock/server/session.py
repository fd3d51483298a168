"""Routes for people with a browser: sign in with a token, see what it is good for, sign out."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from penstock.core.token import Access, Token
from penstock.http.bodies import Scope
from penstock.http.problems import Problem
from penstock.http.routes import Answer, Call, route
from penstock.server.cookie import keep
from penstock.server.site import check_own_page

_NO_STORE = (b"cache-control", b"no-store")


class Door(Protocol):
    """Who is let in: the gate of a server."""

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        ...

    def bearer(self, scope: Scope) -> Token:
        """The token that a request carries."""
        ...

    def known(self, secret: str) -> Token:
        """The token with this secret."""
        ...


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The secret of an access token."""

    token: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+\Z")]


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and what they may do. To a stranger nothing else is told.

    `open` is true where no token is asked for. `applications` are those that this server has.
    """

    signed_in: bool
    open: bool
    name: str | None = None
    scopes: list[Access] = []
    applications: list[str] = []
    version: str | None = None


_STRANGER = Session(signed_in=False, open=False)
_EXAMPLE = {
    "signed_in": True,
    "open": False,
    "name": "ada",
    "scopes": ["admin", "read"],
    "applications": ["events", "indexing"],
    "version": "0.1.0",
}


class SessionRoutes:
    """What the server serves to tell people apart. Without a door, everybody may do everything."""

    def __init__(self, applications: Sequence[str]) -> None:
        self._applications = list(applications)
        self.door: Door | None = None

    @route(
        "GET",
        "/api/v1/session",
        None,
        "See who you are",
        answers={200: Session},
        examples={"200": _EXAMPLE},
    )
    async def session(self, call: Call) -> Answer:
        """Who calls, by token or cookie, and what they may do; a stranger is answered, too."""
        try:
            found = self._found(call.scope)
        except Problem:
            found = _STRANGER
        return Answer(200, found, (_NO_STORE,))

    @route(
        "POST",
        "/api/v1/session",
        None,
        "Sign in",
        answers={200: Session, 401: None, 403: None},
        examples={"body": {"token": "pst_Zk0"}, "200": _EXAMPLE},
        body_limit=2_000,
    )
    async def sign_in(self, body: SignIn, call: Call) -> Answer:
        """Keep a token in a cookie that no script can read, until the browser is closed.

        Needs the header `X-Requested-With: penstock`.
        """
        check_own_page(call.scope)
        if self.door is None or self.door.is_open:
            return Answer(200, self._found(call.scope), (_NO_STORE,))
        token = self.door.known(body.token)
        return Answer(200, self._of(token), (_NO_STORE, keep(call.scope, body.token)))

    @route("DELETE", "/api/v1/session", None, "Sign out", answers={200: Session, 403: None})
    async def sign_out(self, call: Call) -> Answer:
        """Have the browser forget its token. The token itself stays good.

        Needs the header `X-Requested-With: penstock`.
        """
        check_own_page(call.scope)
        return Answer(200, _STRANGER, (_NO_STORE, keep(call.scope, "")))

    def _found(self, scope: Scope) -> Session:
        if self.door is None or self.door.is_open:
            return self._of(None)
        return self._of(self.door.bearer(scope))

    def _of(self, token: Token | None) -> Session:
        return Session(
            signed_in=token is not None,
            open=token is None,
            name=None if token is None else token.name,
            scopes=sorted(Access if token is None else token.scopes),
            applications=self._applications,
            version=version("penstock"),
        )
