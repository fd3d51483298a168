"""An ETL with fan-out and fan-in: extract, transform in parallel, load when all are done.

The first job finds the files and enqueues the others: one for each file, and one that waits for all
of them. If a file cannot be read, its job is retried, and the load waits; nothing is loaded twice.

    python etl.py                             # sales/*.csv -> totals in warehouse.db
"""

import asyncio
import csv
import random
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from penstock import JobQuery, Penstock, RetryPolicy, State, Worker, chain, context, run_sync

app = Penstock("sqlite:///etl.db")
QUICK = RetryPolicy(attempts=5, delay=timedelta(milliseconds=200))


@app.task
def extract(folder: str) -> int:
    """Enqueue the rest as one batch, all or nothing; a second run adds nothing that still waits."""
    day = f"sales-{context().job.id}"
    files = sorted(str(path) for path in Path(folder).glob("*.csv"))
    steps = chain(
        [transform.using(correlation=day, dedupe=f"{day}-{file}").new(file) for file in files],
        load.using(dedupe=f"{day}-load").new(day),
    )
    run_sync(app.enqueue_many(steps))
    return len(files)


@app.task(retry=QUICK)
def transform(file: str) -> dict[str, float]:
    """Return the turnover of each product; the result is stored with the job."""
    if context().attempt == 1 and random.random() < 0.3:
        raise OSError(f"{file} is not available at the moment")
    totals: dict[str, float] = {}
    with Path(file).open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            totals[row["product"]] = totals.get(row["product"], 0) + float(row["price"])
    return totals


@app.task
async def load(day: str) -> dict[str, float]:
    """Write the sum of all results; a second run writes the same numbers."""
    totals: dict[str, float] = {}
    done = JobQuery(correlation=day, states=[State.DONE], limit=1000)
    results = {job.args["file"]: job.returned for job in await app.find(done)}
    for result in results.values():
        for product, turnover in result.items():
            totals[product] = round(totals.get(product, 0) + turnover, 2)
    with closing(sqlite3.connect("warehouse.db")) as warehouse, warehouse:
        warehouse.execute("CREATE TABLE IF NOT EXISTS turnover (day, product, total)")
        warehouse.execute("DELETE FROM turnover WHERE day = ?", (day,))
        rows = [(day, product, total) for product, total in sorted(totals.items())]
        warehouse.executemany("INSERT INTO turnover VALUES (?, ?, ?)", rows)
    return totals


def sell(folder: Path, shops: int = 8) -> None:
    """Write a file of sales for each shop."""
    folder.mkdir(exist_ok=True)
    for shop in range(shops):
        lines = [f"{random.choice(('tea', 'cake', 'jam'))},{n % 7 + 0.5}" for n in range(50)]
        (folder / f"shop-{shop}.csv").write_text("\n".join(["product,price", *lines]), "utf-8")


async def main() -> None:
    """Start with one job; the last one has the totals."""
    sell(Path("sales"))
    async with app, asyncio.TaskGroup() as group:
        worker = Worker(app)
        group.create_task(worker.run())
        files = await (await extract.enqueue("sales")).result()
        (loading,) = await app.find(JobQuery(task="load", limit=1))
        print(f"{files} files:", await loading.result(timeout=timedelta(minutes=1)))
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
