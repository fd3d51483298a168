"""Links between pages lead somewhere, and every page and module can be found."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as links spell them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if DOCS in page.parents:  # the site that is built of these pages has no others
            assert DOCS in target.resolve().parents, link
        if target.suffix == ".png":  # shown with colours of one kind only
            assert anchor in {"", "only-light", "only-dark"}, link
        else:
            assert not anchor or anchor in anchors(target), link


def test_index_is_the_map_of_all_pages() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    single = {page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "adr"} - {index}
    assert single - linked == set()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=str(p.relative_to(ROOT)))
        for p in [*PAGES, *EXAMPLES]
        if p.name != "CHANGELOG.md"  # it says what was, too
    ],
)
def test_nothing_is_installed_from_an_index_that_does_not_have_it(page: Path) -> None:
    """Penstock is installed from a clone; where it is, pip finds the packages of its extras."""
    assert re.findall(r"pip install[^`\n]*\bpenstock\b", page.read_text("utf-8")) == []


def test_pictures_are_small_and_load_nothing() -> None:
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    for picture in pictures:
        if picture.suffix == ".svg":
            text = picture.read_text("utf-8")
            assert len(text) < 60_000
            assert "url(http" not in text
    assert sum(picture.stat().st_size for picture in pictures) < 1_300_000


def test_architecture_names_every_module() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"(\w+)\.py`", page))
    modules = {path.stem for path in (ROOT / "src" / "penstock").rglob("*.py")}
    assert {name for name in modules if not name.startswith("__")} - named == set()
