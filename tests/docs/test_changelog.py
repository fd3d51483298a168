"""The changelog has a section for the version of the package, newest first."""

import re
from importlib.metadata import version

from tests.docs.support import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
SECTIONS = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", CHANGELOG, re.MULTILINE)


def test_newest_section_is_that_of_the_package() -> None:
    declared = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert SECTIONS[0] == ("Unreleased", "")
    newest, date = SECTIONS[1]
    assert [newest] == declared == [version("penstock")]
    assert date


def test_sections_have_dates_and_go_back_in_time() -> None:
    dates = [date for _, date in SECTIONS[1:]]
    assert all(dates)
    assert dates == sorted(dates, reverse=True)
    assert len(re.findall(r"^## ", CHANGELOG, re.MULTILINE)) == len(SECTIONS)
