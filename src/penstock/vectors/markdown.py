"""Split Markdown by heading; lines of code that look like headings are ignored."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.vectors.chunks import (
    Chunk,
    Lines,
    Piece,
    check_limits,
    count_tokens,
    merge_small,
    pack,
    split_lines,
    trim,
)

HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\r?\n?$)([^\n]*)\n?$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\r?\n?$")
PLAIN = re.compile(r" {0,3}[^\s>#|`~*+=-]")


class Section(NamedTuple):
    """Lines from `first` up to but excluding `end`, and the headings above, outermost first."""

    first: int
    end: int
    headings: tuple[str, ...]


class MarkdownChunker:
    """Splits Markdown into sections; splits long ones by tokens and merges small ones.

    The `symbol` of a chunk is the path of headings above it, such as `Install > Linux`. A code
    block that fits into a chunk is not split.
    """

    def __init__(self, size: int = 512, overlap: int = 50) -> None:
        self._limits = check_limits(size, overlap)

    def chunk(self, text: str) -> list[Chunk]:
        """Return the chunks of a text."""
        lines = Lines(text)
        fences = list(_fences(lines))
        return [
            chunk
            for section in self._merged(lines, list(_sections(lines, fences)))
            for chunk in self._split(lines, section, fences)
        ]

    def _merged(self, lines: Lines, sections: list[Section]) -> Iterator[Section]:
        """Merge small sections under the headings of the largest."""
        tokens = [count_tokens(lines.slice(each.first, each.end)) for each in sections]
        for group in merge_small(tokens, self._limits.size):
            largest = sections[max(group, key=tokens.__getitem__)]
            first, last = sections[group[0]], sections[group[-1]]
            yield Section(first.first, last.end, largest.headings)

    def _split(self, lines: Lines, section: Section, fences: list[range]) -> Iterator[Chunk]:
        pieces = list(self._pieces(lines, section, fences))
        symbol = " > ".join(title for title in section.headings if title)
        for content, first, last in trim(lines, pack(pieces, self._limits)):
            yield Chunk(content, first, last, "section", "markdown", symbol)

    def _pieces(self, lines: Lines, section: Section, fences: list[range]) -> Iterator[Piece]:
        """Yield the lines of a section; a code block that fits into a chunk is one piece."""
        line = section.first
        for fence in fences:
            start, stop = max(fence.start, line), min(fence.stop, section.end)
            tokens = count_tokens(lines.slice(start, stop)) if start < stop else 0
            if 0 < tokens <= self._limits.size:
                yield from split_lines(lines, line, start, self._limits.size)
                yield Piece(lines.start(start), lines.start(stop), tokens)
                line = stop
        yield from split_lines(lines, line, section.end, self._limits.size)


def _fences(lines: Lines) -> Iterator[range]:
    """Yield the lines of each fenced code block, including the fences."""
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
    """Yield the sections of a text; each heading starts one."""
    code = {line for fence in fences for line in fence}
    first, headings = 0, [""] * 6
    for line in range(_front_matter(lines), len(lines)):
        found = None if line in code else heading_at(lines, line)
        if found is None:
            continue
        level, title = found
        if line > first:
            yield Section(first, line, tuple(headings))
        first = line
        headings[level - 1 :] = [title, *[""] * (6 - level)]
    yield Section(first, len(lines), tuple(headings))


def _front_matter(lines: Lines) -> int:
    """Return the first line after the front matter, 0 if there is none."""
    if lines.slice(0, 1).rstrip() != "---":
        return 0
    ends = (line for line in range(1, len(lines)) if lines.slice(line, line + 1).rstrip() == "---")
    return next(ends, -1) + 1


def heading_at(lines: Lines, line: int) -> tuple[int, str] | None:
    """Return the level and title of the heading in a line, ATX or setext; None if there is none."""
    here = lines.slice(line, line + 1)
    if found := HEADING.match(here):
        return len(found[1]), _title(found[2])
    above = lines.slice(line - 1, line) if line else ""
    below = UNDERLINE.match(lines.slice(line + 1, line + 2))
    if below and PLAIN.match(here) and not above.strip():
        return (1 if below[1][0] == "=" else 2), here.strip()
    return None


def _title(text: str) -> str:
    """Return the title of a heading without a closing sequence of `#`.

    Each step takes linear time; a single regular expression tries every split of its blanks.
    """
    text = text.removesuffix("\r").strip(" \t")
    unclosed = text.rstrip("#")
    return (unclosed if unclosed.endswith((" ", "\t")) else text).strip()
