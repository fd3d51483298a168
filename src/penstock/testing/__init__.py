"""Tools for testing programs that use Penstock, with or without pytest."""

from penstock.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
from penstock.testing.clock import Clock
from penstock.testing.execution import NotDrained, UnexpectedFailure, Work, drain, run_until_empty
from penstock.testing.faults import Faults, faulty
from penstock.testing.inline_store import inline
from penstock.testing.leases import expire_lease
from penstock.testing.process import WorkerProcess
from penstock.testing.simulation.tasks import Simulation, simulate, simulate_every_kill
from penstock.testing.stores import fresh

__all__ = [
    "Clock",
    "Faults",
    "NotDrained",
    "Simulation",
    "UnexpectedFailure",
    "Work",
    "WorkerProcess",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "expire_lease",
    "faulty",
    "fresh",
    "inline",
    "run_until_empty",
    "simulate",
    "simulate_every_kill",
]
