"""Schedules in memory: how the verbs about them decide."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.core.job import Job, JobId
from penstock.core.schedule import Due, Firing, Schedule
from penstock.stores.memory.batch import Batch

if TYPE_CHECKING:
    from penstock.stores.memory.draft import Draft


class Timetable:
    """The schedules of a store, by name."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}
        self.last_version = 0

    def apply(self, batch: Batch) -> None:
        """Take over what a batch says."""
        for schedule in batch.schedules:
            self.last_version = max(self.last_version, schedule.version)
            self._schedules[schedule.name] = schedule
        for name in batch.unscheduled:
            self._schedules.pop(name, None)
        self.last_version = max(self.last_version, batch.last_version)

    def find(self, names: Collection[str] | None) -> list[Schedule]:
        """The schedules with these names, or all, by name."""
        wanted = self._schedules.keys() if names is None else self._schedules.keys() & set(names)
        return [self._schedules[name] for name in sorted(wanted)]

    def put(self, schedule: Schedule) -> Schedule | None:
        """The schedule as it has to be written, unless another write came first."""
        stored = self._schedules.get(schedule.name)
        if schedule.version != (0 if stored is None else stored.version):
            return None
        return replace(schedule, version=self.last_version + 1)

    def due(self, now: datetime, known: tuple[Collection[str], Collection[str]], limit: int) -> Due:
        """What is due among the known ones, and when the next is."""
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

    def fire(
        self, draft: "Draft", firing: Firing, now: datetime
    ) -> list[tuple[JobId, bool]] | None:
        """Draft the jobs of a firing, unless the schedule is another one by now."""
        stored = self._schedules.get(firing.schedule.name)
        if (
            stored is None
            or stored.version != firing.schedule.version
            or stored.paused
            or stored.next is None
            or stored.next > now
        ):
            return None
        return [draft.add(new, reason=stored.reason(new.run_at or now)) for new in firing.jobs]

    def fired(self, firing: Firing, added: Iterable[Job]) -> Schedule:
        """The schedule behind a firing that has added these jobs."""
        schedule = replace(
            self._schedules[firing.schedule.name],
            next=firing.next,
            version=self.last_version + 1,
        )
        for job in added:
            schedule = replace(schedule, last=job.run_at, last_job=job.id)
        return schedule
