"""Search by meaning and by words: files, chunkers, embedders and indexes, without a queue.

Requires the extra `vectors`.
"""

from penstock.core.errors import EmbedderUnavailable, EmbeddingRefused, IndexUnavailable
from penstock.vectors.chunks import Chunk, Chunker, TextChunker, chunker_for
from penstock.vectors.code import CodeChunker
from penstock.vectors.collection import Collection, Document
from penstock.vectors.embedders import Embedder, Vectors, open_embedder
from penstock.vectors.files import (
    FileFilter,
    FoundFile,
    UnreadableFile,
    Walk,
    decode_text,
    parse_patterns,
    read_file,
)
from penstock.vectors.index import Index, open_index
from penstock.vectors.items import Hit, Item, Mode, Where
from penstock.vectors.languages import LANGUAGES, LANGUAGES_BY_SUFFIX, Language
from penstock.vectors.markdown import MarkdownChunker

__all__ = [
    "LANGUAGES",
    "LANGUAGES_BY_SUFFIX",
    "Chunk",
    "Chunker",
    "CodeChunker",
    "Collection",
    "Document",
    "Embedder",
    "EmbedderUnavailable",
    "EmbeddingRefused",
    "FileFilter",
    "FoundFile",
    "Hit",
    "Index",
    "IndexUnavailable",
    "Item",
    "Language",
    "MarkdownChunker",
    "Mode",
    "TextChunker",
    "UnreadableFile",
    "Vectors",
    "Walk",
    "Where",
    "chunker_for",
    "decode_text",
    "open_embedder",
    "open_index",
    "parse_patterns",
    "read_file",
]
