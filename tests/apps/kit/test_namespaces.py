"""Which names belong to applications, in every spelling."""

import pytest

from penstock import NewJob
from penstock.apps.ingest.order import key_of
from penstock.apps.kit.namespaces import FIELDS, Field, Namespaces


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "text",
    [
        "notebooks",
        "notebooks.delete",
        "notebooks:1",
        "notebooks-x",
        "notebooks/x",
        "Notebooks.Delete",
        " notebooks.delete",
        "notebooks.delete ",
        "notebooks ",
        "\uff4eoteboo\uff4bs.delete",
        "notebooks\u2024delete",
        "note\u200bbooks.delete",
        "\ufeffnotebooks.delete",
        "NOTEBOO\u212aS.delete",
        "noteboo\u212as",
        "note\u034fbooks.delete",
        "notebooks\ufe0f.delete",
        "\x01notebooks.delete",
        "note\x7fbooks:1",
        "\x85notebooks.delete",
        "\u3164notebooks",
        "note\u2800books",
        "\u115fnotebooks/x",
        "note\U000e0100books.delete",
        "note\u2065books.delete",
        "\tnotebooks.delete",
        " \x01 notebooks.delete",
    ],
)
def test_name_belongs_to_its_application_in_every_spelling(field: Field, text: str) -> None:
    assert Namespaces().owner(field, text) == "notebooks"


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "text",
    [
        "mail",
        "notebook",
        "notebooksdelete",
        "notebooks_x",
        "my.notebooks",
        "client/0/notebooks",
        "caf\u00e9.notebooks",
    ],
)
def test_other_names_belong_to_nobody(field: Field, text: str) -> None:
    assert Namespaces().owner(field, text) is None


@pytest.mark.parametrize("place", ["/x", "long" * 500])
def test_keys_that_items_have_belong_to_ingest(place: str) -> None:
    assert Namespaces().owner("key", key_of("events-team", "docs", "main", place)) == "ingest"


def test_application_of_another_package_has_a_namespace_too() -> None:
    names = Namespaces(["mine", "events"])
    job = NewJob(task="mine.do", payload="{}")
    assert names.foreign(job, "mine") is None
    found = names.foreign(job, None)
    assert found is not None
    assert (found.field, found.owner, found.manifest.route) == ("task", "mine", "")
