"""Routes for browsers: sign in with a token, see what it allows, sign out."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.tokens import Access
from penstock.server.authentication import Guard, Holder, check_own_page, set_session_cookie
from penstock.web.bodies import Scope
from penstock.web.problems import Problem
from penstock.web.routes import Answer, Call, route

_NO_STORE = (b"cache-control", b"no-store")


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The secret of an access token."""

    token: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+\Z")]


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls and what they may do; an unknown caller learns nothing else.

    `open` is true on a server that requires no token. `external` is true where users sign in to the
    application that the server is mounted in. `applications` are those of this server.
    """

    signed_in: bool
    open: bool
    external: bool = False
    name: str | None = None
    scopes: list[Access] = []
    applications: list[str] = []
    version: str | None = None


_EXAMPLE = {
    "signed_in": True,
    "open": False,
    "external": False,
    "name": "ada",
    "scopes": ["admin", "read"],
    "applications": ["events", "indexing"],
    "version": "0.2.0",
}


class SessionRoutes:
    """The session of a browser. Without an authenticator, every caller may do everything."""

    def __init__(self, applications: Sequence[str]) -> None:
        self._applications = list(applications)
        self.guard: Guard | None = None

    @route("GET", "/api/v1/session", None, examples={"200": _EXAMPLE})
    async def session(self, call: Call) -> Answer[Session]:
        """Show who calls.

        Answers with the name and the scopes of the token, from the header or the cookie. A caller
        without a valid token gets `signed_in: false`, not an error.
        """
        try:
            found = self._current(call.scope)
        except Problem:
            found = self._signed_out
        return Answer(200, found, (_NO_STORE,))

    @route(
        "POST",
        "/api/v1/session",
        None,
        also={401: None, 403: None},
        examples={"body": {"token": "pst_Zk0"}, "200": _EXAMPLE},
        body_limit=2_000,
    )
    async def sign_in(self, body: SignIn, call: Call) -> Answer[Session]:
        """Sign in with a token.

        Keeps the token in a cookie that no script can read, until the browser is closed.

        Requires the header `X-Requested-With: penstock`.
        """
        check_own_page(call.scope)
        if self.guard is None or self.guard.is_open:
            return Answer(200, self._current(call.scope), (_NO_STORE,))
        token = self.guard.token(body.token)
        cookie = set_session_cookie(call.scope, body.token)
        return Answer(200, self._of(token), (_NO_STORE, cookie))

    @route("DELETE", "/api/v1/session", None, also={403: None})
    async def sign_out(self, call: Call) -> Answer[Session]:
        """Sign out.

        Deletes the cookie of the browser. The token itself stays valid.

        Requires the header `X-Requested-With: penstock`.
        """
        check_own_page(call.scope)
        return Answer(200, self._signed_out, (_NO_STORE, set_session_cookie(call.scope, "")))

    @property
    def _is_external(self) -> bool:
        return self.guard is not None and self.guard.is_external

    @property
    def _signed_out(self) -> Session:
        return Session(signed_in=False, open=False, external=self._is_external)

    def _current(self, scope: Scope) -> Session:
        if self.guard is None or self.guard.is_open:
            return self._of(None)
        return self._of(self.guard.holder_of(scope))

    def _of(self, holder: Holder | None) -> Session:
        return Session(
            signed_in=holder is not None,
            open=holder is None,
            external=self._is_external,
            name=None if holder is None else holder.name,
            scopes=sorted(Access if holder is None else holder.scopes),
            applications=self._applications,
            version=version("penstock"),
        )
