from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock import ConfigurationError
from penstock.vectors import LANGUAGES_BY_SUFFIX, CodeChunker, chunker_for
from tests.vectors.source_code import SOURCES
from tests.vectors.support import SUFFIXES, check_chunks

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


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(lines=st.lists(PARTS), size=st.integers(1, 60))
def test_source_in_any_disorder_is_split_without_loss(
    suffix: str, lines: list[str], size: int
) -> None:
    text = "\n".join(lines)
    check_chunks(chunker_for(f"a{suffix}", size, size // 4).chunk(text), text, size)


@pytest.mark.parametrize("suffix", SOURCES)
def test_source_is_split_by_definition(suffix: str) -> None:
    source, wanted = SOURCES[suffix]
    # Small enough that nothing is merged; each definition still fits.
    chunks = chunker_for(f"dir/a{suffix.upper()}", 40).chunk(source)
    found = {(chunk.symbol, chunk.type) for chunk in chunks if chunk.symbol}
    assert found >= set(wanted.items())
    assert {chunk.language for chunk in chunks} == {LANGUAGES_BY_SUFFIX[suffix].name}


@pytest.mark.parametrize(
    ("suffix", "method"),
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
def test_class_that_is_too_long_is_split_by_method(suffix: str, method: str) -> None:
    chunks = chunker_for(f"a{suffix}", 8).chunk(SOURCES[suffix][0])
    assert ("method", method) in {(chunk.type, chunk.symbol) for chunk in chunks}


def test_definition_keeps_the_comment_and_decorators_above_it() -> None:
    source = "import os\n\nX = 1\n\n# Why.\n@a\n@b\ndef one():\n    pass\n"
    chunks = chunker_for("a.py", 16).chunk(source)
    assert [(c.start_line, c.end_line, c.symbol) for c in chunks] == [(1, 3, ""), (5, 9, "one")]


def test_function_that_is_too_long_is_split_by_lines_under_its_name() -> None:
    source = "def long():\n" + "".join(f"    call_{n}(1)\n" for n in range(50))
    chunks = chunker_for("a.py", 60).chunk(source)
    assert len(chunks) > 3
    assert {(c.type, c.symbol) for c in chunks} == {("function", "long")}
    assert [c.start_line for c in chunks[1:]] == [c.end_line + 1 for c in chunks[:-1]]


def test_small_neighbours_are_merged() -> None:
    source = "".join(f"def f{n}(): pass\n\n\n" for n in range(6))
    chunks = chunker_for("a.py", 512).chunk(source)
    assert [c.symbol for c in chunks] == ["f0, f1, f2, f3, f4, f5"]
    check_chunks(chunks, source, 512)


def test_broken_source_is_split_as_far_as_it_can_be_parsed() -> None:
    source = "def one(:\n    pass\n\ndef two():\n    return (\n\nclass Three:\n    pass\n"
    chunks = chunker_for("a.py", 12).chunk(source)
    check_chunks(chunks, source, 12)
    assert "Three" in " ".join(c.symbol for c in chunks)


@pytest.mark.parametrize(
    "source", ["(" * 50_000, "{" * 50_000, "class A {" * 5_000, "if (a) " * 5_000 + "b;"]
)
def test_deep_source_is_split(source: str) -> None:
    check_chunks(chunker_for("a.java", 512).chunk(source), source, 512)


def test_huge_source_is_split_by_tokens() -> None:
    source = "def one():\n    pass\n" * 110_000
    chunks = chunker_for("a.py", 4096).chunk(source)
    assert {c.symbol for c in chunks} == {""}
    assert chunks[-1].end_line == 220_000


def test_threads_share_a_chunker() -> None:
    source = SOURCES[".py"][0] * 300
    chunker = chunker_for("a.py", 64)
    wanted = chunker.chunk(source)
    with ThreadPoolExecutor(8) as threads:
        assert all(found == wanted for found in threads.map(chunker.chunk, [source] * 24))


def test_missing_grammar_is_named() -> None:
    unknown = structs.replace(LANGUAGES_BY_SUFFIX[".py"], grammar="tree_sitter_klingon")
    with pytest.raises(ConfigurationError, match=r"tree_sitter_klingon: pip install"):
        CodeChunker(unknown)
