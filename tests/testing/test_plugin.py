"""The plugin, in pytests of their own, as users run it."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.environment import SOON

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PLUGIN = "_penstock_pytestplugin"


@pytest.fixture(autouse=True)
def only_our_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def run(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", PLUGIN, "-W", "error", *options)


def test_is_announced_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"penstock": PLUGIN}
    assert importlib.util.find_spec(PLUGIN) is not None
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert f"src/{PLUGIN}.py" in packages


def test_costs_nothing_when_unused(pytester: pytest.Pytester) -> None:
    ran = run(
        pytester,
        """
        import sys

        def test_no_part_of_penstock_is_here():
            assert [name for name in sys.modules if name.startswith("penstock")] == []
        """,
    )
    ran.assert_outcomes(passed=1)


SYNCHRONOUS = """
    from datetime import timedelta

    import pytest
    from penstock import State, run_sync
    from penstock.testing import UnexpectedFailure, assert_enqueued

    @pytest.fixture(params=["memory", "sqlite"])
    def app(request):
        name = {"memory": "penstock_app", "sqlite": "penstock_sqlite"}[request.param]
        app = request.getfixturevalue(name)
        assert app.url.startswith(request.param)
        return app

    def test_worker(app, penstock_worker):
        task = app.task("double", lambda n: 2 * n)
        run_sync(task.enqueue(2))
        assert_enqueued(app, task, args={"n": 2})
        [job] = penstock_worker(app)
        assert job.returned == 4

    def test_each_test_begins_empty(app):
        assert run_sync(app.count()) == {}
        assert app.tasks == {}

    def test_clock(app, penstock_clock, penstock_worker):
        task = app.task("t", lambda: None)
        run_sync(task.using(delay=timedelta(hours=1)).enqueue())
        assert penstock_worker(app) == []
        penstock_clock.advance(timedelta(hours=1))
        assert len(penstock_worker(app)) == 1

    def test_failure(app, penstock_worker):
        task = app.task("t", lambda: 1 / 0)
        run_sync(task.enqueue())
        with pytest.raises(UnexpectedFailure, match="ZeroDivisionError"):
            penstock_worker(app)
"""


def test_in_synchronous_tests(pytester: pytest.Pytester) -> None:
    run(pytester, SYNCHRONOUS).assert_outcomes(passed=8)


ASYNCHRONOUS = """
    import pytest
    from penstock import ConfigurationError, State
    from penstock.testing import assert_enqueued

    @pytest.fixture
    def ran(penstock_app):
        ran = []

        @penstock_app.task
        async def note(n: int):
            ran.append(n)

        return ran

    MARK
    async def test_worker(penstock_app, penstock_worker, ran):
        await penstock_app.enqueue("note", {"n": 1})
        assert_enqueued(penstock_app, "note", args={"n": 1})
        [job] = await penstock_worker.run_until_empty()
        assert (job.state, ran) == (State.DONE, [1])

    MARK
    async def test_sqlite(penstock_sqlite, penstock_worker):
        penstock_sqlite.task("t", lambda: 1)
        await penstock_sqlite.enqueue("t")
        [job] = await penstock_worker.run_until_empty(penstock_sqlite)
        assert job.returned == 1

    MARK
    async def test_call(penstock_worker):
        with pytest.raises(ConfigurationError, match="await penstock_worker.run_until_empty"):
            penstock_worker()

    @pytest.fixture
    def anyio_backend():
        return "asyncio"
"""


@pytest.mark.parametrize(
    ("plugin", "mark", "options"),
    [
        ("pytest_asyncio.plugin", "@pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
        ("pytest_asyncio.plugin", "", ["-o", "asyncio_mode=auto"]),
        ("anyio.pytest_plugin", "@pytest.mark.anyio", []),
    ],
)
def test_in_asynchronous_tests(
    pytester: pytest.Pytester, plugin: str, mark: str, options: list[str]
) -> None:
    if plugin == "pytest_asyncio.plugin":
        options = [*options, "-o", "asyncio_default_fixture_loop_scope=function"]
    ran = run(pytester, ASYNCHRONOUS.replace("MARK", mark), "-p", plugin, *options)
    ran.assert_outcomes(passed=3)


def test_store_of_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npenstock_store = sqlite:///{tmp_path}/mine.db\n")
    ran = run(
        pytester,
        """
        from penstock import run_sync

        def test_file(penstock_app, tmp_path):
            run_sync(penstock_app.count())
            assert (tmp_path / "mine.db").exists()
        """,
    )
    ran.assert_outcomes(passed=1)


def test_stores_are_closed_after_the_test(pytester: pytest.Pytester) -> None:
    ran = run(
        pytester,
        """
        import pytest
        from penstock import StoreError, run_sync

        stores = []

        def test_use(penstock_sqlite):
            run_sync(penstock_sqlite.count())
            stores.append(penstock_sqlite.store)

        def test_later():
            with pytest.raises(StoreError, match="closed"):
                run_sync(stores[0].count())
        """,
    )
    ran.assert_outcomes(passed=2)


def test_app_of_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npenstock_app = shop:queue\npythonpath = .\n")
    pytester.makepyfile(
        shop="""
        from penstock import Penstock

        queue = Penstock("sqlite:///precious.db")
        buy = queue.task("buy", lambda what: what)
        """
    )
    ran = run(
        pytester,
        """
        import shop
        from penstock import run_sync

        def test_shop(penstock_app, penstock_worker):
            assert penstock_app is shop.queue
            run_sync(shop.buy.enqueue("milk"))
            assert penstock_worker()[0].returned == "milk"

        def test_begins_empty(penstock_app):
            assert run_sync(shop.queue.count()) == {}
        """,
    )
    ran.assert_outcomes(passed=2)
    assert not (pytester.path / "precious.db").exists()


def test_app_of_the_ini_file_that_is_none(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npenstock_app = math:pi\n")
    ran = run(pytester, "def test_app(penstock_app): pass")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines(["*'math:pi' is not a Penstock*"])


def test_app_of_a_test_module_in_another_process(pytester: pytest.Pytester) -> None:
    """Which has no name that another process could import."""
    ran = run(
        pytester,
        """
        from penstock import Penstock, run_sync
        from penstock.testing import WorkerProcess, fresh

        app = Penstock("sqlite:///never.db")

        @app.task
        def greet(name: str) -> str:
            return f"hello {name}"

        def test_greeting(tmp_path):
            with fresh(app, url=f"sqlite:///{tmp_path}/jobs.db"):
                job = run_sync(greet.enqueue("ann"))
                with WorkerProcess(app) as worker:
                    worker.wait_for("settled")
                assert run_sync(app.get(job.id)).returned == "hello ann"
        """,
        "--import-mode=importlib",
    )
    ran.assert_outcomes(passed=1)


def test_names_of_the_kit_are_not_taken_for_tests(pytester: pytest.Pytester) -> None:
    ran = run(pytester, "from penstock.testing import *\n\ndef test_own(): pass")
    ran.assert_outcomes(passed=1)


def test_failed_assertion_points_at_the_test(pytester: pytest.Pytester) -> None:
    ran = run(
        pytester,
        """
        from penstock.testing import assert_enqueued, assert_not_enqueued

        def test_nothing(penstock_app):
            assert_enqueued(penstock_app, "mail")
        """,
    )
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([">*assert_enqueued(penstock_app, *", "*nothing was enqueued at all*"])
    ran.stdout.no_fnmatch_line("*asserting.py*")


def test_kit_needs_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = sys.modules['_pytest'] = None\n"
        "import penstock.testing\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=SOON)
