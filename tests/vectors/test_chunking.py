from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock import ConfigurationError
from penstock.vectors import Chunk, Chunker, CodeChunker, MarkdownChunker, TextChunker, chunker_for
from penstock.vectors.languages import BY_ENDING
from penstock.vectors.markdown import _heading
from penstock.vectors.packing import Lines, count
from tests.vectors.sources import SOURCES

ENDINGS = sorted({*BY_ENDING, ".md", ".txt"})


def blank_lines_aside(text: str) -> set[int]:
    return {number for number, line in enumerate(text.split("\n"), 1) if line.strip()}


def check(chunks: list[Chunk], text: str, size: int) -> None:
    """What every chunker promises."""
    lines = text.split("\n")
    covered: set[int] = set()
    seen = ""
    for chunk in chunks:
        span = "\n".join(lines[chunk.start_line - 1 : chunk.end_line])
        assert chunk.text.strip()
        assert chunk.text in span
        assert count(chunk.text) <= size
        covered |= set(range(chunk.start_line, chunk.end_line + 1))
        seen += chunk.text
    assert blank_lines_aside(text) - covered == set()
    assert [chunk.start_line for chunk in chunks] == sorted(chunk.start_line for chunk in chunks)
    assert {each for each in text if not each.isspace()} <= set(seen)


@pytest.mark.parametrize("ending", ENDINGS)
@given(text=st.text(), size=st.integers(1, 40), overlap=st.integers(0, 39))
def test_any_text_is_cut_without_loss(ending: str, text: str, size: int, overlap: int) -> None:
    chunker = chunker_for(f"a{ending}", size, min(overlap, size - 1))
    chunks = chunker.chunk(text)
    check(chunks, text, size)
    assert chunker.chunk(text) == chunks


PARTS = st.sampled_from(
    [
        *(line for source, _ in SOURCES.values() for line in source.splitlines()),
        *(
            "```",
            "~~~~",
            "# a",
            "## b ##",
            "title",
            "===",
            "---",
            "",
            "\t",
            "}",
            "end",
            "\r",
            "\x00",
        ),
        "x" * 300,
    ]
)


@pytest.mark.parametrize("ending", ENDINGS)
@given(lines=st.lists(PARTS), size=st.integers(1, 60))
def test_source_in_any_disorder_is_cut_without_loss(
    ending: str, lines: list[str], size: int
) -> None:
    text = "\n".join(lines)
    check(chunker_for(f"a{ending}", size, size // 4).chunk(text), text, size)


@pytest.mark.parametrize("ending", SOURCES)
def test_source_is_cut_by_definition(ending: str) -> None:
    source, wanted = SOURCES[ending]
    # So small that nothing is put together, and each definition fits by itself.
    chunks = chunker_for(f"dir/a{ending.upper()}", 40).chunk(source)
    found = {(chunk.symbol, chunk.type) for chunk in chunks if chunk.symbol}
    assert found >= set(wanted.items())
    assert {chunk.language for chunk in chunks} == {BY_ENDING[ending].name}


@pytest.mark.parametrize(
    ("ending", "method"),
    [
        (".py", "Beta.gamma"),
        (".js", "Gamma.delta"),
        (".ts", "Beta.gamma"),
        (".rs", "Beta.gamma"),
        (".java", "Alpha.beta"),
        (".cpp", "alpha.Beta.gamma"),
        (".cs", "Alpha.Beta.Gamma"),
        (".rb", "Alpha.Beta.gamma"),
    ],
)
def test_class_that_is_too_long_is_cut_by_method(ending: str, method: str) -> None:
    chunks = chunker_for(f"a{ending}", 8).chunk(SOURCES[ending][0])
    assert ("method", method) in {(chunk.type, chunk.symbol) for chunk in chunks}


def test_definition_keeps_the_comment_and_decorators_above_it() -> None:
    source = "import os\n\nX = 1\n\n# Why.\n@a\n@b\ndef one():\n    pass\n"
    chunks = chunker_for("a.py", 16).chunk(source)
    assert [(c.start_line, c.end_line, c.symbol) for c in chunks] == [(1, 3, ""), (5, 9, "one")]


def test_function_that_is_too_long_is_cut_by_lines_under_its_name() -> None:
    source = "def long():\n" + "".join(f"    call_{n}(1)\n" for n in range(50))
    chunks = chunker_for("a.py", 60).chunk(source)
    assert len(chunks) > 3
    assert {(c.type, c.symbol) for c in chunks} == {("function", "long")}
    assert [c.start_line for c in chunks[1:]] == [c.end_line + 1 for c in chunks[:-1]]


def test_small_neighbours_are_put_together() -> None:
    source = "".join(f"def f{n}(): pass\n\n\n" for n in range(6))
    chunks = chunker_for("a.py", 512).chunk(source)
    assert [c.symbol for c in chunks] == ["f0, f1, f2, f3, f4, f5"]
    check(chunks, source, 512)


def test_broken_source_is_cut_as_far_as_it_is_understood() -> None:
    source = "def one(:\n    pass\n\ndef two():\n    return (\n\nclass Three:\n    pass\n"
    chunks = chunker_for("a.py", 12).chunk(source)
    check(chunks, source, 12)
    assert "Three" in " ".join(c.symbol for c in chunks)


@pytest.mark.parametrize(
    "source", ["(" * 50_000, "{" * 50_000, "class A {" * 5_000, "if (a) " * 5_000 + "b;"]
)
def test_deep_source_is_cut(source: str) -> None:
    check(chunker_for("a.java", 512).chunk(source), source, 512)


def test_source_beyond_all_bounds_is_cut_by_tokens() -> None:
    source = "def one():\n    pass\n" * 110_000
    chunks = chunker_for("a.py", 4096).chunk(source)
    assert {c.symbol for c in chunks} == {""}
    assert chunks[-1].end_line == 220_000


def test_text_windows_share_their_ends() -> None:
    text = "".join(f"word{n} word{n} word{n}\n" for n in range(100))
    chunks = TextChunker(60, 12).chunk(text)
    for one, other in pairwise(chunks):
        shared = range(other.start_line, one.end_line + 1)
        assert len(shared) == 4  # of three tokens each
    assert all(c.type == "text" for c in chunks)


def test_text_without_overlap_is_all_its_chunks() -> None:
    text = "".join(f"some words {n}, and some more of them.\n" for n in range(200))
    chunks = TextChunker(64, 0).chunk(text)
    assert "\n".join(c.text for c in chunks) == text.rstrip()


def test_long_line_is_cut_between_words() -> None:
    text = " ".join(f"interesting{n}" for n in range(300))
    chunks = TextChunker(64, 0).chunk(text)
    assert len(chunks) > 10
    assert " ".join(c.text.strip() for c in chunks) == text
    assert {(c.start_line, c.end_line) for c in chunks} == {(1, 1)}


def test_text_without_spaces_is_cut_anyhow() -> None:
    text = "x" * 100_000
    chunks = TextChunker(64, 0).chunk(text)
    assert "".join(c.text for c in chunks) == text


def test_markdown_is_cut_by_heading_with_the_path_of_headings() -> None:
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


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 10), (10, -1), (-5, 0)])
def test_sizes_that_make_no_sense_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ConfigurationError, match="overlap"):
        TextChunker(size, overlap)


@pytest.mark.parametrize(
    ("path", "kind"), [("README", "text"), ("a.MD", "section"), ("b.unknown", "text"), ("", "text")]
)
def test_chunker_is_chosen_by_name(path: str, kind: str) -> None:
    chunker: Chunker = chunker_for(path)
    assert [c.type for c in chunker.chunk("words\n")] == [kind]


def test_threads_share_a_chunker() -> None:
    source = SOURCES[".py"][0] * 300
    chunker = chunker_for("a.py", 64)
    wanted = chunker.chunk(source)
    with ThreadPoolExecutor(8) as threads:
        assert all(found == wanted for found in threads.map(chunker.chunk, [source] * 24))


def test_grammar_that_is_not_installed_is_named() -> None:
    unknown = structs.replace(BY_ENDING[".py"], grammar="tree_sitter_klingon")
    with pytest.raises(ConfigurationError, match=r"tree_sitter_klingon: pip install"):
        CodeChunker(unknown)


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
    """The long ones would take an hour, if their blanks were split in every way."""
    assert _heading(Lines(f"{line}\nwords\n"), 0) == (len(line) - len(line.lstrip("#")), title)
