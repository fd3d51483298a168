"""Access tokens, with which clients of a server authenticate."""

from datetime import datetime
from enum import StrEnum

import msgspec


class Access(StrEnum):
    """A scope: what a token permits."""

    PUBLISH = "publish"
    WORK = "work"
    READ = "read"
    ADMIN = "admin"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An access token as it is stored, with a digest in place of its secret."""

    name: str
    digest: str
    scopes: frozenset[Access]
    created_at: datetime
    expires_at: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Return whether the token has expired."""
        return self.expires_at is not None and self.expires_at <= now


def digest_of(secret: str) -> str:
    """Return what is stored in place of a secret; defined for any text that a client sends.

    One round of SHA-256 is enough: slow hashes protect secrets that can be guessed, and 256 random
    bits cannot.
    """
    from hashlib import sha256

    return sha256(secret.encode(errors="surrogatepass")).hexdigest()
