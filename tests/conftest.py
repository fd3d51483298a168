import gc
import math
import random
import uuid
from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from penstock.stores.postgres import scan_positions
from tests import distribution, environment, postgres, tiers
from tests.contract.support import ManualClock
from tests.missing import MISSING, stop
from tests.schemas import offered, schemas

if TYPE_CHECKING:
    from psycopg import Connection

LEFT = pytest.StashKey[dict[int, str]]()
REPEATS = pytest.StashKey[int]()
_ENDING = 30
"""Seconds in which what a run has started must have ended after it."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Prepare the environment, and choose the seed of generated examples, once for all workers."""
    environment.prepare(begins=not hasattr(config, "workerinput"))
    for marker in tiers.MARKERS:
        config.addinivalue_line("markers", marker)
    tiers.choose(everything=config.getoption(tiers.OPTION))
    settings.register_profile(
        "patient",
        max_examples=tiers.amount(30, 100),
        deadline=None,  # an example that takes long on a busy machine is no failure
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile("patient")
    if config.getoption("--hypothesis-seed") is None:
        shared = getattr(config, "workerinput", {}).get("hypothesis_seed")
        config.option.hypothesis_seed = shared or str(random.getrandbits(32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["hypothesis_seed"] = str(node.config.getoption("--hypothesis-seed"))


def pytest_report_header(config: pytest.Config) -> str:
    return replay(config)


def replay(config: pytest.Config) -> str:
    """How to see the same generated examples again."""
    if settings.default is not None and settings.default.derandomize:
        return "examples: derived from the tests alone (CI is set); they are the same in every run"
    return f"examples: --hypothesis-seed={config.getoption('--hypothesis-seed')} repeats them"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with every failure how to replay it, also where the time limit has ended it."""
    report = yield
    if report.failed:
        report.sections.append(("How to replay", f"{item.nodeid}\n{replay(item.config)}"))
    return report


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
    with offered(folder, partial(stop, request.session)):
        yield


@pytest.fixture(scope="session", autouse=True)
def exact_order() -> Iterator[None]:
    """PostgreSQL gives jobs in their order: a busy machine does not look like dead tuples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_positions, "_SLOW", math.inf)
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
    parser.addoption(
        tiers.OPTION,
        action="store_true",
        help="also run tests that repeat others with more seeds, stores and rounds: tests/tiers.py",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what stays for the whole run: it took half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only repeats, unless all was asked for, or a test by its id."""
    if not config.getoption(tiers.OPTION) and not any("::" in named for named in config.args):
        items[:], repeats = tiers.split(items)
        config.hook.pytest_deselected(items=repeats)
        config.stash[REPEATS] = len(repeats)
    if hasattr(config, "workerinput"):
        distribution.order(items)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-k "not postgres"` leave out every test that needs a server."""
    if "postgres_server" in getattr(item, "fixturenames", ()):
        item.extra_keyword_matches.add("postgres")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return distribution.LongestFirst(config, log) if config.option.dist == "load" else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Learn from a worker what it has left out, and what it missed."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[REPEATS] = output.get("repeats", 0)
    if missing := output.get("missing"):
        node.config.stash[MISSING] = missing


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


@pytest.hookimpl(wrapper=True, trylast=True)  # before the terminal's summary
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    yield  # the workers and what all tests share end here
    if hasattr(session.config, "workerinput"):
        output = vars(session.config)["workeroutput"]
        output["repeats"] = session.config.stash.get(REPEATS, 0)
        output["missing"] = session.config.stash.get(MISSING, "")
        return
    if left := environment.left_behind(_ENDING):
        environment.end(left)
        session.config.stash[LEFT] = left
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    environment.remove()
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
    if left := config.stash.get(LEFT, None):
        terminalreporter.section("processes left behind, ended now", red=True)
        for number, command in left.items():
            terminalreporter.line(f"{number}: {command}")
    if repeats := config.stash.get(REPEATS, 0):
        terminalreporter.line(
            f"{repeats} tests that repeat others with more seeds and stores did not run;"
            f" {tiers.OPTION} runs them, and more rounds of some"
        )
    if needed := config.stash.get(MISSING, ""):
        terminalreporter.section("something that tests need is missing", red=True)
        terminalreporter.line(needed)
