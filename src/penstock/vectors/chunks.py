"""What a chunk is, and the protocol of everything that cuts a text into chunks."""

from typing import Protocol

import msgspec


class Chunk(msgspec.Struct, frozen=True):
    """A part of a text that is searched for as one; lines count from 1, both ends included.

    `type` is `text`, `section` (of Markdown), `module` (what stands between definitions) or the
    kind of a definition, such as `function` or `class`. `symbol` is the name of the definition
    with those around it, or the headings above a section; empty where there is none.
    """

    text: str
    start_line: int
    end_line: int
    type: str = "text"
    language: str = ""
    symbol: str = ""


class Chunker(Protocol):
    """Cuts texts into chunks: the same text always in the same way, and any text without error.

    Every line that is not blank is part of a chunk, and a chunk without words does not occur.
    """

    def chunk(self, text: str) -> list[Chunk]:
        """The chunks of a text, in its order."""
        ...
