"""Which names of jobs belong to applications. No general route takes them from outside.

A name belongs to an application if it is the application's name, or begins with it and a separator.
This table is static because it has to hold on every server of a store, also on one where an
application is switched off or cannot be imported: another server may run its jobs.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from penstock import NewJob

SEPARATORS = ".:-/"

Field = Literal["task", "queue", "key", "dedupe", "throttle", "correlation"]
FIELDS: tuple[Field, ...] = ("task", "queue", "key", "dedupe", "throttle", "correlation")
"""The names of a job by which it meets other jobs, or a handler."""


class Namespace(NamedTuple):
    """The names of one application, and the routes that store its jobs."""

    name: str
    route: str = ""
    """The route to use for whatever `routes` does not list."""
    routes: Mapping[str, str] = MappingProxyType({})
    """The route to use, by task."""

    def route_for(self, task: str) -> str:
        """The route that stores such a job; empty if none does."""
        return self.routes.get(task, self.route)


_FILE = "/api/v1/notebooks/{notebook}/files/{file_id}"

NAMESPACES = (
    Namespace("events", "POST /events"),
    Namespace("indexing", "POST /index"),
    Namespace(
        "entries",
        "POST /api/v1/entries/write",
        {
            f"entries.{name}": f"POST /api/v1/operations/{name}"
            for name in ("import", "rebuild", "reembed", "sync")
        },
    ),
    Namespace("ingest", "POST /api/v1/queue/items"),
    Namespace(
        "notebooks",
        "POST /api/v1/notebooks/{notebook}/files",
        {
            "notebooks.update": f"PUT {_FILE}",
            "notebooks.delete": f"DELETE {_FILE}",
            "notebooks.move": f"PATCH {_FILE}/move",
            "notebooks.commit": "POST /api/v1/events/commit",
        },
    ),
)
"""Those of the applications in this package."""


_INVISIBLE = {"Cc", "Cf", "Mn", "Me", "Cn"}
"""Categories of what nobody sees, or sees only as a mark on the letter before it."""
_BLANK_LETTERS = "\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800"
"""Letters and symbols of other categories that have nothing to show."""


class Owned(NamedTuple):
    """A name that belongs to an application."""

    field: Field
    text: str
    namespace: Namespace


class Namespaces:
    """Tells to which application a name belongs."""

    def __init__(self, namespaces: Iterable[Namespace] = NAMESPACES) -> None:
        self._by_name = {one.name: one for one in namespaces}
        names = "|".join(map(re.escape, map(_plain, self._by_name)))
        self._few = lru_cache(1_024)(self._prefixed)
        self._prefix = re.compile(rf"({names})(?:\Z|[{re.escape(SEPARATORS)}])")

    @classmethod
    def with_others(cls, names: Iterable[str]) -> "Namespaces":
        """Those of this package, and one for each application of another name."""
        known = {one.name for one in NAMESPACES}
        return cls([*NAMESPACES, *(Namespace(name) for name in names if name not in known)])

    def owner(self, field: Field, text: str) -> Namespace | None:
        """The application that a name belongs to, also in another spelling that reads the same.

        Stores compare names exactly, so that another spelling is another name. It is refused all
        the same: nobody should have to look twice at a list of jobs.
        """
        # Tasks and queues are few; keys are not, and would push them out.
        return self._few(text) if field in ("task", "queue") else self._prefixed(text)

    def _prefixed(self, text: str) -> Namespace | None:
        found = self._prefix.match(_plain(text))
        return None if found is None else self._by_name[found[1]]

    def foreign(self, job: NewJob, own: str | None) -> Owned | None:
        """The first name of a job that belongs to an application other than `own`."""
        for field in FIELDS:
            text = getattr(job, field)
            if text is not None:
                owner = self.owner(field, text)
                if owner is not None and owner.name != own:
                    return Owned(field, text, owner)
        return None


def _plain(text: str) -> str:
    """A text without case, blanks at its ends, invisible characters and compatibility forms."""
    if not text.isascii():
        normal = unicodedata.normalize("NFKC", text)
        text = "".join(filter(_is_visible, normal))
    elif not text.isprintable():
        text = "".join(filter(_is_visible, text))
    return text.strip().casefold()


def _is_visible(letter: str) -> bool:
    return unicodedata.category(letter) not in _INVISIBLE and letter not in _BLANK_LETTERS
