from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.processes import Zygote
from tests.schemas import schemas


@pytest.fixture(scope="session")
def shared_zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture
def zygote(shared_zygote: Zygote) -> Iterator[Zygote]:
    """Starts clients; none outlives the test."""
    yield shared_zygote
    shared_zygote.kill_all()


# A transaction of a client that was stopped ends after this: nobody waits for ever.
FORGET = "&options=-c%20idle_in_transaction_session_timeout%3D5s"


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the clients of one test share a store and write their history: `jobs.db`, or what `url`
    names: with the parameter `postgres` an empty schema, with `journal` a folder.
    """
    if getattr(request, "param", "sqlite") == "journal":
        (tmp_path / "url").write_text(f"journal:///{tmp_path}/jobs")
    if getattr(request, "param", "sqlite") == "postgres":
        (tmp_path / "url").write_text(schemas().take() + FORGET)
    return tmp_path
