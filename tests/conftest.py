import pytest
from hypothesis import HealthCheck, settings

from tests.contract.support import ManualClock

# How fast the machine is says nothing about the code.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


@pytest.fixture
def clock() -> ManualClock:
    """Time for a store, standing still until `clock.advance(...)` moves it."""
    return ManualClock()


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
