"""Arguments that decode only within their bounds."""

import pytest

from penstock.apps.kit import NAME_LIMIT, has_long_name


@pytest.mark.parametrize(
    ("path", "is_long"),
    [
        ("/a/b", False),
        ("", False),
        ("/" + "x" * NAME_LIMIT, False),
        ("/" + "x" * (NAME_LIMIT + 1), True),
        ("/a/" + "\u00e9" * 128 + "/b", True),
        ("/\udc80" * 100, False),
        ("/\ud800", False),
    ],
)
def test_names_that_no_file_can_have(path: str, is_long: bool) -> None:
    assert has_long_name(path) is is_long
