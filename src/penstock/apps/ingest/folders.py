"""What is in a folder: the files to ingest, with their digests, and what kind of project it is."""

import configparser
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import NamedTuple

from penstock.apps.ingest.writing import Rejected, digest_of
from penstock.core.redaction import redacted
from penstock.vectors.languages import BY_ENDING
from penstock.vectors.reading import Unfit, content_of, text_of
from penstock.vectors.walking import Walk, spec

_AT_ONCE = 500
_CONFIG_LIMIT = 1_000_000
_USERINFO = re.compile(r"(?<=://)[^/@]*@")
_MARKS = {
    "Cargo.toml": "rust",
    "pyproject.toml": "python",
    "setup.py": "python",
    "requirements.txt": "python",
    "package.json": "javascript",
    "go.mod": "go",
    "pom.xml": "java",
    "build.gradle": "java",
    "build.gradle.kts": "java",
    "Gemfile": "ruby",
    "CMakeLists.txt": "c++",
}
_DOCUMENTS = frozenset({".adoc", ".htm", ".html", ".md", ".markdown", ".rst", ".tex", ".txt"})
_CONFIGS = frozenset({".cfg", ".conf", ".ini", ".json", ".toml", ".xml", ".yaml", ".yml"})


class Wanted(NamedTuple):
    """Which files of a folder are asked for."""

    folder: str
    depth: int | None = None
    patterns: Sequence[str] = ()
    ignored: Sequence[str] = ()


class Found(NamedTuple):
    """A file that was met: what it is, or why it is passed by."""

    path: str
    size: int = 0
    digest: str = ""
    why_not: str | None = None


class _Patterns:
    """Says which files are wanted by patterns; without any, all."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = spec(wanted.patterns) if wanted.patterns else None
        self._ignored = spec(wanted.ignored)

    def wants(self, path: str) -> bool:
        """Whether a file is wanted."""
        if self._ignored.match_file(path):
            return False
        return self._wanted is None or self._wanted.match_file(path)

    def leaves_out(self, folder: str) -> bool:
        """Whether nothing below a folder is wanted."""
        return self._ignored.match_file(folder + "/")


def files_of(wanted: Wanted, largest: int, besides: str) -> Iterator[list[Found]]:
    """The files of a folder, some hundred at a time, in the order of their paths."""
    if not Path(wanted.folder).is_dir():
        raise Rejected(f"there is no folder {wanted.folder}")
    walk = Walk(
        wanted.folder, _Patterns(wanted), depth=wanted.depth, largest=largest, besides=(besides,)
    )
    rest = iter(walk)
    while met := list(islice(rest, _AT_ONCE)):
        yield [
            _found(one.path, largest)
            if one.why_not is None
            else Found(one.path, why_not=one.why_not)
            for one in met
        ]


def _found(path: str, largest: int) -> Found:
    try:
        content = content_of(path, largest)
        text_of(content)
    except Unfit as unfit:
        return Found(path, why_not=str(unfit))
    return Found(path, len(content), digest_of(content))


def reasons(passed_by: Sequence[Found]) -> Counter[str]:
    """How many were passed by for each reason."""
    return Counter(one.why_not for one in passed_by if one.why_not is not None)


def type_of(path: str) -> str:
    """What kind of file it is, by its name."""
    ending = PurePath(path).suffix.lower()
    if ending in BY_ENDING:
        return "code"
    if ending in _DOCUMENTS:
        return "document"
    return "config" if ending in _CONFIGS else "text"


def project_type(root: str) -> str:
    """What a project is written in, by the files that tools leave in it: `mixed` if in several."""
    found = {kind for name, kind in _MARKS.items() if Path(root, name).is_file()}
    if len(found) > 1:
        return "mixed"
    return found.pop() if found else "unknown"


def git_remote(root: str) -> str | None:
    """The URL that a repository was cloned from, without a password; None if there is none."""
    config = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        text = content_of(str(Path(root, ".git", "config")), _CONFIG_LIMIT).decode(
            "utf-8", "replace"
        )
        config.read_string("\n".join(line.strip() for line in text.splitlines()))
    except (Unfit, configparser.Error):
        return None
    remotes = [one for one in config.sections() if one.startswith("remote ")]
    best = 'remote "origin"' if 'remote "origin"' in remotes else next(iter(remotes), None)
    url = None if best is None else config.get(best, "url", fallback=None)
    return None if not url else without_password(url)


def without_password(url: str) -> str:
    """Return a URL without the names, passwords and tokens that may stand in it."""
    return _USERINFO.sub("", redacted(url), 1) if "://" in url else url
