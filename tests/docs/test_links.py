"""Links between pages lead somewhere, and every page and module can be found."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HTML = re.compile(r"""\s(?:src|srcset|href)=["']([^"']+)["']""")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """What a page leads to and shows, in Markdown and in HTML; a `srcset` may name several."""
    prose = FENCED.sub("", text)
    listed = [part.split()[0] for one in HTML.findall(prose) for part in one.split(",")]
    return [*LINK.findall(prose), *listed]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links spell them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in links(page.read_text("utf-8")):
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


def test_pictures_in_html_are_links_too() -> None:
    page = """[a](b.md) <img alt="x > y"
        src="c.png"> <source srcset='d.png 1x, e.png 2x'> <a href="f.md">
```html
<img src="g.png">
```
"""
    assert links(page) == ["b.md", "c.png", "d.png", "e.png", "f.md"]
    readme = links((ROOT / "README.md").read_text("utf-8"))
    assert "docs/images/dashboard-overview-dark.png" in readme
    assert "docs/images/dashboard-overview.png" in readme


def test_every_page_is_in_the_menu_once() -> None:
    """Decisions have a list of their own, which is checked below."""
    menu = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    listed = re.findall(r"(\S+\.md)$", menu, re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}
    assert {page for page in pages if not page.startswith("adr/0")} == set(listed)


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = set(LINK.findall((DOCS / "adr" / "README.md").read_text("utf-8")))
    assert {page.name for page in DOCS.glob("adr/0*.md")} - listed == set()


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
    pictures = [path for path in (DOCS / "images").rglob("*") if path.is_file()]
    assert pictures
    for picture in pictures:
        if picture.suffix == ".svg":
            text = picture.read_text("utf-8")
            assert len(text) < 60_000
            assert "url(http" not in text
    assert sum(picture.stat().st_size for picture in pictures) < 1_300_000
