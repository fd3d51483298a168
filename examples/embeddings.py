"""An embedding pipeline in batches: text files in, a collection that is searched by meaning out.

A model is quicker with many texts at once, so each job takes a batch of files. The jobs of one run
are a batch themselves, whose progress can be asked for. Stop the program at any time: jobs that are
left run at the next start, which does not add them again.

    pip install -c constraints.txt '.[vectors]'   # in the clone
    python embeddings.py FOLDER "a question"
"""

import asyncio
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path

from penstock import NewJob, Penstock, Worker, context
from penstock.vectors import Collection, Document, open_embedder

BATCH = 16
app = Penstock("sqlite:///embeddings.db")
embedder = open_embedder()


@app.task(queue="embedding", concurrency=1, timeout=timedelta(minutes=10))
def embed(files: list[str]) -> int:
    """Embed and store these files; a second run replaces them with the same."""
    documents = (Document(file, Path(file).read_text("utf-8", "replace")) for file in files)
    with Collection.open("collection", embedder) as collection:
        collection.replace(documents)
    context().logger.info("%d files are embedded", len(files))
    return len(files)


def batches(folder: Path) -> list[NewJob]:
    """Return a job for every batch of files; one that is waiting already is not added again."""
    files = iter(sorted(str(path) for path in folder.rglob("*.md")))
    jobs = []
    while batch := list(islice(files, BATCH)):
        jobs.append(embed.using(dedupe=batch[0]).new(batch))
    return jobs


async def show_progress(correlation: str) -> None:
    """Print how far the batch is, until it has ended."""
    while True:
        batch = await app.batch(correlation)
        print(f"{batch.status}: {batch.total} jobs,", dict(batch.tally), flush=True)
        if batch.status != "running":
            return
        await asyncio.sleep(1)


async def main(folder: Path, question: str) -> None:
    """Embed all files of the folder, then answer the question."""
    async with app, asyncio.TaskGroup() as group:
        await app.enqueue_batch(batches(folder), correlation=str(folder))
        worker = Worker(app, queues=["embedding"], concurrency=2)
        group.create_task(worker.run())
        await show_progress(str(folder))
        worker.stop()
    with Collection.open("collection", embedder) as collection:
        for hit in collection.search(question, k=3):
            print(f"{hit.score:.2f}  {hit.path}  {hit.title}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
