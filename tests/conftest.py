import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres
from tests.contract.support import ManualClock
from tests.schemas import offered, schemas

if TYPE_CHECKING:
    from psycopg import Connection

# Before NumPy is imported: its threads would wait for cores that other tests have.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# An example that takes long on a busy machine is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def clock() -> ManualClock:
    """Time for a store, standing still until `clock.advance(...)` moves it."""
    return ManualClock()


@pytest.fixture(scope="session", autouse=True)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What all tests of a run share, once one of them asks for it: a PostgreSQL server."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # a worker's folder is inside that of the run
        folder = folder.parent
    with offered(folder):
        yield


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The URL of the database that all tests of a run share."""
    return schemas().url


@pytest.fixture(scope="session")
def postgres_connection() -> "Connection":
    """Drops schemas; one for all tests of a process, since a new one takes half as long again."""
    return schemas().connection


@pytest.fixture
def postgres_url(postgres_server: str, postgres_connection: "Connection") -> Iterator[str]:
    """The URL of a schema of the test's own, which does not exist yet and is dropped afterwards."""
    schema = f"t_{uuid.uuid4().hex[:16]}"
    yield postgres.within(postgres_server, schema)
    postgres.drop_schema(postgres_connection, schema)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forbid-skips",
        action="store_true",
        help="fail when a test was skipped, or marked xfail and not run",
    )


def not_run(config: pytest.Config) -> list[str]:
    """Tests and modules that did not run; known only where the terminal is, not in workers."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("--forbid-skips"):
        return []
    skipped = reporter.stats.get("skipped", [])
    unrun = [
        report for report in reporter.stats.get("xfailed", []) if "[NOTRUN]" in report.wasxfail
    ]
    return [report.nodeid for report in skipped + unrun]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not_run(session.config) and session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if missing := not_run(config):
        terminalreporter.section("forbidden skips", red=True)
        for nodeid in missing:
            terminalreporter.line(nodeid)
