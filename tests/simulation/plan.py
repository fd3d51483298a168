"""What happens in a simulated world, decided by its seed before it begins.

A plan is a list of events, so that a failing one can be made shorter by leaving events out.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.core.job import Scope

PRODUCERS = 2
WORKERS = 3
DURATION = 30.0
"""For so long, in virtual seconds, jobs are enqueued and faults occur."""
KEYS = [None, None, "k1", "k2", "k3"]
# What a handler does at its first attempt, its second, and so on; the last holds for the rest.
DEEDS = [
    ["done"],
    ["done"],
    ["done"],
    ["slow"],
    ["steady"],
    ["steady"],
    ["long"],
    ["fail", "done"],
    ["fail", "slow", "fail", "done"],
    ["snooze"],
    ["fail"],
    ["permanent"],
    ["cancel"],
    ["die", "done"],
]


class JobSpec(msgspec.Struct, frozen=True):
    """A job to enqueue."""

    task: str
    does: list[str]
    options: dict[str, Any]


class Order(msgspec.Struct, frozen=True, tag=True):
    """A producer enqueues jobs, all or none; over HTTP, perhaps as `events`."""

    at: float
    producer: int
    jobs: list[JobSpec]
    events: bool = False


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Something goes wrong, for `amount` seconds or by this amount."""

    at: float
    kind: str
    target: int
    amount: float


class Steer(msgspec.Struct, frozen=True, tag=True):
    """Somebody pauses a queue for `amount` seconds, or cancels the newest job."""

    at: float
    kind: str
    amount: float


Event = Order | Fault | Steer


def make(
    seed: int, faults: Sequence[str], some_of: Sequence[str] = (), *, events_share: float = 0.0
) -> list[Event]:
    """The plan of a seed, with these kinds of faults, among them at least one `some_of` these.

    Of the orders, this share are events.
    """
    rng = random.Random(f"plan {seed}")
    events: list[Event] = []
    for producer in range(PRODUCERS):
        at = 0.0
        while (at := at + rng.expovariate(1 / rng.choice([0.5, 2, 4]))) < DURATION:
            n = rng.choice([1, 1, 1, 2, 5])
            jobs = [_job(rng) for _ in range(n)]
            is_events = events_share > 0 and rng.random() < events_share
            events.append(Order(at, producer, jobs, is_events))
    chosen = rng.sample(faults, rng.randint(1, min(4, len(faults)))) if faults else []
    if some_of and not set(some_of) & set(chosen):
        chosen.append(rng.choice(some_of))
    for kind in chosen:
        events += [_fault(rng, kind) for _ in range(rng.randint(1, 4))]
    if "jump" not in chosen and "drift" not in chosen and rng.random() < 0.5:
        events.append(Steer(rng.uniform(0, DURATION), "pause", rng.uniform(1, 10)))
    cancels = rng.randint(0, 2)
    events += [Steer(rng.uniform(0, DURATION), "cancel", 0) for _ in range(cancels)]
    return sorted(events, key=lambda event: event.at)


def _fault(rng: random.Random, kind: str) -> Fault:
    amounts: dict[str, Callable[[], float]] = {
        "kill": lambda: rng.choice([0.0, 0.1, 2, 12]),
        "kill-producer": lambda: rng.choice([0.0, 0.1, 2]),
        "stop": lambda: rng.choice([0.5, 10, 12, 14, 20]),
        "jump": lambda: rng.choice([-30, -3, -0.5, 0.5, 4, 11, 60]),
        "drift": lambda: rng.choice([0.5, 0.9, 1.1, 2]),
        "die-at-disk": lambda: rng.randint(1, 60),
        "fail-write": lambda: rng.randint(1, 40),
        "fail-sync": lambda: rng.randint(1, 15),
        "fail-sync-then-crash": lambda: rng.randint(1, 15),
        "fail-sync-drops": lambda: rng.randint(1, 15),
        "full": lambda: rng.choice([0.5, 3, 10]),
        "crash": lambda: rng.choice([0.0, 2, 12]),
        "crash-at-disk": lambda: rng.randint(1, 80),
        "cut": lambda: rng.randint(1, 6),
        "duplicate": lambda: rng.randint(1, 6),
        "delay": lambda: rng.choice([2, 6, 12]),
        "partition": lambda: rng.choice([2, 8, 15]),
        "kill-server": lambda: rng.choice([0.0, 0.1, 2, 12]),
    }
    amount = float(amounts.get(kind, lambda: rng.uniform(0.5, 10))())
    return Fault(rng.uniform(0, DURATION), kind, rng.randrange(1000), amount)


def _job(rng: random.Random) -> JobSpec:
    options: dict[str, Any] = {
        "queue": rng.choice(["default", "default", "limited", "valve"]),
        "priority": rng.randrange(11),
        "attempts": rng.randint(2, 6),
    }
    if (key := rng.choice(KEYS)) is not None:
        options["key"] = key
    if rng.random() < 0.15:
        options["delay"] = rng.uniform(0, 5)
    if rng.random() < 0.25:
        options |= {"dedupe": f"d{rng.randrange(4)}", "scope": rng.choice(list(Scope)).value}
    if rng.random() < 0.1:
        options["tags"] = ["red"]
    return JobSpec(rng.choice(["work", "work", "plain"]), rng.choice(DEEDS), options)
