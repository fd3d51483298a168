"""Entry types validate the data of entries."""

from pathlib import Path

import pytest

from penstock import ConfigurationError, Penstock
from penstock.apps.entries import Entries, EntryType, Field, InvalidEntry
from tests.apps.entries.support import experience

INVALID = [
    ("thing", "A", {}, "entity_type: 'thing' is not one of experience, manual"),
    ("experience", "", experience("x"), "category_code: must have 1 to 64"),
    ("experience", "A", {"title": "x"}, "data.playbook: is required"),
    ("experience", "A", experience(" "), "data.title: must not be empty"),
    ("experience", "A", {**experience("x"), "colour": 1}, "data.colour: type experience has no"),
    ("experience", "A", {"title": 1, "playbook": "x"}, "data.title: expected text, got number"),
    ("experience", "A", {**experience("x"), "confidence": True}, "expected number, got flag"),
    ("experience", "A", experience("x" * 501), "has 501 characters, the limit is 500"),
    ("experience", "A", {**experience("x"), "tags": ["t"] * 101}, "has 101 elements"),
    ("experience", "A", {**experience("x"), "context": "y" * 2_000_000}, "limit is"),
    ("experience", "A", experience("\ud800"), "data: is not valid JSON"),
]


@pytest.mark.parametrize(("name", "category", "data", "why"), INVALID)
def test_entry_that_does_not_fit_its_type_is_refused(
    tmp_path: Path, name: str, category: str, data: dict[str, object], why: str
) -> None:
    entries = Entries(Penstock("memory://"), tmp_path)
    with pytest.raises(InvalidEntry) as refused:
        entries.content(name, category, data)
    assert why in str(refused.value)


def test_custom_type_says_what_is_embedded_and_which_categories_there_are(
    tmp_path: Path,
) -> None:
    recipe = EntryType(
        name="recipe",
        fields={
            "name": Field(required=True),
            "steps": Field(kind="list"),
            "course": Field(choices=("starter", "main")),
        },
        embed=("steps", "name"),
        categories=("vegan", "other"),
    )
    entries = Entries(Penstock("memory://"), tmp_path, types=[recipe])
    made = entries.content("recipe", "vegan", {"name": "Soup", "steps": ["cut", "cook\0"]})
    assert made.text == "cut\ncook \n\nSoup"
    with pytest.raises(InvalidEntry, match="'meat' is not one of vegan, other"):
        entries.content("recipe", "meat", {"name": "Soup"})
    with pytest.raises(InvalidEntry, match="'lunch' is not one of starter, main"):
        entries.content("recipe", "vegan", {"name": "Soup", "course": "lunch"})


def test_type_that_no_entry_could_have_is_refused(tmp_path: Path) -> None:
    fields = {"a": Field()}
    for wrong in (
        {"name": "Big Name", "embed": ("a",)},
        {"name": "x", "embed": ()},
        {"name": "x", "embed": ("b",)},
        {"name": "manual", "embed": ("a",)},
        {"name": "x", "embed": ("a",), "aliases": ("skill",)},
    ):
        with pytest.raises(ConfigurationError):
            Entries(
                Penstock("memory://"),
                tmp_path,
                types=[EntryType(fields=fields, **wrong)],  # type: ignore[arg-type] # is what is refused
            )
