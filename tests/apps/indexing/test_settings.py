"""Every setting is described, and wrong ones are refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import ConfigurationError, Penstock
from penstock.apps.indexing import Settings, install

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "indexing.md").read_text("utf-8")


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_setting_is_described_with_its_other_names(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}`(.*)\|.*\|.*\|$", PAGE, re.MULTILINE)
    for other in Settings.ALSO_CALLED.get(name, ()):
        assert f"`{other}`" in row


def test_other_names_are_those_of_settings() -> None:
    assert Settings.ALSO_CALLED.keys() <= set(Settings.__struct_fields__)


@pytest.mark.parametrize("vectors", ["chroma", "qdrant", "chroma:", "none:http://x"])
def test_vectors_that_two_processes_cannot_share_are_refused(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected faiss, chroma:URL or qdrant:URL"):
        install(Penstock("memory://"), Settings(vectors=vectors), tmp_path)
    install(Penstock("memory://"), Settings(vectors="qdrant:http://localhost"), tmp_path)


def test_application_can_be_installed_without_the_packages_it_needs(tmp_path: Path) -> None:
    """Its routes report the missing packages."""
    program = """
import sys
from pathlib import Path
for name in ("faiss", "numpy", "pathspec", "tokenizers", "tree_sitter", "watchfiles", "wordllama"):
    sys.modules[name] = None
from penstock import Penstock
from penstock.apps.indexing import Settings, install, places
install(Penstock("memory://"), Settings(), Path("data"))
print(len(places.PACKAGES.missing()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "7\n", done.stderr
