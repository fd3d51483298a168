"""The scripts that make the schema of a database, and the versions of a store.

Each database has three kinds, next to its `queries.sql`:

- `schema.sql` creates the tables of a new store;
- `migrations/0019_name.sql` turns a store of schema 18 into one of schema 19, and so on;
- `routines.sql` holds views, triggers and functions, with a version of their own. They are replaced
  as a whole when it rises, so no migration ever repeats them.

A migration only adds, so programs that know an earlier schema go on working. A script says what is
left to do when they have all ended: its last part, below the line `-- switch: …`, runs then. The
line `-- no switch` at its end says that nothing is.

A store keeps in its table of single numbers the versions of its schema and its routines, and the
schema that a program must know at least: the number of the last migration that was switched. There
is a view for each schema that programs may still know, `penstock_schema_20` (`penstock.schema_20`
on PostgreSQL). Every transaction of a program reads that of its own schema, and a switch drops the
views of those that are too old. So the database itself refuses them, from the moment of the switch
and at no cost.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

import msgspec

from penstock.core.errors import SchemaMismatch, StoreError
from penstock.core.lifecycle import allowed_moves
from penstock.stores.sql.rows import STAGES

ROUTINES = "routines"
"""The step that replaces the routines."""

Progress = Callable[[str], object]
"""Called with each step before it is taken."""

_NUMBERED = re.compile(r"^(\d{4})_(\w+)\.sql$")
_VERSION = re.compile(r"-- version: (\d+)\n")
_SWITCH = re.compile(r"^-- (?:no switch|switch: (.+))$\n?", re.MULTILINE)


class Versions(msgspec.Struct, frozen=True):
    """What a store was last brought to; a schema of 0 means that there is no store."""

    schema: int = 0
    routines: int = 0
    oldest_program: int = 0
    """The schema that a program must know at least."""

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> "Versions":
        """Return the versions among the single numbers of a store."""
        return cls(**{name: numbers.get(name, 0) for name in cls.__struct_fields__})

    def by_name(self) -> dict[str, int]:
        """Return the versions as single numbers of a store."""
        return msgspec.structs.asdict(self)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program that has a store open."""

    schema: int | None
    """The schema that it knows; None if it does not say, as those before the first view."""
    process: int | None = None
    """The number of its process, where that is known."""
    host: str | None = None
    worker: str | None = None
    """The name of the worker, if it is one."""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch that a store still needs."""

    migration: int
    text: str
    """What programs rely on after it."""
    held_up_by: Sequence[Program] = ()
    """Those that do not know the migration."""


class SchemaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a store, and what is left to do for this program to use all of it."""

    schema: int
    routines: int
    oldest_program: int
    """The schema that a program must know at least."""
    known_schema: int
    """What this program knows."""
    known_routines: int
    migrations: Sequence[str]
    """The steps of the migration that the store needs, in their order."""
    switches: Sequence[Switch]

    @property
    def is_current(self) -> bool:
        """Whether nothing is left to do."""
        return not self.migrations and not self.switches


class Migration(msgspec.Struct, frozen=True):
    """A numbered script in its two parts."""

    adds: str
    name: str = ""
    """The name of the file, without its number."""
    switch: str | None = None
    """What programs rely on after the switch; None if there is nothing to switch."""
    switches: str = ""
    """The statements of the switch."""


class Scripts(msgspec.Struct, frozen=True, kw_only=True):
    """The schema that this program works with, and how a store gets there."""

    tables: str
    migrations: Mapping[int, Migration]
    routines: str
    routines_version: int

    @property
    def version(self) -> int:
        """The number of the schema."""
        return max(self.migrations)

    @property
    def switches(self) -> list[int]:
        """The migrations that need a switch. The first one introduced the views of schemas."""
        return [number for number, one in self.migrations.items() if one.switch is not None]

    def check(self, found: Versions, store: str) -> None:
        """Raise `StoreError` for a store that this program cannot work with, migrated or not."""
        if found.oldest_program > self.version:
            raise too_old(store, self.version, found)
        oldest = min(self.migrations) - 1
        if 0 < found.schema < oldest:
            raise StoreError(
                f"{store} has schema {found.schema}, which was never released and cannot be "
                f"upgraded (schema {oldest} and newer can); export its jobs with the Penstock that "
                "wrote it and import them into a new store"
            )

    def is_current(self, found: Versions) -> bool:
        """Return whether a store needs no migration; what is newer stays as it is."""
        if found.schema == self.version:
            return found.routines >= self.routines_version
        return found.schema > self.version

    def check_current(self, found: Versions, store: str) -> None:
        """Raise `SchemaMismatch` if a store has to be migrated before this program can use it."""
        if not self.is_current(found):
            raise SchemaMismatch(
                f"{store} has schema {found.schema} with routines {found.routines}, and this "
                f"Penstock needs schema {self.version} with routines {self.routines_version}; "
                "migrate it with this version before programs of this version use it: "
                "penstock migrate-schema --apply (programs of the earlier version go on)"
            )

    def steps_from(self, found: Versions) -> dict[str, str]:
        """Return the scripts that bring a store up to date, in their order, by what they are.

        The last one is that of the routines, if they have to be replaced.
        """
        steps = {"tables": self.tables}
        if found.schema:
            steps = {
                f"migration {number} ({one.name})": one.adds
                for number, one in self.migrations.items()
                if number > found.schema
            }
        if found.routines < self.routines_version:
            steps[ROUTINES] = self.routines
        return steps

    def reached(self, found: Versions) -> Versions:
        """Return the versions of a store after its migration.

        Nothing is left to switch in a new store: no older program has it open.
        """
        newest = max(self.switches, default=0)
        return Versions(
            self.version,
            max(found.routines, self.routines_version),
            found.oldest_program if found.schema else newest,
        )

    def pending(self, found: Versions) -> list[int]:
        """Return the switches that a store still needs; of a newer store, none that we know."""
        if found.schema != self.version:
            return []
        return [number for number in self.switches if number > found.oldest_program]

    def status(
        self, found: Versions, present: Callable[[Sequence[int]], Sequence[Program]]
    ) -> SchemaStatus:
        """Return what a store needs; `present` returns the programs that know these schemas."""
        reached = self.reached(found) if not self.is_current(found) else found
        first = min(self.switches, default=found.schema + 1)  # before it, no program was known
        return SchemaStatus(
            schema=found.schema,
            routines=found.routines,
            oldest_program=found.oldest_program,
            known_schema=self.version,
            known_routines=self.routines_version,
            migrations=[] if self.is_current(found) else [*self.steps_from(found)],
            switches=[
                Switch(
                    migration=number,
                    text=self.migrations[number].switch or "",
                    held_up_by=present(self.known_before(number)) if found.schema >= first else (),
                )
                for number in self.pending(reached)
            ],
        )

    def known_before(self, number: int) -> range:
        """Return the schemas with views that are older than a migration."""
        return range(min(self.switches, default=number), number)

    def views(self, before: Versions, after: Versions) -> dict[int, bool]:
        """Return the schemas whose views change with the versions, and whether they have one."""
        first = min(self.switches, default=after.schema)
        if after.oldest_program == before.oldest_program:
            first = max(first, before.schema + 1)  # the others stay, and nobody waits for them
        return {n: n >= after.oldest_program for n in range(first, after.schema + 1)}


def unreported(step: str) -> None:
    """See `Progress`; for steps that nobody waits for."""


def too_old(store: str, known: int, found: Versions | None = None) -> SchemaMismatch:
    """Return the error for a program that may not use a store any more."""
    needed = "a newer schema" if found is None else f"schema {found.oldest_program}"
    return SchemaMismatch(
        f"{store} is in use by a newer Penstock and can only be used by programs that know "
        f"{needed} (this one knows {known}); nothing was changed; upgrade Penstock"
    )


def load_scripts(package: str) -> Scripts:
    """Read the scripts of a database from its package."""
    folder = files(package)
    numbered: dict[int, Migration] = {}
    for file in folder.joinpath("migrations").iterdir():
        if match := _NUMBERED.match(file.name):
            if int(match[1]) in numbered:
                raise ValueError(f"{package} has two migrations of the number {match[1]}")
            numbered[int(match[1])] = parse_migration(file.read_text("utf-8"), file.name, match[2])
    routines = folder.joinpath("routines.sql").read_text("utf-8")
    version = _VERSION.match(routines)
    if version is None:
        raise ValueError(f"routines.sql of {package} does not begin with its version")
    return Scripts(
        tables=folder.joinpath("schema.sql").read_text("utf-8"),
        migrations=dict(sorted(numbered.items())),
        routines=routines,
        routines_version=int(version[1]),
    )


def parse_migration(text: str, file: str, name: str) -> Migration:
    """Split a script at the line that says what has to be switched."""
    match [*_SWITCH.finditer(text)]:
        case [line]:
            adds, switches = text[: line.start()], text[line.end() :]
        case _:
            raise ValueError(
                f"{file} must have one line '-- no switch' or '-- switch: what is used after it'"
            )
    if line[1] is None and switches.strip():
        raise ValueError(f"{file} must end with its line '-- no switch'")
    return Migration(adds, name, line[1], switches)


def stages() -> list[tuple[int, str]]:
    """Return the rows of the table of stages: each number and the state that it means."""
    return [(number, state) for number, (state, _) in enumerate(STAGES)]


def transitions() -> list[tuple[str, str, str]]:
    """Return the rows of the table of transitions: the state before, the event, the state after."""
    return [*allowed_moves()]
