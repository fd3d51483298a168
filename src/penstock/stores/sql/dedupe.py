"""Who holds a dedupe key: the facts for `core.dedupe`."""

from collections import defaultdict
from collections.abc import Collection

from penstock.core.dedupe import Holding, holder
from penstock.core.job import Job, Scope
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import RUNNING, encoded


class Holders:
    """The unfinished jobs that hold dedupe keys, as of one moment."""

    def __init__(self, tx: Transaction, dedupes: Collection[str]) -> None:
        self._holdings: dict[str, list[Holding]] = defaultdict(list)
        self._jobs: dict[int, Job] = {}
        if not dedupes:
            return
        found = tx.execute("dedupe_holders", (encoded(sorted(dedupes)),)).fetchall()
        # Next to other transactions, a job may have ended since.
        ids = [job_id for _, job_id, _, _ in found]
        self._jobs = {job.id: job for job in tx.jobs(ids) if not job.state.final} if ids else {}
        for dedupe, job_id, stage, scope in found:
            if job_id in self._jobs:
                self._holdings[dedupe].append((job_id, stage < RUNNING, scope))

    def find(self, dedupe: str, scope: Scope, exclude: Collection[int] = ()) -> Job | None:
        """Return the job that keeps another with this dedupe key from becoming pending."""
        found = holder(scope, self._holdings.get(dedupe, ()), exclude)
        return None if found is None else self._jobs[found]


def holder_of(
    tx: Transaction, dedupe: str, scope: Scope, exclude: Collection[int] = ()
) -> int | None:
    """Return the id of the job that keeps another from becoming pending, read in this moment."""
    return holder(scope, holdings_of(tx, dedupe), exclude)


def holdings_of(reader: Reader, dedupe: str) -> list[Holding]:
    """Return the unfinished jobs with a dedupe key."""
    found = reader.execute("dedupe_holders", (encoded([dedupe]),)).fetchall()
    return [(job_id, stage < RUNNING, scope) for _, job_id, stage, scope in found]
