import pytest

from penstock.vectors import MarkdownChunker
from penstock.vectors.chunks import Lines
from penstock.vectors.markdown import heading_at


def test_markdown_is_split_by_heading_with_the_path_of_headings() -> None:
    text = (
        "---\ntitle: x\n---\n\nIntro with words of its own.\n\n# Guide\n\nFirst part of it.\n\n"
        "## Install ##\n\nRun this here.\n\n```sh\n# no heading\npip install\n```\n\n"
        "### Linux\n\nWith a package.\n\nUse\n===\n\nCall it now.\n\nMore\n----\n\nOf that kind.\n"
    )
    chunks = MarkdownChunker(32, 0).chunk(text)
    assert [(c.symbol, c.start_line) for c in chunks] == [
        ("", 1),
        ("Guide", 7),
        ("Guide > Install", 11),
        ("Guide > Install > Linux", 20),
        ("Use", 24),
        ("Use > More", 29),
    ]
    assert {(c.type, c.language) for c in chunks} == {("section", "markdown")}


def test_block_of_code_stays_whole_where_it_fits() -> None:
    code = "```python\n" + "".join(f"line_{n}()\n" for n in range(10)) + "```"
    text = "# One\n\n" + "Some words to fill it.\n" * 12 + "\n" + code + "\n\n" + "And on.\n" * 20
    chunks = MarkdownChunker(100, 0).chunk(text)
    assert [code in c.text for c in chunks].count(True) == 1


def test_fence_that_is_not_closed_ends_with_the_text() -> None:
    text = "# One\n\n````\n```\n# no heading\n```\n"
    assert {c.symbol for c in MarkdownChunker(8, 0).chunk(text)} == {"One"}


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# a b", "a b"),
        ("## a ##", "a"),
        ("# a \t## \t", "a"),
        ("# a#", "a#"),
        ("# a # b #", "a # b"),
        ("# #", "#"),
        ("#\ta\r", "a"),
        ("# a" + " " * 200_000 + "b", "a" + " " * 200_000 + "b"),
        ("# a" + " #" * 100_000 + "b", "a" + " #" * 100_000 + "b"),
    ],
)
def test_heading_of_any_length_has_its_title(line: str, title: str) -> None:
    """The long ones would take an hour if every split of their blanks were tried."""
    assert heading_at(Lines(f"{line}\nwords\n"), 0) == (len(line) - len(line.lstrip("#")), title)
