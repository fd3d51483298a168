"""Access tokens: the part of `Penstock` that makes, lists and revokes them."""

import secrets
from collections.abc import Iterable
from datetime import timedelta

from penstock.checks import check_expiry, check_name
from penstock.core.errors import ConfigurationError, TokenExists, TokenNotFound
from penstock.core.times import from_micros
from penstock.core.token import Access, Token, digest_of
from penstock.opening import Opened

# So that a secret that leaked into a file or a log can be found, by people and by scanners.
_PREFIX = "pst_"
_RANDOM_BYTES = 32


class AccessTokens(Opened):
    """The part of `Penstock` that keeps access tokens."""

    async def create_token(
        self, name: str, scopes: Iterable[Access | str], expires_in: timedelta | None = None
    ) -> str:
        """Make an access token; returns its secret, which nobody can ask for again.

        The store keeps a digest of it. Raises `TokenExists` if the name is taken.
        """
        check_name("name of a token", name)
        chosen = _scopes(scopes)
        if expires_in is not None:
            check_expiry(expires_in)
        secret = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        now = from_micros(self.clock())
        token = Token(
            name=name,
            digest=digest_of(secret),
            scopes=chosen,
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )
        if not await self.store.add_token(token):
            raise TokenExists(f"there is a token {name!r} already; revoke it or choose a name")
        return secret

    async def tokens(self) -> list[Token]:
        """Every access token, by name, also those whose time is over."""
        return await self.store.tokens()

    async def revoke_token(self, name: str) -> None:
        """Remove an access token: it opens nothing any more. Raises `TokenNotFound`."""
        if not await self.store.drop_token(name):
            raise TokenNotFound(f"there is no token {name!r}")


def _scopes(scopes: object) -> frozenset[Access]:
    known = ", ".join(Access)
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        raise ConfigurationError(f"scopes are a list of {known}, not {scopes!r:.80}")
    try:
        chosen = frozenset(map(Access, scopes))
    except ValueError as error:
        raise ConfigurationError(f"a scope is one of {known}: {error}") from error
    if not chosen:
        raise ConfigurationError(f"a token needs a scope: one or more of {known}")
    return chosen
