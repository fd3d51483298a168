"""What `Penstock.tables` and `Penstock.transaction` take and return."""

from penstock.core.tables import (
    Mirror,
    Statements,
    Tables,
)
from penstock.engine.tables import (
    Transaction,
)

__all__ = [
    "Mirror",
    "Statements",
    "Tables",
    "Transaction",
]
