"""Verification of a store in memory: the facts for `core.verification`."""

from penstock.core.job import Job, JobId
from penstock.core.key_line import Queued
from penstock.core.lifecycle import State
from penstock.core.recovery import BackupProgress
from penstock.core.verification import (
    Findings,
    Problem,
    Rule,
    Verification,
    check_dedupe,
    check_line,
    check_needs,
    check_waiting,
)
from penstock.stores.memory import queries
from penstock.stores.memory.content import Content

_SHOWN_EVERY = 1_000


def verify(content: Content, progress: BackupProgress) -> Verification:
    """See `Store.verify`."""
    findings = Findings()
    stored = content.jobs.values()
    last = content.last_job, content.last_log
    lines: dict[str, list[Job]] = {}
    for done, job in enumerate(stored):
        if done % _SHOWN_EVERY == 0:
            progress("checking", done, len(stored))
        (record,) = queries.records(content, [job.id])
        states: dict[int, State] = {
            edge.needed: needed.state
            for edge in record.edges
            if (needed := content.jobs.get(edge.needed)) is not None
        }
        findings.read(record, last)
        findings.add(check_needs(job, record.edges, states, ()))
        findings.add(check_waiting(job, ()))
        if job.key is not None and not job.state.final:
            lines.setdefault(job.key, []).append(job)
        if job.dedupe is not None:
            rivals = map(content.jobs.__getitem__, content.holders.get(job.dedupe, ()))
            held = [(one.id, one.state is State.PENDING, one.scope) for one in rivals]
            findings.add(check_dedupe(job, held))
    progress("checking", len(stored), len(stored))
    for key, line in lines.items():
        pending = [
            Queued(job.id, job.waiting, job.needs, job.run_at)
            for job in line
            if job.waiting is not None
        ]
        running = [job.id for job in line if job.state is State.RUNNING]
        findings.add(check_line(key, pending, running, content.now))
    findings.add(_strays(content))
    return findings.result(queries.count(content, None))


def _strays(content: Content) -> list[Problem]:
    """Return log entries and dependencies that belong to no job."""
    gone: set[JobId] = {one for one in content.entries if content.jobs.get(one) is None}
    return [
        Problem(rule=Rule.LOG, text=f"the log has entries of job {one}, which is gone", job_id=one)
        for one in sorted(gone)
    ]
