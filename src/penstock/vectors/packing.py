"""Cuts a text into windows of so many tokens, at the ends of lines where that is possible.

A token is a piece of a word of up to six letters or digits, or a single other character: near to
what the tokenizers of language models count, without the need for one of theirs.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.core.errors import ConfigurationError

TOKEN = re.compile(r"\w{1,6}|[^\w\s]")
WITHIN = re.compile(r"\w\w")
GRAIN = 8
"""A line is cut where it is longer than this part of a window, so that windows fill well."""

SMALL = 16
"""What has less than this part of a chunk's tokens is put together with its neighbour."""


class Limits(NamedTuple):
    """How many tokens a chunk may have, and how many it shares with the chunk before it."""

    size: int
    overlap: int


class Piece(NamedTuple):
    """A part of a text that stays whole: two offsets and how many tokens are between them."""

    start: int
    end: int
    tokens: int


def limits(size: int, overlap: int) -> Limits:
    """The two numbers, if they make sense together."""
    if size < 1 or not 0 <= overlap < size:
        raise ConfigurationError(
            f"a chunk of {size} tokens cannot share {overlap} with the one before it; "
            "the size has to be at least 1, and the overlap at least 0 and below the size"
        )
    return Limits(size, overlap)


def count(text: str) -> int:
    """How many tokens a text has."""
    return len(TOKEN.findall(text))


class Lines:
    """The lines of a text, counted from 0, by where they begin; only a line feed ends one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def __len__(self) -> int:
        return len(self._starts)

    def start(self, line: int) -> int:
        """Where a line begins; behind the last one, where the text ends."""
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def at(self, offset: int) -> int:
        """The line that the character at an offset belongs to."""
        return bisect_right(self._starts, offset) - 1

    def slice(self, first: int, behind: int) -> str:
        """The text of the lines from one to before another."""
        return self.text[self.start(first) : self.start(behind)]


def pieces(lines: Lines, first: int, behind: int, size: int) -> Iterator[Piece]:
    """The lines from one to before another as pieces; long lines in several."""
    most = max(1, size // GRAIN)
    for line in range(first, behind):
        start, end = lines.start(line), lines.start(line + 1)
        ends = [found.end() for found in TOKEN.finditer(lines.text, start, end)]
        done = 0
        for cut in _cuts(lines.text, ends, most):
            yield Piece(start, ends[cut - 1], cut - done)
            start, done = ends[cut - 1], cut
        yield Piece(start, end, len(ends) - done)


def _cuts(text: str, ends: Sequence[int], most: int) -> Iterator[int]:
    """Behind which tokens of a long line to cut, from 1: behind words, unless one is too long."""
    done = 0
    while len(ends) - done > most:
        cut = done + most
        while cut > done and WITHIN.match(text, ends[cut - 1] - 1):
            cut -= 1
        done = cut if cut > done else done + most
        yield done


def pack(parts: Sequence[Piece], limits: Limits) -> Iterator[tuple[int, int]]:
    """Windows over pieces that follow each other, as offsets; a window holds at least one."""
    first = 0
    while first < len(parts):
        behind, tokens = first + 1, parts[first].tokens
        while behind < len(parts) and tokens + parts[behind].tokens <= limits.size:
            tokens += parts[behind].tokens
            behind += 1
        yield parts[first].start, parts[behind - 1].end
        if behind == len(parts):
            return
        # The next window goes back as far as it may and still gets further than this one.
        room = min(limits.overlap, limits.size - parts[behind].tokens)
        back = behind
        while back - 1 > first and parts[back - 1].tokens <= room:
            back -= 1
            room -= parts[back].tokens
        first = back


def joined(tokens: Sequence[int], size: int) -> list[range]:
    """Neighbours to put together, by the tokens of each: small ones with the next, if both fit.

    A small one at the end goes with the one before it.
    """
    small = max(1, size // SMALL)
    groups: list[range] = []
    had = 0
    for place, new in enumerate(tokens):
        is_small = had < small or (new < small and place == len(tokens) - 1)
        if groups and is_small and had + new <= size:
            groups[-1] = range(groups[-1].start, place + 1)
            had += new
        else:
            groups.append(range(place, place + 1))
            had = new
    return groups


def trimmed(lines: Lines, windows: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    """Windows as text with first and last line, from 1; without blank ends, blank ones left out."""
    for start, end in windows:
        text = lines.text[start:end]
        if text.strip():
            begin = start + len(text) - len(text.lstrip())
            # An indent says something in source code, so the first line keeps its own.
            begin = max(start, lines.start(lines.at(begin)))
            finish = start + len(text.rstrip())
            yield lines.text[begin:finish], lines.at(begin) + 1, lines.at(finish - 1) + 1
