"""Reading jobs, their log and their dependencies."""

from collections import Counter
from collections.abc import Collection, Sequence

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId, LogEntry, LogId
from penstock.core.key_line import LONGEST_LINE, KeyLine
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery, Tally
from penstock.core.queue import Counts
from penstock.core.restoration import Origin, Record
from penstock.stores.sql import rows
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import STAGES, encoded


def find(reader: Reader, query: JobQuery) -> list[Job]:
    """See `Store.find`."""
    return [rows.job(row) for row in reader.search("find", query)]


def find_ids(reader: Reader, query: JobQuery) -> list[JobId]:
    """See `Store.find_ids`."""
    return [row[0] for row in reader.search("find_ids", query)]


def tally(reader: Reader, query: JobQuery) -> Tally:
    """See `Store.tally`."""
    tally: Counter[State] = Counter()
    for stage, n in reader.search("tally", query).fetchall():
        tally[STAGES[stage][0]] += n
    return dict(tally)


def count(reader: Reader, queues: Collection[str] | None) -> Counts:
    """See `Store.count`."""
    if queues is None:
        found = reader.execute("totals")
    else:
        found = reader.execute("totals_of", (encoded(sorted(queues)),))
    return {(queue, *STAGES[stage]): n for queue, stage, n in found}


def expired(reader: Reader, limit: int) -> list[Job]:
    """See `Store.expired`."""
    found = reader.execute("expired", (reader.clock(), limit)).fetchone()[0]
    return reader.jobs(rows.ids.decode(found))


def edges(reader: Reader, ids: Sequence[JobId]) -> list[Edge]:
    """See `Store.edges`."""
    return [rows.edge(row) for row in reader.execute("edges", (encoded(ids),))]


def keys(reader: Reader, after: str | None, limit: int) -> list[KeyLine]:
    """See `Store.keys`."""
    found = reader.execute("keys", (after or "", limit, LONGEST_LINE)).fetchall()
    return [KeyLine(key=key, first=first, length=n) for key, first, n in found]


def log(reader: Reader, job_id: JobId | None, after: LogId | None, limit: int) -> list[LogEntry]:
    """See `Store.log`."""
    if job_id is None:
        # Asked for first: what commits in between is left out, and no entry is missed for good.
        (complete,) = reader.execute("complete_log").fetchone()
        found = reader.execute("log", (after or 0, limit, complete))
    else:
        found = reader.execute("log_of_job", (job_id, after or 0, limit))
    return [rows.log_entry(row) for row in found.fetchall()]


def newest_log(reader: Reader) -> LogId:
    """See `Store.newest_log`."""
    return LogId(reader.execute("complete_log").fetchone()[0])


def records(reader: Reader, ids: Sequence[JobId]) -> list[Record]:
    """See `Store.records`."""
    with reader.snapshot():
        return records_within(reader, ids)


def records_within(reader: Reader, ids: Sequence[JobId]) -> list[Record]:
    """Return what `records` does, as a part of a snapshot."""
    found = reader.jobs(ids)
    entries = reader.execute("logs_of_jobs", (encoded(ids),)).fetchall()
    waiting = reader.execute("open_edges", (encoded(ids),)).fetchall()
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


def origin(reader: Reader) -> Origin:
    """See `Store.origin`."""
    (source,) = reader.execute("source").fetchone()
    last_job, last_log = reader.execute("last_ids").fetchone()
    return Origin(source=source, last_job=last_job, last_log=last_log)


def watch(tx: Transaction, calls: Sequence[Sequence[JobId]]) -> list[list[Job]]:
    """See `Store.watch`."""
    wanted = [job_id for ids in calls for job_id in ids]
    tx.execute("mark_awaited", (encoded(wanted),))
    tx.written = True
    return [tx.jobs(ids) for ids in calls]
