"""What is known of jobs, as the database has it."""

from collections import Counter
from collections.abc import Sequence

from penstock.core.job import Edge, Job, JobId, JobQuery, LogEntry, Origin, Record, Tally
from penstock.core.lifecycle import State
from penstock.stores.sql import rows
from penstock.stores.sql.rows import STAGES, encoded
from penstock.stores.sql.transaction import Reading, Transaction


def expired(reading: Reading, limit: int) -> list[Job]:
    """See `Store.expired`."""
    found = reading.execute("expired", (reading.now(), limit)).fetchone()[0]
    return reading.jobs(rows.ids.decode(found))


def watch(tx: Transaction, calls: Sequence[Sequence[JobId]]) -> list[list[Job]]:
    """See `Store.watch`."""
    wanted = [job_id for ids in calls for job_id in ids]
    tx.execute("await", (encoded(wanted),))
    tx.written = True
    return [tx.jobs(ids) for ids in calls]


def tally(reading: Reading, query: JobQuery) -> Tally:
    """See `Store.tally`."""
    tally: Counter[State] = Counter()
    for stage, n in reading.search("tally", query).fetchall():
        tally[STAGES[stage][0]] += n
    return dict(tally)


def histories(reading: Reading, ids: Sequence[JobId]) -> list[Record]:
    """See `Store.histories`."""
    with reading.moment():
        found = reading.jobs(ids)
        entries = reading.execute("histories", (encoded(ids),)).fetchall()
        waiting = reading.execute("open_edges", (encoded(ids),)).fetchall()
    logs: dict[int, list[LogEntry]] = {job.id: [] for job in found}
    for entry in map(rows.log_entry, entries):
        logs[entry.job_id].append(entry)
    edges: dict[int, list[Edge]] = {}
    for edge in map(rows.edge, waiting):
        edges.setdefault(edge.job_id, []).append(edge)
    return [
        Record(job=job, log=tuple(logs[job.id]), edges=tuple(edges.get(job.id, ())))
        for job in found
    ]


def origin(reading: Reading) -> Origin:
    """See `Store.origin`."""
    (source,) = reading.execute("source").fetchone()
    last_job, last_log = reading.execute("last_ids").fetchone()
    return Origin(source=source, last_job=last_job, last_log=last_log)
