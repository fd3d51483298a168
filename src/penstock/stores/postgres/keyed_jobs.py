"""New jobs with keys or dedupe keys, added next to other transactions.

The decisions are those of the core, over what a shared lock and a lock on each of the keys keep as
it is. Others that add jobs with these keys wait. What ends the line of a key, or returns a job to
it, has an exclusive lock. A claim makes a pending job running meanwhile, and the end of a plain job
frees its dedupe key: a duplicate that was found before that was found in time.
"""

from collections.abc import Sequence

from penstock.core.job import Job
from penstock.stores.postgres.arrays import Texts
from penstock.stores.postgres.transaction import LockMode, NeedsExclusive, PostgresTransaction
from penstock.stores.sql import additions
from penstock.stores.sql.database import Addition


def are_independent(addition: Addition) -> bool:
    """Return whether only jobs with the same keys decide what becomes of the new ones."""
    jobs, _, tail = addition
    return tail is None and not any(job.after or job.follows for job in jobs)


def add(tx: PostgresTransaction, calls: Sequence[Addition]) -> Sequence[list[Job] | Exception]:
    """See `Store.add`; for jobs that depend on no others."""
    if tx.mode is not LockMode.EXCLUSIVE:
        jobs = [job for new, _, _ in calls for job in new]
        keys = {f"key {job.key}" for job in jobs if job.key is not None}
        keys |= {f"dedupe {job.dedupe}" for job in jobs if job.dedupe is not None}
        queues = {job.queue for job in jobs}
        found = tx.execute("lock_keys", (Texts(sorted(keys)), Texts(sorted(queues)))).fetchone()
        if found[0]:
            raise NeedsExclusive
    return additions.add(tx, calls)
