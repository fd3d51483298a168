"""Chunks of text: what a chunk is, which chunker fits a file, and how text is split by tokens.

A token is a piece of a word of up to six letters or digits, or any other single character. This
approximates the tokenizers of language models without requiring one.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple, Protocol

import msgspec

from penstock.core.errors import ConfigurationError

MARKDOWN = frozenset({".md", ".markdown", ".mdx", ".mkd"})
TOKEN = re.compile(r"\w{1,6}|[^\w\s]")
WITHIN_WORD = re.compile(r"\w\w")
GRAIN = 8
"""A line longer than this fraction of a window is split, so that windows fill well."""
SMALL = 16
"""A part with fewer tokens than this fraction of a chunk is merged with its neighbour."""


class Chunk(msgspec.Struct, frozen=True):
    """A part of a text that is searched as one unit; line numbers start at 1 and are inclusive.

    `type` is `text`, `section` (Markdown), `module` (code between definitions) or the kind of a
    definition, such as `function` or `class`. `symbol` is the qualified name of the definition or
    the path of headings above a section; it is empty if there is neither.
    """

    text: str
    start_line: int
    end_line: int
    type: str = "text"
    language: str = ""
    symbol: str = ""


class Chunker(Protocol):
    """Splits text into chunks: deterministically, and without error for any text.

    Every line that is not blank belongs to a chunk, and no chunk is blank.
    """

    def chunk(self, text: str) -> list[Chunk]:
        """Return the chunks of a text, in order."""
        ...


def chunker_for(path: str, size: int = 512, overlap: int = 50) -> Chunker:
    """Return the chunker for a file, chosen by its suffix; unknown suffixes are plain text.

    Chunks have up to `size` tokens and share up to `overlap` of them with the chunk before.
    Chunks of source code do not overlap.
    """
    from penstock.vectors.code import CodeChunker
    from penstock.vectors.languages import LANGUAGES_BY_SUFFIX
    from penstock.vectors.markdown import MarkdownChunker

    suffix = PurePath(path).suffix.lower()
    if suffix in MARKDOWN:
        return MarkdownChunker(size, overlap)
    if language := LANGUAGES_BY_SUFFIX.get(suffix):
        return CodeChunker(language, size)
    return TextChunker(size, overlap)


class TextChunker:
    """Splits any text into chunks of up to `size` tokens that overlap by up to `overlap`."""

    def __init__(self, size: int = 512, overlap: int = 50, language: str = "") -> None:
        self._limits = check_limits(size, overlap)
        self._language = language

    def chunk(self, text: str) -> list[Chunk]:
        """Return the chunks of a text, split at line ends, and inside long lines."""
        lines = Lines(text)
        parts = list(split_lines(lines, 0, len(lines), self._limits.size))
        return [
            Chunk(content, first, last, language=self._language)
            for content, first, last in trim(lines, pack(parts, self._limits))
        ]


# What all chunkers share


class Limits(NamedTuple):
    """The largest number of tokens of a chunk, and how many it shares with the chunk before."""

    size: int
    overlap: int


class Piece(NamedTuple):
    """A part of a text that is never split: start offset, end offset, number of tokens."""

    start: int
    end: int
    tokens: int


def check_limits(size: int, overlap: int) -> Limits:
    """Return the limits; raise `ConfigurationError` if they contradict each other."""
    if size < 1 or not 0 <= overlap < size:
        raise ConfigurationError(
            f"chunks of {size} tokens cannot overlap by {overlap}; "
            "size must be at least 1, and overlap at least 0 and less than size"
        )
    return Limits(size, overlap)


def count_tokens(text: str) -> int:
    """Return the number of tokens in a text."""
    return len(TOKEN.findall(text))


class Lines:
    """The lines of a text, numbered from 0; only a line feed ends a line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def __len__(self) -> int:
        return len(self._starts)

    def start(self, line: int) -> int:
        """Return the offset at which a line starts; past the last line, the end of the text."""
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def at(self, offset: int) -> int:
        """Return the line that contains an offset."""
        return bisect_right(self._starts, offset) - 1

    def slice(self, first: int, end: int) -> str:
        """Return the text of the lines from `first` up to but excluding `end`."""
        return self.text[self.start(first) : self.start(end)]


def split_lines(lines: Lines, first: int, end: int, size: int) -> Iterator[Piece]:
    """Yield the lines from `first` up to but excluding `end` as pieces; split long lines."""
    most = max(1, size // GRAIN)
    for line in range(first, end):
        start, stop = lines.start(line), lines.start(line + 1)
        ends = [found.end() for found in TOKEN.finditer(lines.text, start, stop)]
        done = 0
        for cut in _cuts(lines.text, ends, most):
            yield Piece(start, ends[cut - 1], cut - done)
            start, done = ends[cut - 1], cut
        yield Piece(start, stop, len(ends) - done)


def _cuts(text: str, ends: Sequence[int], most: int) -> Iterator[int]:
    """Yield after how many tokens to split a long line: between words, if words are short."""
    done = 0
    while len(ends) - done > most:
        cut = done + most
        while cut > done and WITHIN_WORD.match(text, ends[cut - 1] - 1):
            cut -= 1
        done = cut if cut > done else done + most
        yield done


def pack(pieces: Sequence[Piece], limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield windows over consecutive pieces as offsets; a window has at least one piece."""
    first = 0
    while first < len(pieces):
        end, tokens = first + 1, pieces[first].tokens
        while end < len(pieces) and tokens + pieces[end].tokens <= limits.size:
            tokens += pieces[end].tokens
            end += 1
        yield pieces[first].start, pieces[end - 1].end
        if end == len(pieces):
            return
        # Start the next window as early as allowed, provided it ends later than this one.
        room = min(limits.overlap, limits.size - pieces[end].tokens)
        start = end
        while start - 1 > first and pieces[start - 1].tokens <= room:
            start -= 1
            room -= pieces[start].tokens
        first = start


def merge_small(tokens: Sequence[int], size: int) -> list[range]:
    """Group neighbours, given the tokens of each: a small one joins the next if both fit.

    A small one at the end joins the one before it.
    """
    small = max(1, size // SMALL)
    groups: list[range] = []
    held = 0
    for place, new in enumerate(tokens):
        is_small = held < small or (new < small and place == len(tokens) - 1)
        if groups and is_small and held + new <= size:
            groups[-1] = range(groups[-1].start, place + 1)
            held += new
        else:
            groups.append(range(place, place + 1))
            held = new
    return groups


def trim(lines: Lines, windows: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    """Yield the text, first line and last line of windows, without blank lines at either end.

    Lines are numbered from 1. Blank windows are dropped.
    """
    for start, end in windows:
        text = lines.text[start:end]
        if text.strip():
            begin = start + len(text) - len(text.lstrip())
            # Indentation is meaningful in source code, so the first line keeps its own.
            begin = max(start, lines.start(lines.at(begin)))
            finish = start + len(text.rstrip())
            yield lines.text[begin:finish], lines.at(begin) + 1, lines.at(finish - 1) + 1
