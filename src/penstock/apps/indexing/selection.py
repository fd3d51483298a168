"""Selects the files to index by their names: documents, source code, presets, patterns.

`.gitignore` files and the folders of tools are up to the walk: see `penstock.vectors.files`.
"""

from pathlib import PurePath

from penstock import ConfigurationError
from penstock.apps.indexing.job import Choice
from penstock.vectors import LANGUAGES
from penstock.vectors import LANGUAGES_BY_SUFFIX as BY_ENDING
from penstock.vectors import parse_patterns as spec

DOCUMENTS = frozenset(
    {
        *(".adoc", ".asciidoc", ".htm", ".html", ".markdown", ".md", ".mdx", ".mkd", ".org"),
        *(".rst", ".tex", ".text", ".txt"),
    }
)
LANGUAGE_NAMES = tuple(dict.fromkeys(language.name for language in LANGUAGES))

_WEB = (".html", ".css", ".scss", ".jsx", ".tsx")
_TEXT = (".md", ".txt", ".rst")
PRESETS: dict[str, tuple[str, ...]] = {
    **{
        name: tuple(ending for one in LANGUAGES if one.name == name for ending in one.endings)
        for name in LANGUAGE_NAMES
    },
    "code": tuple(BY_ENDING),
    "docs": tuple(sorted(DOCUMENTS)),
    "pascal": (".pas", ".pp", ".lpr", ".dpr", ".dpk"),
    "object-pascal": (".pas", ".pp", ".lpr", ".dpr", ".dpk"),
    "text": _TEXT,
    "web": _WEB,
}
"""Names for kinds of files, with their suffixes."""

_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "testing"})


def check(choice: Choice) -> None:
    """Raise `ConfigurationError` for unknown names and invalid patterns."""
    for known, names in ((LANGUAGE_NAMES, choice.languages), (tuple(PRESETS), choice.types)):
        if unknown := [name for name in names if name not in known]:
            raise ConfigurationError(f"{unknown[0]!r} is unknown; choose from {', '.join(known)}")
    try:
        spec(choice.include)
        spec(choice.exclude)
    except ValueError as error:
        raise ConfigurationError(f"a pattern is invalid: {error}") from error


class Selection:
    """Decides which files of a folder are indexed, by their paths below it."""

    def __init__(self, choice: Choice) -> None:
        self._include = spec(choice.include)
        self._exclude = spec(choice.exclude)
        if choice.types:
            endings = {ending for name in choice.types for ending in PRESETS[name]}
        else:
            endings = set(DOCUMENTS)
            if choice.include_code:
                endings |= {
                    ending
                    for ending, language in BY_ENDING.items()
                    if not choice.languages or language.name in choice.languages
                }
        self._endings = frozenset(endings)

    def wants(self, path: str) -> bool:
        """Return whether a file is indexed."""
        if self._exclude.match_file(path):
            return False
        return PurePath(path).suffix.lower() in self._endings or self._include.match_file(path)

    def leaves_out(self, folder: str) -> bool:
        """Return whether nothing below a folder is indexed."""
        return self._exclude.match_file(folder + "/")


def language_of(path: str) -> str:
    """Return the programming language of a file, `markdown`, or the empty string."""
    ending = PurePath(path).suffix.lower()
    if language := BY_ENDING.get(ending):
        return language.name
    return "markdown" if ending in (".md", ".markdown", ".mdx", ".mkd") else ""


def kind_of(path: str) -> str:
    """Return the kind of a file for filters: `doc`, `code` or `test`."""
    pure = PurePath(path)
    if pure.suffix.lower() not in BY_ENDING:
        return "doc"
    name = pure.stem.lower()
    tests = name.startswith("test_") or name.endswith(("_test", ".test", ".spec", "_spec"))
    return "test" if tests or _TEST_FOLDERS.intersection(pure.parts) else "code"
