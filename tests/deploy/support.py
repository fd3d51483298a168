"""What the files below deploy/ say, read the way their programs read them."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from penstock.cli.main import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
# What a process may take after the grace of its jobs: penstock.cli.signals.
WIND_DOWN = 10.0
LAST_BREATH = 5.0


def tool(name: str) -> str:
    """A program that a package of the dependency group dev brings."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    assert found, f"{name} is missing: install the dependency group dev"
    return found


def options(command: Sequence[str]) -> dict[str, Any]:
    """The options of a command line after `penstock`; it must be one that is accepted."""
    context = cli.make_context("penstock", list(command), resilient_parsing=False)
    with context:
        name, found, rest = cli.resolve_command(context, list(command))
        assert name is not None
        assert found is not None
        return found.make_context(name, rest, parent=context).params


def seconds(value: str) -> float:
    """A duration such as 60s, 90 or 2min."""
    found = re.fullmatch(r"(\d+)(s|m|min)?", value)
    assert found, value
    return float(found[1]) * (60 if (found[2] or "s") != "s" else 1)


def documents(path: str) -> list[Any]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all((DEPLOY / path).read_text("utf-8")))
