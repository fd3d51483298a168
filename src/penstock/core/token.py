"""Access tokens: who may reach a store from outside, and for what."""

from datetime import datetime
from enum import StrEnum
from hashlib import sha256

import msgspec


class Access(StrEnum):
    """What a token lets its bearer do."""

    PUBLISH = "publish"
    WORK = "work"
    READ = "read"
    ADMIN = "admin"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An access token as it is stored: its secret is known to its bearer alone."""

    name: str
    digest: str
    scopes: frozenset[Access]
    created_at: datetime
    expires_at: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Whether its time is over."""
        return self.expires_at is not None and self.expires_at <= now


def digest_of(secret: str) -> str:
    """What is stored in place of a secret; whatever text a stranger sends has one.

    One round of SHA-256 is enough: a slow hash protects secrets that can be guessed, and one of
    256 random bits cannot.
    """
    return sha256(secret.encode(errors="surrogatepass")).hexdigest()
