from collections.abc import Sequence

from penstock import State
from penstock.vectors import Vectors
from tests.apps.ingest.support import Bench


async def test_a_file_that_changes_while_it_is_ingested_is_ingested_again(table: Bench) -> None:
    path = table.write("a.md", "before")
    embed = table.embedder.embed

    def changing(texts: Sequence[str]) -> Vectors:
        if texts == ["before"]:
            table.write("a.md", "after")
        return embed(texts)

    table.embedder.embed = changing  # type: ignore[method-assign] # replaced for the test
    job = await table.run("file", "ingest", {"file_path": path})
    assert job.state is State.DONE
    assert table.chunks() == {path: "after"}


async def test_a_poison_file_fails_alone(table: Bench) -> None:
    embed = table.embedder.embed

    def picky(texts: Sequence[str]) -> Vectors:
        if any("poison" in text for text in texts):
            raise RuntimeError("not this one")
        return embed(texts)

    table.embedder.embed = picky  # type: ignore[method-assign] # replaced for the test
    paths = [table.write(f"{n}.md", "poison" if n == 3 else f"text {n}") for n in range(6)]
    jobs = [await table.add("file", "ingest", {"file_path": path}) for path in paths]
    await table.work()
    states = [(await table.app.get(job)).state for job in jobs]
    assert states == [State.FAILED if n == 3 else State.DONE for n in range(6)]
    assert (await table.app.get(jobs[3])).attempt == 4
    assert set(table.chunks()) == {path for n, path in enumerate(paths) if n != 3}
