"""A plugin of pytest: every SQLite store runs through the adapter of the simulation.

With it, `tests/contract` shows that the adapter does what `sqlite3` does, on real files:

    pytest -p tests.simulation.apsw_everywhere tests/contract -k sqlite
"""

from pathlib import Path
from typing import Any

from penstock import runtime
from tests.simulation.sqlite import SimulatedConnection


def _open(path: Path, *, timeout: float = 5.0, **_: Any) -> SimulatedConnection:
    return SimulatedConnection(path, timeout=timeout)


def pytest_configure() -> None:
    patched: Any = runtime
    assert patched.SYSTEM.sqlite is patched._open_sqlite
    patched._open_sqlite = patched.SYSTEM.sqlite = _open
