"""What to do when something that many tests need is not there: say so once, and stop.

Each of thousands of tests would fail for the same reason otherwise.
"""

import pytest

MISSING = pytest.StashKey[str]()
"""What is missing, and how to get it."""


def stop(session: pytest.Session, missing: str) -> None:
    """End the run after the present test; its summary shows `missing`."""
    session.config.stash[MISSING] = missing
    session.shouldstop = "something that tests need is missing"
