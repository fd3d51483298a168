"""Every setting and every public name is described, and wrong settings are refused."""

import inspect
import re
from pathlib import Path

import pytest

from penstock import ConfigurationError, Penstock
from penstock.apps import entries
from penstock.apps.entries import Settings, install
from penstock.config import Sources

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "how-to" / "entries.md").read_text("utf-8")
REFERENCE = (DOCS / "reference" / "python.md").read_text("utf-8")
SECTION = REFERENCE.partition("\n## penstock.apps.entries\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_setting_is_described_with_its_other_names(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}`(.*)\|.*\|.*\|$", PAGE, re.MULTILINE)
    for other in Settings.ALSO_CALLED.get(name, ()):
        assert f"`{other}`" in row


def test_other_names_are_those_of_settings() -> None:
    assert Settings.ALSO_CALLED.keys() <= set(Settings.__struct_fields__)


@pytest.mark.parametrize("name", entries.__all__)
def test_public_name_is_described_with_its_methods_and_fields(name: str) -> None:
    value = getattr(entries, name)
    assert inspect.getdoc(value)
    named = {name}
    if inspect.isclass(value) and name != "Settings":
        public = {one for one in vars(value) if not one.startswith("_")}
        called = {one for one in public if callable(getattr(value, one))}
        named |= called | set(getattr(value, "__struct_fields__", ()))
    quoted = re.findall(r"`([^`\n]+)`", SECTION)
    assert named - {word for one in quoted for word in re.findall(r"\w+", one)} == set()


def test_settings_have_the_names_of_the_clients(tmp_path: Path) -> None:
    environment = {
        "CHL_NUM_EMBEDDING_WORKERS": "3",
        "CHL_WORKER_BATCH_SIZE": "10",
        "CHL_WORKER_POLL_INTERVAL": "5",
        "CHL_QUEUE_RETRY_FAILED_ON_STARTUP": "1",
    }
    found = Sources(environment).section("entries", Settings).settings
    assert found == Settings(workers=3, batch_size=10, poll_interval=5, retry_failed=True)


def test_types_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file.write_text(example)
    found = Sources({}, file).section("entries", Settings).settings
    recipe = found.check().get("recipes")
    assert recipe.text({"name": "Soup", "steps": ["cut", "cook"]}) == "Soup\n\ncut\ncook"
    assert recipe.categories == ("vegan", "other")


@pytest.mark.parametrize(
    "wrong",
    [
        'fields.a = { kind = "colour" }\nembed = ["a"]',
        'fields.a = {}\nembed = ["b"]',
        'fields.a = {}\nembed = ["a"]\ncolour = 1',
        'fields.a = {}\nembed = ["a"]\naliases = ["experience"]',
    ],
)
def test_type_that_cannot_work_is_refused_at_the_start(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f"[entries.types.recipe]\n{wrong}\n")
    with pytest.raises(ConfigurationError):
        install(
            Penstock("memory://"), Sources({}, file).section("entries", Settings).settings, tmp_path
        )
