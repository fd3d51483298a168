"""Chooses the chunker for a file by its name."""

from pathlib import PurePath

from penstock.vectors.chunks import Chunker
from penstock.vectors.code import CodeChunker
from penstock.vectors.languages import BY_ENDING
from penstock.vectors.markdown import MarkdownChunker
from penstock.vectors.text import TextChunker

MARKDOWN = frozenset({".md", ".markdown", ".mdx", ".mkd"})


def chunker_for(path: str, size: int = 512, overlap: int = 50) -> Chunker:
    """The chunker that fits the name of a file; one for plain text if nothing is known of it.

    Chunks have up to `size` tokens and share `overlap` of them; those of source code share none.
    """
    ending = PurePath(path).suffix.lower()
    if ending in MARKDOWN:
        return MarkdownChunker(size, overlap)
    if language := BY_ENDING.get(ending):
        return CodeChunker(language, size)
    return TextChunker(size, overlap)
