"""What tests of programs that use Penstock stand on. Needs no pytest."""

from penstock.testing.asserting import assert_enqueued, assert_not_enqueued, enqueued
from penstock.testing.clock import Clock
from penstock.testing.eager import inline
from penstock.testing.faults import Faults, faulty
from penstock.testing.home import fresh
from penstock.testing.leases import expire_lease
from penstock.testing.process import WorkerProcess
from penstock.testing.work import JobFailed, NotDrained, Work, drain, run_until_empty

__all__ = [
    "Clock",
    "Faults",
    "JobFailed",
    "NotDrained",
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
]
