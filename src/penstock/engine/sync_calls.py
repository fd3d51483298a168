"""The types of synchronous calls; at run time, all of them are `Sync`.

The stub of this module says what they are, and is generated from the coroutines:
`python -m tests.engine.sync_stub` writes it anew.
"""

from typing import Any

from penstock.engine.sync import Sync


def __getattr__(name: str) -> Any:
    """Return the class of this name."""
    if name.startswith("Sync"):
        return Sync
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
