"""Searching by meaning and by words: chunkers, embedders and indexes, without a queue.

Needs `pip install 'penstock[vectors]'`.
"""

from penstock.core.errors import EmbedderUnavailable, EmbeddingRefused, IndexUnavailable
from penstock.vectors.choosing import chunker_for
from penstock.vectors.chunks import Chunk, Chunker
from penstock.vectors.code import CodeChunker
from penstock.vectors.collection import Collection, Document
from penstock.vectors.embedding import Embedder, open_embedder
from penstock.vectors.index import Index, open_index
from penstock.vectors.markdown import MarkdownChunker
from penstock.vectors.text import TextChunker
from penstock.vectors.values import Hit, Item, Mode, Where

__all__ = [
    "Chunk",
    "Chunker",
    "CodeChunker",
    "Collection",
    "Document",
    "Embedder",
    "EmbedderUnavailable",
    "EmbeddingRefused",
    "Hit",
    "Index",
    "IndexUnavailable",
    "Item",
    "MarkdownChunker",
    "Mode",
    "TextChunker",
    "Where",
    "chunker_for",
    "open_embedder",
    "open_index",
]
