"""What `Penstock.tokens` takes and returns."""

from penstock.core.tokens import (
    Access,
    Token,
)

__all__ = [
    "Access",
    "Token",
]
