"""A later version of this package, and programs of any version that share a store."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock.stores.sql.schema import load_scripts

ADDED = {
    "sqlite": "CREATE TABLE penstock_novelty (n INTEGER);\n",
    "postgres": "CREATE TABLE penstock.novelty (n bigint);\n",
}
"""What its migration adds."""
SWITCHED = {
    "sqlite": "INSERT INTO penstock_novelty (n) VALUES (1);\n",
    "postgres": "INSERT INTO penstock.novelty (n) VALUES (1);\n",
}
"""What happens at the switch."""
TEXT = "novelties are used"

PROGRAM = """
import sys
from penstock import Penstock, run_sync
from penstock.errors import SchemaMismatch

app = Penstock(sys.argv[1], **eval(sys.argv[2]))

@app.task
def nothing() -> None: ...

def do(command: str) -> str:
    try:
        if command == "beat":
            run_sync(app.store.heartbeat([]))
        else:
            run_sync(nothing.enqueue())
    except SchemaMismatch as error:
        return f"refused: {error}"
    return "done"

print(do("write"), flush=True)
for line in sys.stdin:
    print(do(line.strip()), flush=True)
"""


def make_later_version(folder: Path) -> Path:
    """Copy the package to a folder, with one more migration for each database."""
    source = Path(penstock.__file__).parent
    stores = folder / "penstock" / "stores"
    shutil.copytree(source, folder / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    for name, added in ADDED.items():
        number = load_scripts(f"penstock.stores.{name}").version + 1
        script = f"{added}\n-- switch: {TEXT}\n\n{SWITCHED[name]}"
        (stores / name / "migrations" / f"{number:04}_novelty.sql").write_text(script)
        with (stores / name / "schema.sql").open("a") as tables:
            tables.write(f"\n{added}")
    return folder


def environment(version: Path | None) -> dict[str, str]:
    """The environment in which the version in a folder is imported, or this one."""
    return {**os.environ, **({} if version is None else {"PYTHONPATH": str(version)})}


class Program:
    """A process that has a store open, and does what it is told."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def hear(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> str:
        """What it says after a command: `write`, or `beat` for a heartbeat."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.hear()


@contextmanager
def program(
    url: str, version: Path | None = None, *options: str, says: str = "done"
) -> Iterator[Program]:
    """A process of this version, or of that in a folder, that has written to a store."""
    given = f"dict({','.join(options)})"
    command: Sequence[str] = [sys.executable, "-c", PROGRAM, url, given]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, text=True, stdin=pipe, stdout=pipe, env=environment(version)
    ) as process:
        try:
            started = Program(process)
            first = started.hear()
            assert first.startswith(says), first
            yield started
        finally:
            process.kill()
