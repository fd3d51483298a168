"""The comparison with other queues is the same everywhere, and speaks of the pinned versions."""

import re

import pytest

from tests.docs.support import ROOT

README = (ROOT / "README.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "comparison.md").read_text("utf-8")
PINS = (ROOT / "constraints.txt").read_text("utf-8")
VERSIONS = dict(re.findall(r"^## (\w+) ([\d.]+)$", PAGE, re.MULTILINE))


def table(text: str) -> list[list[str]]:
    """The rows of the table of queues."""
    rows = text.partition("| | Penstock |")[2].partition("\n\n")[0]
    lines = f"| | Penstock |{rows}".splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_readme_and_page_have_the_same_table() -> None:
    assert len(table(PAGE)) > 10
    assert table(README) == table(PAGE)


def test_readme_can_be_read_in_one_sitting() -> None:
    assert len(README.splitlines()) < 200


def test_every_column_names_the_version_that_was_looked_at() -> None:
    _, ours, *peers = table(PAGE)[0]
    assert ours == "Penstock"
    named = dict(peer.rsplit(" ", 1) for peer in peers)
    assert {name: version.rpartition(".")[0] for name, version in VERSIONS.items()} == named


@pytest.mark.parametrize("peer", sorted(VERSIONS))
def test_every_peer_has_a_source_for_every_row(peer: str) -> None:
    section = PAGE.partition(f"\n## {peer} {VERSIONS[peer]}\n")[2].partition("\n## ")[0]
    sources = re.findall(r"^\| ([^|]+) \| (.+) \|$", section, re.MULTILINE)
    assert len(sources) - 1 == len(table(PAGE)) - 3  # the head; and the head, the line, the speed


@pytest.mark.parametrize("peer", sorted(VERSIONS))
def test_a_peer_that_is_measured_is_the_one_that_was_looked_at(peer: str) -> None:
    pinned = re.findall(rf"^{peer}==(.+)$", PINS, re.MULTILINE | re.IGNORECASE)
    assert pinned in ([], [VERSIONS[peer]])
