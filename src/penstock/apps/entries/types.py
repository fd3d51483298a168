"""Entry types: their fields, the validation of data, and the text that is embedded."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from penstock import ConfigurationError
from penstock.apps.kit import DEPTH_LIMIT, encode_json
from penstock.errors import Unreadable

Kind = Literal["text", "number", "flag", "list", "object", "any"]

DATA_LIMIT = 1_000_000
"""Maximum size of an entry's data, in bytes of JSON."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_CATEGORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_KINDS: Mapping[Kind, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "flag": (bool,),
    "list": (list, tuple),
    "object": (dict,),
}


class InvalidEntry(Exception):
    """An entry or a request about entries is invalid; `field` names the part that is wrong."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field of an entry type and the values it accepts.

    `most` is the maximum number of characters of a text, or of elements of a list.
    """

    kind: Kind = "text"
    required: bool = False
    most: Annotated[int, Meta(ge=1, le=DATA_LIMIT)] = 100_000
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Raise `InvalidEntry` if the field does not accept this value."""
        kinds = _KINDS.get(self.kind)
        is_flag = isinstance(value, bool)
        if kinds and (not isinstance(value, kinds) or is_flag != (self.kind == "flag")):
            raise InvalidEntry(name, f"expected {self.kind}, got {_kind_of(value)}")
        if isinstance(value, str | list) and len(value) > self.most:
            raise InvalidEntry(name, f"has {len(value)} {_unit(value)}, the limit is {self.most}")
        if self.choices and value not in self.choices:
            raise InvalidEntry(name, f"{value!r:.80} is not one of {', '.join(self.choices)}")
        if self.required and isinstance(value, str) and not value.strip():
            raise InvalidEntry(name, "must not be empty")


class TypeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry type as declared in the settings file."""

    fields: dict[str, Field]
    embed: tuple[str, ...]
    categories: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class EntryType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of entries.

    The texts of the fields in `embed` are embedded, in that order. An empty `categories` accepts
    every category. `aliases` are other names of the type. Each group in `spellings` lists
    alternative names of one field: an entry has at most one of them.
    """

    name: str
    fields: Mapping[str, Field]
    embed: tuple[str, ...]
    categories: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    spellings: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for a type that no entry could have."""
        for name in (self.name, *self.aliases):
            if not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{name!r:.80} is not a name for an entry type: use lowercase letters, "
                    "digits, - and _, starting with a letter"
                )
        unknown = [name for name in self.embed if name not in self.fields]
        if unknown or not self.embed:
            raise ConfigurationError(
                f"type {self.name}: embed must name at least one of its fields"
                + (f"; it has no field {unknown[0]!r}" if unknown else "")
            )

    @property
    def plural(self) -> str:
        """The key of its counts: `experiences`."""
        return f"{self.name}s"

    def check_category(self, category: str) -> str:
        """Return the category; raise `InvalidEntry` if the type does not have it."""
        if self.categories and category not in self.categories:
            known = ", ".join(self.categories)
            raise InvalidEntry("category_code", f"{category!r:.80} is not one of {known}")
        if not _CATEGORY.fullmatch(category):
            raise InvalidEntry(
                "category_code",
                "must have 1 to 64 letters, digits and _ . : -, starting with a letter or digit",
            )
        return category

    def check(self, data: Mapping[str, Any]) -> str:
        """Return the data as JSON; raise `InvalidEntry` for the first field that is invalid."""
        unknown = sorted(data.keys() - self.fields.keys())
        if unknown:
            raise InvalidEntry(
                f"data.{unknown[0]:.80}",
                f"type {self.name} has no such field; its fields are {', '.join(self.fields)}",
            )
        given = {name for name in self.fields if data.get(name) is not None}
        for name, field in self.fields.items():
            others = self._other_spellings(name)
            if name not in given:
                if field.required and given.isdisjoint(others):
                    also = f", or {' or '.join(others)}" if others else ""
                    raise InvalidEntry(f"data.{name}", f"is required{also}")
                continue
            if twice := given.intersection(others):
                raise InvalidEntry(f"data.{name}", f"means the same as {min(twice)}: give one")
            field.check(f"data.{name}", data[name])
        return _encoded(data)

    def updated(self, data: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data with changes applied.

        None removes a field; a field replaces its other spellings.
        """
        replaced = {other for name in updates for other in self._other_spellings(name)}
        kept = {name: value for name, value in data.items() if name not in replaced - {*updates}}
        return {name: value for name, value in {**kept, **updates}.items() if value is not None}

    def _other_spellings(self, name: str) -> tuple[str, ...]:
        group = next((group for group in self.spellings if name in group), ())
        return tuple(other for other in group if other != name)

    def text(self, data: Mapping[str, Any]) -> str:
        """Return the text to embed."""
        parts = (_text_of(data.get(name)) for name in self.embed)
        # PostgreSQL rejects NUL in text.
        return "\n\n".join(part for part in parts if part).replace("\0", " ")


class EntryTypes:
    """The known entry types, by name and alias."""

    def __init__(self, types: Iterable[EntryType]) -> None:
        self._types: dict[str, EntryType] = {}
        for one in types:
            for name in (one.name, *one.aliases):
                if name in self._types:
                    raise ConfigurationError(f"two entry types have the name {name!r}")
                self._types[name] = one

    @classmethod
    def of(cls, settings: Mapping[str, TypeSettings]) -> Self:
        """Return the built-in types and those of the settings, which may replace them."""
        added = [
            EntryType(name=name, **msgspec.structs.asdict(one)) for name, one in settings.items()
        ]
        replaced = {one.name for one in added}
        return cls([*(one for one in BUILT_IN if one.name not in replaced), *added])

    def __iter__(self) -> Iterator[EntryType]:
        return iter({one.name: one for one in self._types.values()}.values())

    def get(self, name: str) -> EntryType:
        """Return the type of a name, alias or plural; raise `InvalidEntry` if there is none."""
        found = self._types.get(name.lower()) or self._types.get(name.lower().removesuffix("s"))
        if found is None:
            known = ", ".join(one.name for one in self)
            raise InvalidEntry("entity_type", f"{name!r:.80} is not one of {known}")
        return found

    def name_of(self, name: str | None) -> str | None:
        """Return the type's own name for a name or alias; None stays None."""
        return None if name is None else self.get(name).name


EXPERIENCE = EntryType(
    name="experience",
    fields={
        "title": Field(required=True, most=500),
        "playbook": Field(required=True),
        "context": Field(kind="any"),
        "section": Field(most=100),
        "source": Field(most=1_000),
        "author": Field(most=200),
        "confidence": Field(kind="number"),
        "tags": Field(kind="list", most=100),
    },
    embed=("title", "playbook"),
)
MANUAL = EntryType(
    name="manual",
    fields={
        "title": Field(required=True, most=500),
        "content": Field(required=True, most=500_000),
        "summary": Field(most=10_000),
        "source": Field(most=1_000),
        "author": Field(most=200),
        "tags": Field(kind="list", most=100),
        # Newer clients call title and summary `name` and `description`, and send further fields.
        "name": Field(required=True, most=500),
        "description": Field(most=10_000),
        "license": Field(most=1_000),
        "compatibility": Field(most=10_000),
        "metadata": Field(kind="any"),
        "allowed_tools": Field(kind="any"),
        "model": Field(most=200),
    },
    embed=("title", "name", "summary", "description", "content"),
    aliases=("skill",),
    spellings=(("title", "name"), ("summary", "description")),
)
BUILT_IN = (EXPERIENCE, MANUAL)


def digest_of(name: str, category: str, text: str) -> str:
    """Return a digest of all that the index stores of an entry, to tell whether it is current."""
    content = msgspec.json.encode([name, category, text])
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _encoded(data: Mapping[str, Any]) -> str:
    try:
        text = encode_json(data, "data", DEPTH_LIMIT + 1)
    except Unreadable as error:
        raise InvalidEntry("data", f"is not valid JSON: {error}") from error
    size = len(text.encode())
    if size > DATA_LIMIT:
        raise InvalidEntry("data", f"has {size:,} bytes of JSON, the limit is {DATA_LIMIT:,}")
    return text


def _text_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(filter(None, map(_text_of, value.values())))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(filter(None, map(_text_of, value)))
    return "" if value is None else str(value)


def _kind_of(value: Any) -> str:
    names = {str: "text", bool: "flag", int: "number", float: "number", dict: "object"}
    return names.get(type(value), "list" if isinstance(value, list) else type(value).__name__)


def _unit(value: str | list[Any]) -> str:
    return "characters" if isinstance(value, str) else "elements"
