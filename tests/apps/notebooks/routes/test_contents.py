from tests.apps.notebooks.support import Api


async def test_history_content_and_diff_of_a_file(one: Api) -> None:
    created = await one.create("a.md", "one\n")
    place = f"/files/{created['file_id']}"
    for change in (None, {"content": "two\n"}):
        if change:
            await one.on("PUT", place, change)
        await one.work()
        await one("POST", "/events/commit", {"notebook": "garden"}, status=202)
        await one.work()
    commits = (await one.on("GET", f"{place}/history"))["commits"]
    assert [commit["path"] for commit in commits] == ["a.md", "a.md"]
    old = await one.client.get(
        f"/api/v1/notebooks/garden{place}/content?commit={commits[1]['commit']}"
    )
    assert old.text == "one\n"
    assert "-one\n+two" in (await one.on("GET", f"{place}/diff"))["diff"]
    first = await one.on("GET", f"{place}/diff?until={commits[1]['commit']}")
    assert (first["since"], first["diff"].endswith("@@ -0,0 +1 @@\n+one\n")) == (None, True)
    await one.on("GET", f"{place}/diff?until=abcdef", status=404)
    await one.on("GET", f"{place}/content?commit=--output=x", status=404)


async def test_history_is_that_of_the_file_and_not_of_its_path(one: Api) -> None:
    lines = [f"line {n}\n" for n in range(20)]
    created = await one.create("a.md", "".join(lines))
    other = await one.create("b.md", "another file\n")
    place = f"/files/{created['file_id']}"
    await one.commit()
    await one.on("DELETE", f"/files/{other['file_id']}")
    await one.commit()
    await one.on("PATCH", f"{place}/move", {"path": "b.md"})
    await one.commit()
    await one.on("PUT", place, {"content": "".join([*lines[:-1], "the end\n"])})
    await one.commit()
    found = (await one.on("GET", f"{place}/history"))["commits"]
    assert [commit["path"] for commit in found] == ["b.md", "b.md", "a.md"]
    first, last = found[-1]["commit"], found[0]["commit"]
    behind = await one.on("GET", f"{place}/history?after={last}&limit=5")
    assert behind["commits"] == found[1:]
    there = f"/api/v1/notebooks/garden{place}/content?commit={first}"
    assert (await one.client.get(there)).text == "".join(lines)
    diff = (await one.on("GET", f"{place}/diff?since={first}&until={last}"))["diff"]
    assert [
        line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in "+++---"
    ] == [*("-line 19", "+the end")]
    whole = (await one.on("GET", "/history"))["commits"]
    assert len(whole) == 4
    assert {commit["commit"] for commit in found} < {commit["commit"] for commit in whole}
    assert (await one.on("GET", f"/history?after={last}&limit=1"))["commits"] == whole[1:2]
