"""Links between pages lead somewhere, and every page and module can be found."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
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
        if target.suffix == ".png":  # shown with colours of one kind only
            assert anchor in {"", "only-light", "only-dark"}, link
        else:
            assert not anchor or anchor in anchors(target), link


def test_index_is_the_map_of_all_pages() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    single = {page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "adr"} - {index}
    assert single - linked == set()


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
