"""What an application needs to run: packages, and a store that can hold its tables."""

import importlib.util
from typing import NamedTuple

from penstock.core.errors import ConfigurationError
from penstock.web.problems import Problem

_OWN = __name__.partition(".")[0]


class Packages(NamedTuple):
    """The packages that an application needs, which an extra of the same name installs."""

    application: str
    names: tuple[str, ...]

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [name for name in self.names if importlib.util.find_spec(name) is None]

    def check(self) -> None:
        """Raise `ConfigurationError` if packages are missing; for jobs and commands."""
        if missing := self.missing():
            raise ConfigurationError(f"{self._needs(missing)}: {self._install}")

    def check_served(self) -> None:
        """Raise the `Problem` 501 if packages are missing; for routes."""
        if missing := self.missing():
            raise Problem(501, f"{self._needs(missing)} on the server: {self._install}")

    def _needs(self, missing: list[str]) -> str:
        return f"the {self.application} application needs {', '.join(missing)}"

    @property
    def _install(self) -> str:
        return f"pip install 'penstock[{self.application}]'"


def is_package_missing(error: ImportError) -> bool:
    """Return whether an import failed because a package of others is not installed.

    Otherwise it failed because of a defect: in a module of Penstock's own, or in a package that is
    installed but lacks what is imported. That is shown as it is.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return False
    package = error.name.partition(".")[0]
    return package != _OWN and importlib.util.find_spec(package) is None


def needs_tables(application: str, error: ConfigurationError) -> str:
    """Return why an application cannot run on a store that has no tables."""
    return f"the {application} application needs a SQLite or PostgreSQL store: {error}"
