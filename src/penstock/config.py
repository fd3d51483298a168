"""Settings: from the command line, the environment and a TOML file; checked once, then fixed."""

import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.mismatch import mismatch
from penstock.core.redaction import redacted, redacted_within
from penstock.core.secrets import DEFAULT_FIELDS

S = TypeVar("S", bound=msgspec.Struct)

PREFIX = "PENSTOCK_"
FILE = "penstock.toml"
# Variables of programs that call a server.
_OF_CLIENTS = ("PENSTOCK_TOKEN", "PENSTOCK_URL")

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Keeping = Annotated[float, msgspec.Meta(ge=60, le=315_360_000)]
"""Seconds; at least a minute, so that whoever waits for a job can still look at it."""


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a server keeps its jobs, where it listens, and what it runs."""

    store: str | None = None
    """The store's URL; by default a SQLite file in the data folder."""
    data: str = "penstock-data"
    """The folder for what the server keeps."""
    host: str = "127.0.0.1"
    port: Port = 8000
    workers: Count = 4
    """How many jobs of the applications run at a time; 0 accepts work and runs none."""
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """How many processes serve requests."""
    apps: tuple[str, ...] | None = None
    """The applications; by default all that are installed."""
    grace: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 30
    """Seconds that running jobs and requests get to end when the server stops."""
    keep_finished: Keeping = 86_400
    """Seconds after their end when jobs are removed; those that failed are kept longer."""
    keep_failed: Keeping = 604_800
    """Seconds after their end when failed jobs are removed."""
    log_format: Literal["text", "json"] = "text"
    """How the log is written: lines for people, or one JSON object each."""
    request_log: bool = False
    """Whether every request is logged."""
    cors_origins: tuple[str, ...] = ()
    """The origins of web pages that may call this server."""
    secret_fields: tuple[str, ...] = DEFAULT_FIELDS
    """The fields of arguments and results whose values are not shown: see `core.secrets`."""
    metrics_queues: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """How many queues /metrics shows by name; the store keeps it, 100 if nobody ever said so."""

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return f"Server({', '.join(f'{k}={presentable(k, v)!r}' for k, v in fields)})"


class Setting(msgspec.Struct, frozen=True):
    """One value, and where it came from."""

    name: str
    value: Any
    source: str

    @property
    def shown(self) -> Any:
        """The value as it may be shown: addresses without their secrets."""
        return presentable(self.name, self.value)

    def __repr__(self) -> str:
        return f"Setting({self.name!r}, {self.shown!r}, {self.source!r})"


class Found(msgspec.Struct, Generic[S], frozen=True):
    """The settings of one section, and where each came from."""

    section: str
    settings: S
    sources: list[Setting]


class Sources:
    """Where settings come from: given values win over the environment, that over the file."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, file: Path | None = None
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._file, self._stored = _read_file(self._environment, file)
        self._known = {f"{PREFIX}CONFIG", *_OF_CLIENTS}

    def section(self, name: str, kind: type[S], given: Mapping[str, Any] | None = None) -> Found[S]:
        """The settings of a section, checked; the server's own has the empty name."""
        stored = {key: value for key, value in self._stored.items() if not isinstance(value, dict)}
        if name:
            stored = self._stored.get(name, {})
            if not isinstance(stored, dict):
                raise ConfigurationError(f"{self._file}: {name} is a section: write [{name}]")
        values: dict[str, Any] = {}
        sources: list[Setting] = []
        for field in msgspec.structs.fields(kind):
            variables = _variables(name, kind, field.name)
            source, value = self._find(variables, field, stored, given or {})
            title = f"{name}.{field.name}" if name else field.name
            if source != "default":
                values[field.name] = _converted(value, field, title, source)
            sources.append(Setting(title, values.get(field.name, field.default), source))
        self._refuse_unknown(name, stored, kind)
        self.know(name, kind)
        settings = kind(**values)
        check: Callable[[], object] = getattr(settings, "check", lambda: None)
        check()  # what a type cannot say: so that `config` refuses what `serve` does
        return Found(name, settings, sources)

    def refuse_sections(self, known: Collection[str]) -> None:
        """Refuse sections of the file that belong to nobody."""
        for name, value in self._stored.items():
            if isinstance(value, dict) and name not in known:
                raise ConfigurationError(
                    f"{self._file}: there is no section [{name}]; known are {', '.join(known)}"
                )

    def know(self, name: str, kind: type[msgspec.Struct]) -> None:
        """Take the variables of a section for settings, whether they are read or not."""
        for field in msgspec.structs.fields(kind):
            self._known.update(_variables(name, kind, field.name))

    def strangers(self) -> Iterator[str]:
        """What to say of each variable that begins as ours do, and that no section knows."""
        names = sorted(name.removeprefix(PREFIX) for name in self._known if PREFIX in name)
        for variable in sorted(self._environment.keys() - self._known):
            if variable.startswith(PREFIX):
                nearest = get_close_matches(variable.removeprefix(PREFIX), names, 1)
                meant = f"; did you mean {PREFIX}{nearest[0]}?" if nearest else ""
                yield f"{variable} is no setting, and is ignored{meant}"

    def _find(
        self,
        variables: Sequence[str],
        field: Any,
        stored: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> tuple[str, Any]:
        if given.get(field.name) is not None:
            return "command line", given[field.name]
        for variable in variables:
            if variable in self._environment:
                return variable, self._environment[variable]
        if field.name in stored:
            return str(self._file), stored[field.name]
        return "default", None

    def _refuse_unknown(self, section: str, stored: Mapping[str, Any], kind: type) -> None:
        known = {field.name for field in msgspec.structs.fields(kind)}
        unknown = sorted(stored.keys() - known)
        if unknown:
            place = f" in [{section}]" if section else ""
            raise ConfigurationError(
                f"{self._file}{place}: there is no setting {unknown[0]!r}; "
                f"known are {', '.join(sorted(known))}"
            )


def variable_of(section: str, name: str) -> str:
    """The variable of the environment that sets it."""
    return PREFIX + "_".join(part for part in (section, name) if part).upper()


def also_called(kind: type, name: str) -> Sequence[str]:
    """Other variables that set a field, in the order of their weight: `ALSO_CALLED` of its Struct.

    For names that programs outside of this one have given to the same thing.
    """
    names: Mapping[str, Sequence[str]] = getattr(kind, "ALSO_CALLED", {})
    return names.get(name, ())


def _variables(section: str, kind: type, name: str) -> Sequence[str]:
    return (variable_of(section, name), *also_called(kind, name))


def presentable(name: str, value: Any) -> Any:
    """The value of a setting as it may be shown: addresses without their secrets."""
    match value:
        case str():
            return redacted(value) if name == "store" else redacted_within(value)
        case tuple() | list():
            return type(value)(presentable(name, one) for one in value)
        case dict():
            return {key: presentable(name, one) for key, one in value.items()}
    return value


def _read_file(environment: Mapping[str, str], file: Path | None) -> tuple[Path, dict[str, Any]]:
    named = file or (
        Path(environment["PENSTOCK_CONFIG"]) if "PENSTOCK_CONFIG" in environment else None
    )
    path = named or Path(FILE)
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is not None:
            raise ConfigurationError(f"there is no file {path}") from None
        return path, {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _is_list(kind: Any) -> bool:
    """Whether it holds several values, which one text separates by commas."""
    return any(get_origin(part) is tuple for part in (kind, *get_args(kind)))


def _converted(value: Any, field: Any, title: str, source: str) -> Any:
    if isinstance(value, str) and _is_list(field.type):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, field.type, strict=False)
    except msgspec.ValidationError as error:
        found = mismatch(error, field.type)
        place = f"{title}{found.field}" if found.field else title
        wanted = found.text.partition("; got ")[0]
        given = presentable(title, value)
        raise ConfigurationError(f"{place} (from {source}) is {given!r}: {wanted}") from error
