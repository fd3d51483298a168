"""Access tokens: `Penstock.tokens`, which creates, lists and revokes them."""

import builtins
from collections.abc import Iterable
from datetime import timedelta

from penstock.core.errors import ConfigurationError, TokenExists, TokenNotFound
from penstock.core.times import from_micros
from penstock.core.tokens import Access, Token, digest_of
from penstock.engine.connection import Connection
from penstock.engine.sync_calls import SyncTokens
from penstock.engine.validation import check_expiry, check_name

# Lets people and scanners find a secret that leaked into a file or a log.
_PREFIX = "pst_"
_RANDOM_BYTES = 32


class Tokens:
    """The access tokens of a store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def sync(self) -> SyncTokens:
        """The same calls from synchronous code, without `await`."""
        return SyncTokens(self)

    async def create(
        self, name: str, scopes: Iterable[Access | str], expires_in: timedelta | None = None
    ) -> str:
        """Create an access token and return its secret, which cannot be read again.

        The store keeps a digest of it. Raises `TokenExists` if the name is taken.
        """
        check_name("name of a token", name)
        chosen = _scopes(scopes)
        if expires_in is not None:
            check_expiry(expires_in)
        import secrets

        secret = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        now = from_micros(self._connection.clock())
        token = Token(
            name=name,
            digest=digest_of(secret),
            scopes=chosen,
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )
        if not await self._connection.store.add_token(token):
            raise TokenExists(
                f"there is already a token {name!r}; revoke it or choose another name"
            )
        return secret

    async def list(self) -> builtins.list[Token]:
        """Return every access token, by name, including expired ones."""
        return await self._connection.store.tokens()

    async def revoke(self, name: str) -> None:
        """Remove an access token: it gives access to nothing any more. Raises `TokenNotFound`."""
        if not await self._connection.store.drop_token(name):
            raise TokenNotFound(f"there is no token {name!r}")

    async def scopes(self) -> frozenset[Access]:
        """Return what this program may do: with the store itself, everything."""
        return frozenset(Access)


def _scopes(scopes: object) -> frozenset[Access]:
    known = ", ".join(Access)
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        raise ConfigurationError(f"scopes must be a list of {known}, not {scopes!r:.80}")
    try:
        chosen = frozenset(map(Access, scopes))
    except ValueError as error:
        raise ConfigurationError(f"a scope must be one of {known}: {error}") from error
    if not chosen:
        raise ConfigurationError(f"a token needs a scope: one or more of {known}")
    return chosen
