"""How many chunks an embedder turns into vectors: `python -m benchmarks.embedders [NAME …]`.

The chunks are those of this repository's own documentation, 512 tokens at most, over and over. One
thread computes, and what counts is its processor time, so that a busy machine does not matter much.
"""

import os
import sys
import time
from itertools import cycle, islice
from pathlib import Path

SIZES = {"wordllama": 5_000, "minilm": 100}


def main() -> None:
    """Measure each embedder and print its figures."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # before NumPy and the tokenizers start their threads
    from penstock.vectors import chunker_for, open_embedder

    pages = sorted(Path(__file__).parents[1].glob("docs/**/*.md"))
    chunker = chunker_for("page.md")
    chunks = [chunk.text for page in pages for chunk in chunker.chunk(page.read_text("utf-8"))]
    for name in sys.argv[1:] or SIZES:
        embedder = open_embedder(name)
        texts = list(islice(cycle(chunks), SIZES.get(name, 100)))
        embedder.embed(texts[:8])
        began = time.process_time()
        embedder.embed(texts)
        spent = time.process_time() - began
        size = sum(map(len, texts)) / len(texts)
        print(f"{name}: {len(texts) / spent:,.0f} chunks/s of {size:,.0f} characters on average")


if __name__ == "__main__":
    main()
