"""Reserved names: a job that uses the name of an application is stored by its own routes only.

A name belongs to an application if it is the application's name, or starts with it and a separator.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

from penstock.apps.kit.manifest import Manifest, application_names, manifest_of
from penstock.core.job import NewJob

SEPARATORS = ".:-/"

Field = Literal["task", "queue", "key", "dedupe", "throttle", "correlation"]
FIELDS: tuple[Field, ...] = ("task", "queue", "key", "dedupe", "throttle", "correlation")
"""The names of a job that connect it with other jobs, or with a handler."""

_INVISIBLE = {"Cc", "Cf", "Mn", "Me", "Cn"}
"""Categories of characters that are invisible, or only a mark on the letter before them."""
_BLANK_LETTERS = "\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800"
"""Letters and symbols of other categories that show nothing."""


class Owned(NamedTuple):
    """A name that belongs to an application."""

    field: Field
    text: str
    owner: str

    @property
    def manifest(self) -> Manifest:
        """What the application declares; only its name if it is not part of this package."""
        return manifest_of(self.owner)


class Namespaces:
    """Finds the application that a name belongs to.

    Knows the applications of this package, whether they are installed or not, and `others`.
    """

    def __init__(self, others: Iterable[str] = ()) -> None:
        self._names = {_plain(name): name for name in (*application_names(), *others)}
        self._few = lru_cache(1_024)(self._prefixed)
        names = "|".join(map(re.escape, self._names))
        self._prefix = re.compile(rf"({names})(?:\Z|[{re.escape(SEPARATORS)}])")

    def owner(self, field: Field, text: str) -> str | None:
        """Return the application that a name belongs to, also in a spelling that reads the same.

        Stores compare names exactly, so another spelling is another name. It is refused all the
        same, because it would mislead people who read lists of jobs.
        """
        # Tasks and queues are few. Keys are many, and would evict them from the cache.
        return self._few(text) if field in ("task", "queue") else self._prefixed(text)

    def _prefixed(self, text: str) -> str | None:
        found = self._prefix.match(_plain(text))
        return None if found is None else self._names[found[1]]

    def foreign(self, job: NewJob, own: str | None) -> Owned | None:
        """Return the first name of a job that belongs to an application other than `own`."""
        for field in FIELDS:
            text = getattr(job, field)
            if text is not None:
                owner = self.owner(field, text)
                if owner is not None and owner != own:
                    return Owned(field, text, owner)
        return None


def _plain(text: str) -> str:
    """Return a text without case, surrounding blanks, invisible characters and variant forms."""
    if not text.isascii():
        normal = unicodedata.normalize("NFKC", text)
        text = "".join(filter(_is_visible, normal))
    elif not text.isprintable():
        text = "".join(filter(_is_visible, text))
    return text.strip().casefold()


def _is_visible(letter: str) -> bool:
    return unicodedata.category(letter) not in _INVISIBLE and letter not in _BLANK_LETTERS
