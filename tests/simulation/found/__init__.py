"""Plans that showed bugs, kept as they were: changes of `plan.py` do not change them."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.simulation.plan import Event
from tests.simulation.scenario import Result

FOLDER = Path(__file__).parent


class Found(msgspec.Struct, frozen=True):
    """A plan, and the mutation that brings the bug back."""

    name: str
    scenario: str
    seed: int
    broken: str | None
    plan: list[Event]

    @classmethod
    def of(cls, result: Result, name: str, broken: str | None) -> "Found":
        return cls(name, result.scenario, result.seed, broken, list(result.plan))

    @classmethod
    def read(cls, path: Path) -> "Found":
        return msgspec.json.decode(path.read_bytes(), type=cls)

    @staticmethod
    def all() -> Sequence[Path]:
        return sorted(FOLDER.glob("*.json"))

    def write(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        (FOLDER / f"{self.name}.json").write_bytes(text + b"\n")
