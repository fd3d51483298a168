"""Hiding secrets: fields of arguments and results are shown without their values, by name.

One rule for every door that shows arguments, or finds jobs by a text in them: what is hidden can
be neither seen nor searched for. What a worker needs to do its work it gets whole, and so do
exports and archives, from which jobs are restored.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import Unreadable
from penstock.core.job import Job, JobQuery, fits
from penstock.core.jsontext import DEPTH_LIMIT, read

HIDDEN = "•••"

DEFAULT_FIELDS = (
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "access_token",
    "auth_token",
    "refresh_token",
    "api_key",
    "api_keys",
    "private_key",
    "access_key",
    "credential",
    "credentials",
    "authorization",
)

# `token_count` and `password_length` say something about a secret, and are none.
_ABOUT = frozenset(
    {"age", "at", "count", "counts", "enabled", "expires", "expiry", "length", "limit", "policy"}
    | {"required", "size", "ttl", "type", "used"}
)
# A word so long means the same inside of another one: `dbpassword`.
_LONG = 8
# Longer names are looked at anew each time: ten thousand of a megabyte each would fill the memory.
_REMEMBERED = 100
_WORD = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
# So many letters of a name are looked for in a text: the rest may be spelled as another word.
_START = 4
_PIECE = re.compile(r"\S+")
# Where user and password of an address begin, or a token in their place.
_USERINFO = re.compile(r"(?:https?|wss?)://[^/?#:@]*@|://[^/?#:]*:", re.IGNORECASE)


class Secrets:
    """Hides the values of fields whose names contain one of these names, at any depth.

    Names are compared word by word, whatever their case and whatever stands between the words:
    `api_key` is found in `apiKey`, `X-Api-Key`, `APIKEY` and `stripe_api_key_2`. A word of eight
    letters or more is also found inside a longer one (`dbpassword`). A name that ends with a word
    such as `count`, `length`, `type` or `expires` is shown: it only says something about a secret.

    Passwords and tokens in addresses are hidden in every text, names of fields included.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = [words for name in names if (words := _words(name))]
        self._joined = frozenset("".join(words) for words in self._names)
        self._long = tuple(words[0] for words in self._names if _is_long(words))
        self._longest = max(map(len, self._joined), default=0)
        starts = "|".join(sorted({re.escape(words[0][:_START]) for words in self._names}))
        # Most jobs have none: a look at the text is cheaper than a walk through its values. An
        # escape may spell a name in another way. Words only, without repetition: a pattern that
        # looks for the end of an address from each colon takes hours for a megabyte of them.
        self._hint = re.compile(rf"{starts}|\\u|@", re.IGNORECASE) if starts else None
        self._known = lru_cache(10_000)(self._is_secret)

    @property
    def hides(self) -> bool:
        """Whether there is anything to be hidden."""
        return self._hint is not None

    def hide(self, text: str) -> str:
        """Return a JSON text without the values of those fields.

        A text in which nothing looks like a secret stays as it was written. All others are written
        anew: of a name that comes twice only the last was decoded, and the first may be a secret.
        What cannot be read, as another program may have stored it, is replaced by the reason: no
        reader of the answer could read it either.
        """
        try:
            found = read(text, "", DEPTH_LIMIT + 1)
        except Unreadable as error:
            return msgspec.json.encode({"unreadable": error.reason}).decode()
        if self._hint is None or not self._hint.search(text):
            return text
        return msgspec.json.encode(self.hidden(found)).decode()

    def is_secret(self, name: str) -> bool:
        """Whether the value of a field of this name is hidden."""
        return self._known(name) if len(name) <= _REMEMBERED else self._is_secret(name)

    def hidden(self, value: Any) -> Any:
        """Return a decoded value without the values of those fields."""
        match value:
            case dict():
                return {
                    self.hidden(name): HIDDEN if self.is_secret(name) else self.hidden(one)
                    for name, one in value.items()
                }
            case list():
                return [self.hidden(one) for one in value]
            case str() if self.hides and "@" in value:
                return _PIECE.sub(lambda found: _without_userinfo(found[0]), value)
        return value

    def shown(self, job: Job) -> Job:
        """Return a job with what may be shown of its arguments and its result."""
        result = job.result_json
        return replace(
            job,
            payload=self.hide(job.payload),
            result_json=None if result is None else self.hide(result),
        )

    def lets_find(self, job: Job, query: JobQuery) -> bool:
        """Whether a query finds a job by what may be shown of it."""
        return fits(job, query) and (query.text is None or fits(self.shown(job), query))

    def _is_secret(self, name: str) -> bool:
        words = _words(name)
        if words and words[-1] in _ABOUT:
            return "".join(words) in self._joined  # unless it was named itself
        return self._has_name(words) or any(long in word for long in self._long for word in words)

    def _has_name(self, words: Sequence[str]) -> bool:
        """Whether words that follow each other spell one of the names, together."""
        for first in range(len(words)):
            spelled = ""
            for word in words[first : first + self._longest]:
                spelled += word
                if len(spelled) > self._longest:
                    break
                if spelled in self._joined:
                    return True
        return False


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in _WORD.findall(name))


def _is_long(words: tuple[str, ...]) -> bool:
    return len(words) == 1 and len(words[0]) >= _LONG


def _without_userinfo(piece: str) -> str:
    """Return a text without spaces without the password or token of an address in it.

    A password may hold any character, so that it ends with the last `@`.
    """
    at = piece.rfind("@")
    found = None if at < 0 else _USERINFO.search(piece, 0, at + 1)
    if found is None:
        return piece
    start = piece.index("://", found.start()) + len("://")
    return f"{piece[:start]}{HIDDEN}{piece[at:]}"
