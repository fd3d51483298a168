"""Measure the default search: find bodies of docstrings by their summary lines."""

import ast
import hashlib
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.vectors import Collection, Document, Mode, open_embedder

PACKAGES = (
    "_pytest",
    "asyncio",
    "email",
    "fsspec",
    "huggingface_hub",
    "hypothesis",
    "numpy",
    "pydantic",
    "rich",
)
DOCUMENTS = 2_000
QUESTIONS = 300
LEAST = 0.6


class Pair(NamedTuple):
    summary: str
    body: str


def docstrings(package: str) -> Iterator[Pair]:
    """Yield the docstrings of a package from its source, without importing it."""
    spec = find_spec(package)
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        files = (file for file in Path(folder).rglob("*.py") if "tests" not in file.parts)
        for file in sorted(files):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from pair(ast.get_docstring(node) or "")


def pair(docstring: str) -> Iterator[Pair]:
    summary, _, body = inspect.cleandoc(docstring).partition("\n\n")
    if "\n" not in summary and len(summary.split()) >= 4 and len(body.split()) >= 30:
        yield Pair(summary, body)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """Return a sample chosen by hash, with distinct summaries and bodies."""
    found = {each.body: each for package in PACKAGES for each in docstrings(package)}
    single = {each.summary: each for each in found.values()}
    by_chance = sorted(
        single.values(), key=lambda each: hashlib.sha256(each.body.encode()).digest()
    )
    assert len(by_chance) >= DOCUMENTS
    return by_chance[:DOCUMENTS]


def recall(collection: Collection, pairs: list[Pair], mode: Mode) -> float:
    found = 0
    for number, each in enumerate(pairs[:QUESTIONS]):
        hits = collection.search(each.summary, k=10, mode=mode)
        found += f"{number}.txt" in {hit.path for hit in hits}
    return found / QUESTIONS


def test_body_of_a_docstring_is_found_by_its_summary(pairs: list[Pair], tmp_path: Path) -> None:
    with Collection.open(tmp_path, open_embedder()) as collection:
        collection.replace(Document(f"{n}.txt", each.body) for n, each in enumerate(pairs))
        reached = {mode: recall(collection, pairs, mode) for mode in Mode}
    print(reached)  # noqa: T201 - shown with -s
    assert reached[Mode.HYBRID] >= LEAST
    # Words alone do better still here: summaries share many words with their bodies.
    assert reached[Mode.HYBRID] > reached[Mode.VECTOR]
