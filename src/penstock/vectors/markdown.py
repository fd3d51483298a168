"""Cuts Markdown by heading; what looks like a heading inside of code is none."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.vectors.chunks import Chunk
from penstock.vectors.packing import Lines, Piece, count, joined, limits, pack, pieces, trimmed

HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\r?\n?$)([^\n]*)\n?$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\r?\n?$")
PLAIN = re.compile(r" {0,3}[^\s>#|`~*+=-]")


class Section(NamedTuple):
    """Lines from `first` to before `behind`, under these headings, the outermost first."""

    first: int
    behind: int
    headings: tuple[str, ...]


class MarkdownChunker:
    """Cuts Markdown into its sections; long ones further, by tokens, small ones joined.

    The `symbol` of a chunk is the path of headings above it, such as `Install > Linux`. A block
    of code stays whole where it fits into a chunk.
    """

    def __init__(self, size: int = 512, overlap: int = 50) -> None:
        self._limits = limits(size, overlap)

    def chunk(self, text: str) -> list[Chunk]:
        """The chunks of a text."""
        lines = Lines(text)
        fences = list(_fences(lines))
        return [
            chunk
            for section in self._joined(lines, list(_sections(lines, fences)))
            for chunk in self._cut(lines, section, fences)
        ]

    def _joined(self, lines: Lines, sections: list[Section]) -> Iterator[Section]:
        """Sections, the small ones put together under the headings of the largest."""
        tokens = [count(lines.slice(each.first, each.behind)) for each in sections]
        for group in joined(tokens, self._limits.size):
            largest = sections[max(group, key=tokens.__getitem__)]
            first, last = sections[group[0]], sections[group[-1]]
            yield Section(first.first, last.behind, largest.headings)

    def _cut(self, lines: Lines, section: Section, fences: list[range]) -> Iterator[Chunk]:
        parts = list(self._pieces(lines, section, fences))
        symbol = " > ".join(title for title in section.headings if title)
        for cut, first, last in trimmed(lines, pack(parts, self._limits)):
            yield Chunk(cut, first, last, "section", "markdown", symbol)

    def _pieces(self, lines: Lines, section: Section, fences: list[range]) -> Iterator[Piece]:
        """The lines of a section, a block of code as one piece if a chunk can hold it."""
        line = section.first
        for fence in fences:
            start, stop = max(fence.start, line), min(fence.stop, section.behind)
            tokens = count(lines.slice(start, stop)) if start < stop else 0
            if 0 < tokens <= self._limits.size:
                yield from pieces(lines, line, start, self._limits.size)
                yield Piece(lines.start(start), lines.start(stop), tokens)
                line = stop
        yield from pieces(lines, line, section.behind, self._limits.size)


def _fences(lines: Lines) -> Iterator[range]:
    """The lines of each fenced block of code, its fences included."""
    first, mark = 0, ""
    for line in range(len(lines)):
        found = FENCE.match(lines.slice(line, line + 1))
        if not found:
            continue
        fence, rest = found.groups()
        if not mark:
            if fence[0] == "~" or "`" not in rest:
                first, mark = line, fence
        elif fence.startswith(mark) and not rest.strip():
            yield range(first, line + 1)
            mark = ""
    if mark:
        yield range(first, len(lines))


def _sections(lines: Lines, fences: list[range]) -> Iterator[Section]:
    """The text as sections; one begins with each heading."""
    code = {line for fence in fences for line in fence}
    first, headings = 0, [""] * 6
    for line in range(_front_matter(lines), len(lines)):
        found = None if line in code else _heading(lines, line)
        if found is None:
            continue
        level, title = found
        if line > first:
            yield Section(first, line, tuple(headings))
        first = line
        headings[level - 1 :] = [title, *[""] * (6 - level)]
    yield Section(first, len(lines), tuple(headings))


def _front_matter(lines: Lines) -> int:
    """The line behind a block of settings at the top, 0 if there is none."""
    if lines.slice(0, 1).rstrip() != "---":
        return 0
    ends = (line for line in range(1, len(lines)) if lines.slice(line, line + 1).rstrip() == "---")
    return next(ends, -1) + 1


def _heading(lines: Lines, line: int) -> tuple[int, str] | None:
    """Level and title, if a heading begins in a line; also one that the next line underlines."""
    here = lines.slice(line, line + 1)
    if found := HEADING.match(here):
        return len(found[1]), _title(found[2])
    above = lines.slice(line - 1, line) if line else ""
    below = UNDERLINE.match(lines.slice(line + 1, line + 2))
    if below and PLAIN.match(here) and not above.strip():
        return (1 if below[1][0] == "=" else 2), here.strip()
    return None


def _title(text: str) -> str:
    """The title of a heading, without the `#` that may close it.

    In steps of linear time: one pattern for all of it tries every split of its blanks.
    """
    text = text.removesuffix("\r").strip(" \t")
    unclosed = text.rstrip("#")
    return (unclosed if unclosed.endswith((" ", "\t")) else text).strip()
