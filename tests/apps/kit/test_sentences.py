"""Errors as people read them: no class names, no tracebacks, no paths of the server."""

import pytest

from penstock.apps.kit.sentences import INTERNAL, sentence


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("a.b.Rejected: no such file", "no such file"),
        ("OSError: no", "no"),
        ("a.EmbeddingFailed: ValueError: this text is poison", "this text is poison"),
        ("EmbeddingFailed: too long\n\nTraceback (most recent call last):\n  x", "too long"),
        ("OSError: [Errno 28] No space left on device", "No space left on device"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/srv/my data/a b.txt'",
            "No such file or directory: 'a b.txt'",
        ),
        ("/srv/data/notes.txt: is not a file", "notes.txt: is not a file"),
        (
            "there is nothing in /srv/docs/: all are empty",
            "there is nothing in docs: all are empty",
        ),
        (
            "http://embed.local/v1/x answers 400: too long",
            "http://embed.local/v1/x answers 400: too long",
        ),
        ("read and/or write 1/2 of it", "read and/or write 1/2 of it"),
        ("the lease of worker a:1 ran out", "the lease of worker a:1 ran out"),
        ("payload.file_path: is missing", "payload.file_path: is missing"),
        ("KeyError: 'colour'", INTERNAL),
        ("AttributeError: 'NoneType' object has no attribute 'x'", INTERNAL),
        ("x.y.Odd: TypeError: unhashable type: 'list'", INTERNAL),
        ("ValueError", INTERNAL),
        ("", INTERNAL),
    ],
)
def test_error_is_one_sentence(error: str, shown: str) -> None:
    assert sentence(error) == shown
