"""Cuts plain text by tokens."""

from penstock.vectors.chunks import Chunk
from penstock.vectors.packing import Lines, limits, pack, pieces, trimmed


class TextChunker:
    """Cuts any text into chunks of up to `size` tokens that share up to `overlap` of them."""

    def __init__(self, size: int = 512, overlap: int = 50, language: str = "") -> None:
        self._limits = limits(size, overlap)
        self._language = language

    def chunk(self, text: str) -> list[Chunk]:
        """The chunks of a text; cut at ends of lines, and inside of long lines."""
        lines = Lines(text)
        parts = list(pieces(lines, 0, len(lines), self._limits.size))
        return [
            Chunk(cut, first, last, language=self._language)
            for cut, first, last in trimmed(lines, pack(parts, self._limits))
        ]
