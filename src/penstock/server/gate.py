"""Who may call what: tokens with scopes, as the store keeps them, in a header or a cookie."""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from penstock.apps.beside import beside
from penstock.core.errors import PenstockError
from penstock.core.times import from_micros
from penstock.core.token import Access, Token, digest_of
from penstock.engine import Penstock
from penstock.http.bodies import Scope, header
from penstock.http.problems import Problem
from penstock.http.routes import Identity
from penstock.server.cookie import cookie_of
from penstock.server.site import Site, check_own_page

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 30.0
_PAUSE = 1.0
"""Tokens are read again at most so often, in seconds: so late may a revoked one still open."""


class Gatekeeper:
    """Lets callers in by their tokens. Without any token it stands open, where that is allowed."""

    def __init__(
        self, penstock: Penstock, *, open_without_tokens: bool, site: Site | None = None
    ) -> None:
        self._penstock = penstock
        self._open_without_tokens = open_without_tokens
        self._site = site or Site()
        self._tokens: Mapping[str, Token] = {}

    async def refresh(self) -> None:
        """Read the tokens anew."""
        self._tokens = {token.digest: token for token in await self._penstock.tokens()}
        if self._tokens:  # whoever revokes the last one wants nobody to come in
            self._open_without_tokens = False

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine may call everything; foreign web pages may not."""
        return self._open_without_tokens

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow what becomes of the tokens in the store, inside the block."""
        await self.refresh()
        async with beside(self._follow()):
            yield

    async def _follow(self) -> None:
        seen = 0
        while True:
            try:
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
                await self.refresh()
            except PenstockError as error:
                _log.warning("the tokens could not be read: %s", error)
            await asyncio.sleep(_PAUSE)

    def __call__(self, scope: Scope, access: Access) -> Identity:
        """Who calls; raises the `Problem` why they may not."""
        if self.is_open:
            self._site.check(scope)
            return Identity()
        token = self.bearer(scope)
        if access not in token.scopes:
            raise Problem(403, f"the token {token.name!r} does not have the scope {access}")
        return Identity(token.name, Access.ADMIN in token.scopes)

    def bearer(self, scope: Scope) -> Token:
        """The token that a request carries; raises the `Problem` why it counts for nothing."""
        kind, _, secret = (header(scope, b"authorization") or b"").partition(b" ")
        if kind.lower() == b"bearer" and secret:
            return self.known(secret.decode("latin-1").strip())
        kept = cookie_of(scope)
        if kept is None:
            raise _unknown("this needs a token: send Authorization: Bearer …")
        # A browser adds its cookie to whatever page asks: only our own may.
        check_own_page(scope)
        return self.known(kept)

    def known(self, secret: str) -> Token:
        """The token with this secret; raises the `Problem` why it counts for nothing."""
        digest = digest_of(secret)
        token = self._tokens.get(digest)
        if token is None or not hmac.compare_digest(token.digest, digest):
            raise _unknown("the token is not known; it may have been revoked")
        if token.has_expired(from_micros(self._penstock.clock())):
            raise _unknown("the token has expired")
        return token


def _unknown(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})
