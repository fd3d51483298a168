"""Every Python example of the documentation runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.support import ROOT, program

TUTORIAL = ROOT / "docs" / "tutorial.md"  # followed by test_tutorial.py
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md")} - {TUTORIAL})


def test_program_keeps_the_lines_of_its_page_and_leaves_out_what_is_not_run() -> None:
    page = (
        "Text\n\n```python\na = 1\n```\n\n```console\n$ b\n```\n\n"
        "<!-- not run -->\n\n```python\nc\n```\n\n```python\nprint(a)\n```\n"
    )
    found = dict(enumerate(program(page).splitlines(), 1))
    assert {n: line for n, line in found.items() if line} == {4: "a = 1", 18: "print(a)"}


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
)
def test_examples_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    assert "    ```python" not in text, "an indented example would not be run"
    source = program(text)
    if not source.strip():
        return
    script = tmp_path / f"{page.stem}_page.py"  # flask.md must not hide flask
    script.write_text(source, "utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, f"{page}:\n{ran.stdout}\n{ran.stderr}"
