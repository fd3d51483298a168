"""Settings from the command line, the environment and a TOML file, in this order of precedence."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from penstock.core.decode_errors import mismatch
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.core.redaction import redacted, redacted_within
from penstock.core.secrets import DEFAULT_FIELDS
from penstock.stores import Migrate, is_private

S = TypeVar("S", bound=msgspec.Struct)

PREFIX = "PENSTOCK_"
FILE = "penstock.toml"
# Variables that clients of a server read.
_OF_CLIENTS = ("PENSTOCK_TOKEN", "PENSTOCK_URL")

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Keeping = Annotated[float, msgspec.Meta(ge=60, le=315_360_000)]
"""Seconds; at least a minute, so that a program that waits for a job can still read it."""


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server: its store, its address, and what it runs."""

    store: str | None = None
    """The URL of the store; by default a SQLite file in the data folder."""
    data: str = "penstock-data"
    """The folder for the data of the server and its applications."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Port = 8000
    """The port to listen on; with 0, a free one."""
    workers: Count = 4
    """How many jobs of the applications run at a time; with 0 the server only accepts jobs."""
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """How many processes serve requests."""
    apps: tuple[str, ...] | None = None
    """The applications to serve; by default all that are installed."""
    grace: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 30
    """Seconds that running jobs and requests have to finish when the server stops."""
    drain_delay: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0
    """Seconds to keep accepting requests, reporting not ready, before stopping."""
    keep_finished: Keeping = 86_400
    """Seconds for which finished jobs are kept, other than failed ones."""
    keep_failed: Keeping = 604_800
    """Seconds for which failed jobs are kept."""
    log_format: Literal["text", "json"] = "text"
    """The format of the log: lines of text, or one JSON object per line."""
    request_log: bool = False
    """Whether to log every request."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call this server."""
    secret_fields: tuple[str, ...] = DEFAULT_FIELDS
    """Fields of arguments and results whose values are hidden: see `core.secrets`."""
    migrate: Migrate | None = None
    """What to do with a store of an earlier schema: migrate it, or refuse it.

    By default, a SQLite file is migrated, and a PostgreSQL database is refused.
    """
    metrics_queues: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """How many queues /metrics shows by name; kept in the store, which begins with 100."""

    @property
    def retention(self) -> Retention:
        """How long the server keeps finished jobs."""
        return Retention(
            finished=timedelta(seconds=self.keep_finished),
            failed=timedelta(seconds=self.keep_failed),
        )

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return f"Server({', '.join(f'{k}={presentable(k, v)!r}' for k, v in fields)})"


class Setting(msgspec.Struct, frozen=True):
    """The value of a setting, and where it comes from."""

    name: str
    value: Any
    source: str

    @property
    def shown(self) -> Any:
        """The value without the secrets in addresses."""
        return presentable(self.name, self.value)

    def __repr__(self) -> str:
        return f"Setting({self.name!r}, {self.shown!r}, {self.source!r})"


class Section(msgspec.Struct, Generic[S], frozen=True):
    """The settings of one section, and where each comes from."""

    name: str
    settings: S
    sources: list[Setting]


class Sources:
    """The sources of settings: given values override the environment, which overrides the file."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, file: Path | None = None
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._file, self._stored = _read_file(self._environment, file)
        self._known = {f"{PREFIX}CONFIG", *_OF_CLIENTS}

    def section(
        self, name: str, kind: type[S], given: Mapping[str, Any] | None = None
    ) -> Section[S]:
        """Return the validated settings of a section; that of the server itself is named ''."""
        stored = {key: value for key, value in self._stored.items() if not isinstance(value, dict)}
        if name:
            stored = self._stored.get(name, {})
            if not isinstance(stored, dict):
                raise ConfigurationError(f"{self._file}: {name} must be a section: [{name}]")
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
        self.recognise(name, kind)
        settings = kind(**values)
        check: Callable[[], object] = getattr(settings, "check", lambda: None)
        check()  # what types cannot express, so that `config` refuses what `serve` refuses
        return Section(name, settings, sources)

    def one(self, kind: type[msgspec.Struct], name: str) -> Any:
        """Return one validated setting of the server, whatever the others are.

        Programs that are no server use some of its settings, and do not check the values of others.
        An unknown top-level key of the file is refused, as are a syntax error and a
        `PENSTOCK_CONFIG` that names no file, when the file is read.
        """
        stored = {key: value for key, value in self._stored.items() if not isinstance(value, dict)}
        self._refuse_unknown("", stored, kind)
        field = next(one for one in msgspec.structs.fields(kind) if one.name == name)
        source, value = self._find(_variables("", kind, name), field, stored, {})
        return field.default if source == "default" else _converted(value, field, name, source)

    def check_sections(self, known: Collection[str]) -> None:
        """Raise `ConfigurationError` for a section of the file that is not known."""
        for name, value in self._stored.items():
            if isinstance(value, dict) and name not in known:
                raise ConfigurationError(
                    f"{self._file}: there is no section [{name}]; choose from {', '.join(known)}"
                )

    def recognise(self, name: str, kind: type[msgspec.Struct]) -> None:
        """Count the variables of a section as known, whether or not they are read."""
        for field in msgspec.structs.fields(kind):
            self._known.update(_variables(name, kind, field.name))

    def unknown_variables(self) -> Iterator[str]:
        """Yield a warning for each variable with our prefix that is not a known setting."""
        names = sorted(name.removeprefix(PREFIX) for name in self._known if PREFIX in name)
        for variable in sorted(self._environment.keys() - self._known):
            if variable.startswith(PREFIX):
                from difflib import get_close_matches

                nearest = get_close_matches(variable.removeprefix(PREFIX), names, 1)
                meant = f"; did you mean {PREFIX}{nearest[0]}?" if nearest else ""
                yield f"{variable} is not a setting and is ignored{meant}"

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
                f"choose from {', '.join(sorted(known))}"
            )


def store_url(settings: Server) -> str:
    """Return the URL of the store; the default is a file in the data folder, which is created."""
    if settings.store is not None:
        _check_store(settings, settings.store)
        return settings.store
    folder = Path(settings.data).absolute()
    problem = f"the data folder {folder} is not writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot create the data folder {folder}: {error.strerror or error}"
    if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        refused = ConfigurationError(problem)
        refused.add_note("--data DIR")
        raise refused
    return f"sqlite:///{folder / 'penstock.db'}"


def _check_store(settings: Server, store: str) -> None:
    if store.startswith(("http://", "https://")):
        refused = ConfigurationError(
            f"a server opens its store directly, but {redacted(store)} is another server"
        )
        refused.add_note("--store sqlite:///FILE, or unset PENSTOCK_STORE")
        raise refused
    if settings.processes > 1 and is_private(store):
        refused = ConfigurationError(
            f"{redacted(store)} belongs to one process, and {settings.processes} cannot share it"
        )
        refused.add_note("--processes 1, or a store that processes share: sqlite:///FILE")
        raise refused


def variable_of(section: str, name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + "_".join(part for part in (section, name) if part).upper()


def also_called(kind: type, name: str) -> Sequence[str]:
    """Return other variables that set a field, in order of precedence: `ALSO_CALLED` of its Struct.

    These are names that other programs use for the same setting.
    """
    names: Mapping[str, Sequence[str]] = getattr(kind, "ALSO_CALLED", {})
    return names.get(name, ())


def _variables(section: str, kind: type, name: str) -> Sequence[str]:
    return (variable_of(section, name), *also_called(kind, name))


def presentable(name: str, value: Any) -> Any:
    """Return the value of a setting without the secrets in addresses."""
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
    import tomllib

    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is not None:
            raise ConfigurationError(f"there is no file {path}") from None
        return path, {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _is_list(kind: Any) -> bool:
    """Return whether a type holds several values, which text separates by commas."""
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
