"""Scheduled reports: by cron in the time zone of each region, once each, however many workers run.

A report knows for when it was planned, so one that runs late is about the right day. If nothing ran
for a week, only the newest report is written.

    python reports.py                         # stores the schedules; once, or at every deployment
    penstock worker reports                   # writes the reports
    penstock cron list --store sqlite:///reports.db
    penstock cron run daily-tokyo --store sqlite:///reports.db     # now, in addition
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from penstock import Penstock, RetryPolicy, context

REGIONS = {"tokyo": "Asia/Tokyo", "berlin": "Europe/Berlin", "quito": "America/Guayaquil"}
app = Penstock("sqlite:///reports.db")


@app.task(queue="reports", retry=RetryPolicy(attempts=8, delay=timedelta(seconds=30)))
def report(region: str) -> str:
    """Write the report of a region; a second run writes the same file."""
    planned = context().job.run_at.astimezone(ZoneInfo(REGIONS[region]))
    file = Path("reports") / f"{region}-{planned:%Y-%m-%d}.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"Report of {region} for {planned:%A, %d %B %Y}, {planned:%H:%M %Z}\n", "utf-8")
    return str(file)


@app.task(every=timedelta(minutes=10), overlap=False, queue="reports")
def clean_up() -> int:
    """Remove old reports; a run is skipped while the last one is still at it."""
    old = sorted(Path("reports").glob("*.txt"), key=lambda file: file.stat().st_mtime)[:-100]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)


async def schedule() -> None:
    """Store a schedule for each region; repeating this changes nothing."""
    for region, zone in REGIONS.items():
        await app.schedules.put(
            f"daily-{region}",
            report.new(region),
            cron="0 7 * * MON-FRI",
            timezone=zone,
            missed="once",
        )
    for each in await app.schedules.list():
        print(f"{each.name}: next at {each.next:%Y-%m-%d %H:%M} UTC")
    await app.close()


if __name__ == "__main__":
    asyncio.run(schedule())
