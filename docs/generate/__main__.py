"""`python -m docs.generate` writes every generated part of the documentation anew."""

from collections.abc import Mapping
from pathlib import Path

from docs.generate import cli, http, llms, python, results, scopes, settings
from docs.generate.diagrams import DIAGRAMS
from docs.generate.svg import draw

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = (DOCS / "images" / "diagrams", DOCS / "images" / "charts")
"""Everything in these is generated."""


def outputs() -> Mapping[Path, str]:
    """Return the text of every file that is generated, whole or in part."""
    runs = results.load()
    files = {FOLDERS[0] / f"{name}.svg": draw(figure) for name, figure in DIAGRAMS.items()}
    files |= {FOLDERS[1] / name: drawing for name, drawing, _ in results.charts(runs)}
    reference = DOCS / "reference"
    files[reference / "names.md"] = python.page()
    files[reference / "commands.md"] = cli.page()
    files[reference / "routes.md"] = http.page()
    files[reference / "settings.md"] = settings.page()
    files[DOCS / "llms.txt"] = llms.listing()
    for page in (ROOT / "README.md", DOCS / "comparison.md"):
        files[page] = results.with_speed(page.read_text("utf-8"), runs)
    sections = (
        (DOCS / "sizing.md", "sizes", results.sizes(runs)),
        (DOCS / "security.md", "routes by scope", scopes.routes_by_scope()),
        *(
            (DOCS / "benchmarks.md", f"runs of {suite}", results.section(suite, runs))
            for suite in results.SUITES
        ),
    )
    for page, name, text in sections:
        files[page] = with_section(files.get(page) or page.read_text("utf-8"), name, text)
    return files


def with_section(page: str, name: str, text: str) -> str:
    """Return a page with what stands between two marks replaced."""
    begin, end = f"<!-- {name}: written by python -m docs.generate -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no marks for {name}")
    return f"{before}{begin}{text.rstrip()}\n\n{end}{after}"


def main() -> None:
    """Write the files, and remove what is not generated any more."""
    files = outputs()
    for folder in FOLDERS:
        folder.mkdir(parents=True, exist_ok=True)
        for path in set(folder.iterdir()) - files.keys():
            path.unlink()
    for path, text in files.items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
