"""Schedules in memory."""

from collections.abc import Collection, Iterable
from datetime import datetime

from msgspec.structs import replace

from penstock.core.job import Job
from penstock.core.schedule import Due, Firing, Schedule
from penstock.stores.memory.batch import WriteBatch


class StoredSchedules:
    """The schedules of a store, by name."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}
        self.last_version = 0

    def apply(self, batch: WriteBatch) -> None:
        """Apply the schedules of a batch."""
        for schedule in batch.schedules:
            self.last_version = max(self.last_version, schedule.version)
            self._schedules[schedule.name] = schedule
        for name in batch.dropped_schedules:
            self._schedules.pop(name, None)
        self.last_version = max(self.last_version, batch.last_schedule)

    def find(self, names: Collection[str] | None) -> list[Schedule]:
        """Return the schedules with these names, or all, by name."""
        wanted = self._schedules.keys() if names is None else self._schedules.keys() & set(names)
        return [self._schedules[name] for name in sorted(wanted)]

    def put(self, schedule: Schedule) -> Schedule | None:
        """Return a schedule as it is to be written; None if another write came first."""
        stored = self._schedules.get(schedule.name)
        if schedule.version != (0 if stored is None else stored.version):
            return None
        return replace(schedule, version=self.last_version + 1)

    def due(self, now: datetime, known: tuple[Collection[str], Collection[str]], limit: int) -> Due:
        """Return which schedules of the known tasks and declarations are due, and the next time."""
        tasks, declared = known
        planned = sorted(
            (schedule.next, schedule.name)
            for schedule in self._schedules.values()
            if schedule.next is not None
            and not schedule.paused
            and schedule.task in tasks
            and (not schedule.declared or schedule.name in declared)
        )
        return Due(
            now=now,
            schedules=[self._schedules[name] for at, name in planned if at <= now][:limit],
            next=next((at for at, _ in planned if at > now), None),
        )

    def is_due(self, firing: Firing, now: datetime) -> bool:
        """Return whether the schedule of a firing is unchanged and due."""
        stored = self._schedules.get(firing.schedule.name)
        return (
            stored is not None
            and stored.version == firing.schedule.version
            and not stored.paused
            and stored.next is not None
            and stored.next <= now
        )

    def fired(self, firing: Firing, added: Iterable[Job]) -> Schedule:
        """Return the schedule after a firing that added these jobs."""
        schedule = replace(
            self._schedules[firing.schedule.name],
            next=firing.next,
            version=self.last_version + 1,
        )
        for job in added:
            schedule = replace(schedule, last=job.run_at, last_job=job.id)
        return schedule
