from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigurationError
from penstock.vectors import Chunker, TextChunker, chunker_for
from tests.vectors.support import SUFFIXES, check_chunks


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(text=st.text(), size=st.integers(1, 40), overlap=st.integers(0, 39))
def test_any_text_is_split_without_loss(suffix: str, text: str, size: int, overlap: int) -> None:
    chunker = chunker_for(f"a{suffix}", size, min(overlap, size - 1))
    chunks = chunker.chunk(text)
    check_chunks(chunks, text, size)
    assert chunker.chunk(text) == chunks


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


def test_long_line_is_split_between_words() -> None:
    text = " ".join(f"interesting{n}" for n in range(300))
    chunks = TextChunker(64, 0).chunk(text)
    assert len(chunks) > 10
    assert " ".join(c.text.strip() for c in chunks) == text
    assert {(c.start_line, c.end_line) for c in chunks} == {(1, 1)}


def test_text_without_spaces_is_split_too() -> None:
    text = "x" * 100_000
    chunks = TextChunker(64, 0).chunk(text)
    assert "".join(c.text for c in chunks) == text


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 10), (10, -1), (-5, 0)])
def test_contradicting_sizes_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ConfigurationError, match="overlap"):
        TextChunker(size, overlap)


@pytest.mark.parametrize(
    ("path", "kind"), [("README", "text"), ("a.MD", "section"), ("b.unknown", "text"), ("", "text")]
)
def test_chunker_is_chosen_by_name(path: str, kind: str) -> None:
    chunker: Chunker = chunker_for(path)
    assert [c.type for c in chunker.chunk("words\n")] == [kind]
