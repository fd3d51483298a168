"""Secrets: fields of arguments and results whose values are hidden, by their names.

One rule for everything that shows arguments, or searches in them: what is hidden can neither be
seen nor searched for. Workers get the whole arguments, and so do exports and archives, from which
jobs are restored.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import Unreadable
from penstock.core.job import Job
from penstock.core.jsontext import DEPTH_LIMIT, read
from penstock.core.query import JobQuery, matches

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

# `token_count` and `password_length` describe a secret and are none.
_ABOUT = frozenset(
    {"age", "at", "count", "counts", "enabled", "expires", "expiry", "length", "limit", "policy"}
    | {"required", "size", "ttl", "type", "used"}
)
# A word of this length is also found inside a longer one: `dbpassword`.
_LONG = 8
# Longer names are not cached: ten thousand of a megabyte each would fill the memory.
_REMEMBERED = 100
_WORD = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
# How many letters of a name are searched for in a text: the rest may be another word.
_START = 4
_PIECE = re.compile(r"\S+")
# The start of user and password in an address, or of a token in their place.
_USERINFO = re.compile(r"(?:https?|wss?)://[^/?#:@]*@|://[^/?#:]*:", re.IGNORECASE)


class Secrets:
    """Hides the values of fields whose names contain one of these names, at any depth.

    Names are compared word by word, regardless of case and of what separates the words:
    `api_key` is found in `apiKey`, `X-Api-Key`, `APIKEY` and `stripe_api_key_2`. A word of eight
    letters or more is also found inside a longer one (`dbpassword`). A name that ends with a word
    such as `count`, `length`, `type` or `expires` is shown: it only describes a secret.

    Passwords and tokens in addresses are hidden in every text, names of fields included.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = [words for name in names if (words := _words(name))]
        self._joined = frozenset("".join(words) for words in self._names)
        self._long = tuple(words[0] for words in self._names if _is_long(words))
        self._longest = max(map(len, self._joined), default=0)
        starts = sorted({words[0][:_START] for words in self._names})
        # Most jobs have no secrets: searching the text is cheaper than walking through its values.
        # An escape may spell a name differently, and an address has an at sign. Plain texts: one
        # pattern of them all that ignores case takes forty times as long.
        self._hints = (*starts, "\\u", "@") if starts else ()
        self._known = lru_cache(10_000)(self._is_secret)

    @property
    def hides(self) -> bool:
        """Whether any field is hidden."""
        return bool(self._hints)

    def hide(self, text: str) -> str:
        """Return a JSON text without the values of those fields.

        A text in which nothing looks like a secret is returned unchanged. All others are encoded
        again: of a name that occurs twice only the last was decoded, and the first may be a secret.
        A text that cannot be decoded, as another program may have stored it, is replaced by the
        reason: no client could decode it either.
        """
        try:
            found = read(text, "", DEPTH_LIMIT + 1)
        except Unreadable as error:
            return msgspec.json.encode({"unreadable": error.reason}).decode()
        if not self._may_hold(text):
            return text
        return msgspec.json.encode(self.hidden(found)).decode()

    def hide_readable(self, text: str) -> str:
        """Do the same as `hide`, for a text that is known to be readable: it was just checked."""
        return self.hide(text) if self._may_hold(text) else text

    def _may_hold(self, text: str) -> bool:
        """Return whether anything in a text looks like the name of a secret, or like an address."""
        folded = text.casefold()
        return any(map(folded.__contains__, self._hints))

    def is_secret(self, name: str) -> bool:
        """Return whether the value of a field with this name is hidden."""
        return self._known(name) if len(name) <= _REMEMBERED else self._is_secret(name)

    def hidden(self, value: Any) -> Any:
        """Return a decoded value without the values of those fields."""
        match value:
            case str():
                if self._hints and "@" in value:
                    return _PIECE.sub(lambda found: _without_userinfo(found[0]), value)
            case dict():
                return {
                    self.hidden(name): HIDDEN if self.is_secret(name) else self.hidden(one)
                    for name, one in value.items()
                }
            case list():
                return [self.hidden(one) for one in value]
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
        """Return whether a query matches a job by what may be shown of it."""
        return matches(job, query) and (query.text is None or matches(self.shown(job), query))

    def _is_secret(self, name: str) -> bool:
        words = _words(name)
        if words and words[-1] in _ABOUT:
            return "".join(words) in self._joined  # unless it was listed itself
        return self._has_name(words) or any(long in word for long in self._long for word in words)

    def _has_name(self, words: Sequence[str]) -> bool:
        """Whether consecutive words together spell one of the names."""
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
    """Return a piece of text, itself without spaces, without the password or token of an address.

    A password may contain any character, so it ends at the last `@`.
    """
    at = piece.rfind("@")
    found = None if at < 0 else _USERINFO.search(piece, 0, at + 1)
    if found is None:
        return piece
    start = piece.index("://", found.start()) + len("://")
    return f"{piece[:start]}{HIDDEN}{piece[at:]}"
