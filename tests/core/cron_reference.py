"""When a cron expression runs, worked out minute by minute and without a library."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


class Reference:
    """A cron expression of numbers, lists, ranges and steps.

    For an expression with a star at its minute or hour, a minute runs if the clock on the wall
    shows it. For any other, each local time of day that it names is looked for once a day.
    """

    def __init__(self, cron: str, zone: str) -> None:
        minute, hour, day, month, weekday = cron.split()
        self.zone = ZoneInfo(zone)
        self.minutes, self.hours = self._field(minute, 0, 59), self._field(hour, 0, 23)
        self.days, self.months = self._field(day, 1, 31), self._field(month, 1, 12)
        self.weekdays = {number % 7 for number in self._field(weekday, 0, 7)}
        self.both = day.startswith("*") or weekday.startswith("*")
        self.by_the_wall = minute.startswith("*") or hour.startswith("*")

    def runs(self, since: datetime, until: datetime) -> list[datetime]:
        found = self._by_the_wall if self.by_the_wall else self._by_the_day
        return sorted({run for run in found(since, until) if since < run <= until})

    def _by_the_wall(self, since: datetime, until: datetime) -> Iterator[datetime]:
        minute = since.replace(second=0, microsecond=0)
        while minute <= until:
            shown = minute.astimezone(self.zone)
            if (
                shown.minute in self.minutes
                and shown.hour in self.hours
                and self._on(shown.date())
                and shown.second == 0
            ):
                yield minute
            minute += MINUTE

    def _by_the_day(self, since: datetime, until: datetime) -> Iterator[datetime]:
        """All instants by what the clock shows then; a time that is never shown comes next."""
        first: dict[datetime, datetime] = {}
        order: list[datetime] = []
        minute = since.replace(second=0, microsecond=0) - 2 * DAY
        while minute <= until + 2 * DAY:
            shown = minute.astimezone(self.zone).replace(tzinfo=None, fold=0)
            if shown not in first:
                first[shown] = minute
                order.append(shown)
            minute += MINUTE
        day = order[0].date()
        while day <= order[-1].date():
            for hour in self.hours:
                for minute_of in self.minutes:
                    named = datetime(day.year, day.month, day.day, hour, minute_of)  # noqa: DTZ001 - without a zone on purpose
                    if self._on(day) and order[0] <= named <= order[-1]:
                        while named not in first:
                            named += MINUTE
                        yield first[named]
            day += DAY

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_day and by_weekday) if self.both else (by_day or by_weekday)

    @staticmethod
    def _field(text: str, low: int, high: int) -> set[int]:
        found: set[int] = set()
        for part in text.split(","):
            span, _, step = part.partition("/")
            first, _, last = span.partition("-")
            start = low if span == "*" else int(first)
            end = high if span == "*" or (step and not last) else int(last or first)
            found |= set(range(start, end + 1, int(step or 1)))
        return found
