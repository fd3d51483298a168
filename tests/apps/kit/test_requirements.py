"""Packages and stores that applications need."""

import pytest

from penstock import ConfigurationError
from penstock.apps.kit import Packages, Problem, is_package_missing, needs_tables

INSTALLED = Packages("indexing", ("msgspec", "click"))
MISSING = Packages("indexing", ("msgspec", "no_such_package", "nor_this_one"))


def test_installed_packages_are_not_missing() -> None:
    assert INSTALLED.missing() == []
    INSTALLED.check()
    INSTALLED.check_served()


def test_missing_packages_are_named_with_the_way_to_install_them() -> None:
    assert MISSING.missing() == ["no_such_package", "nor_this_one"]
    with pytest.raises(ConfigurationError) as refused:
        MISSING.check()
    assert str(refused.value) == (
        "the indexing application needs no_such_package, nor_this_one: "
        "pip install 'penstock[indexing]'"
    )


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("import no_such_package", True),
        ("import no_such_package.part", True),
        ("import msgspec.no_such_part", False),
        ("from msgspec import no_such_name", False),
        ("import penstock.no_such_module", False),
        ("from penstock.apps.kit import no_such_name", False),
        ("raise ImportError('a library cannot be loaded')", False),
    ],
)
def test_only_a_package_that_is_not_installed_is_missing(statement: str, missing: bool) -> None:
    with pytest.raises(ImportError) as failed:
        exec(statement)  # noqa: S102 - one of the statements above
    assert is_package_missing(failed.value) is missing


def test_route_answers_that_the_server_lacks_packages() -> None:
    with pytest.raises(Problem, match="nor_this_one on the server: pip install") as refused:
        MISSING.check_served()
    assert refused.value.status == 501


def test_store_without_tables() -> None:
    said = needs_tables("entries", ConfigurationError("memory:// has no tables"))
    assert said == (
        "the entries application needs a SQLite or PostgreSQL store: memory:// has no tables"
    )
