"""The page about testing: its examples are tests, and run as such; it names all there is."""

import re
from pathlib import Path

import pytest

import penstock.testing
from tests.docs.support import program

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "testing.md").read_text("utf-8")


def test_examples_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    source = program(PAGE)
    pytester.makepyfile(test_page=source)
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    plugins = ("-p", "_penstock_pytestplugin", "-p", "pytest_asyncio.plugin")
    ran = pytester.runpytest_subprocess(*plugins, "-W", "error")
    ran.assert_outcomes(passed=len(re.findall(r"^(?:async )?def test_", source, re.MULTILINE)))
    assert list(pytester.path.glob("*.db")) == [], "the app's own store was opened"


@pytest.mark.parametrize("name", penstock.testing.__all__)
def test_public_name_is_on_the_page_and_has_a_docstring(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)
    assert getattr(penstock.testing, name).__doc__
