"""Operations run once at a time and report how they ended."""

from penstock.apps.entries import Entries
from tests.apps.entries.support import Api, assert_index_equals_rows, experience, work_off

TEA = {"entity_type": "experience", "category_code": "A", "data": experience("Tea")}


async def test_operation_runs_once_at_a_time_and_reports_how_it_ended(
    api: Api, entries: Entries
) -> None:
    made = await api.entries("write", TEA)
    await work_off(entries)
    path = "/api/v1/operations"
    started = await api("POST", f"{path}/reembed", {"payload": {}}, status=202)
    assert started["status"] == "queued"
    again = await api("POST", f"{path}/reembed", {"payload": {}}, status=409)
    assert started["job_id"] in again["detail"]
    await work_off(entries)
    ended = await api("GET", f"{path}/jobs/{started['job_id']}")
    assert (ended["status"], ended["result"]) == ("succeeded", {"entries_requeued": 1})
    (await entries.current_index()).index.delete([made["entry_id"]])
    synced = await api("POST", f"{path}/sync", {}, status=202)
    await work_off(entries)
    ended = await api("GET", f"{path}/jobs/{synced['job_id']}")
    assert ended["result"] == {"vectors_removed": 0, "entries_requeued": 1}
    wrong = await api("POST", f"{path}/sync", {"payload": {"colour": 1}}, status=422)
    assert wrong["field"] == "payload.colour"
    await api("POST", f"{path}/nothing", {}, status=404)
    for unknown in ("999999", "x", "1", "9" * 30):  # 1 embeds an entry
        await api("GET", f"{path}/jobs/{unknown}", status=404)
    bad = await api("POST", f"{path}/reembed", {"payload": {"entity_type": "thing"}}, status=202)
    await work_off(entries)
    ended = await api("GET", f"{path}/jobs/{bad['job_id']}")
    assert ended["status"] == "failed"
    assert ended["error"].startswith("entity_type: 'thing' is not one of")
    stopped = await api("POST", f"{path}/sync", {}, status=202)
    await entries.penstock.cancel(int(stopped["job_id"]))
    ended = await api("GET", f"{path}/jobs/{stopped['job_id']}")
    assert (ended["status"], ended["result"]) == ("cancelled", None)
    await assert_index_equals_rows(entries)


async def test_operation_starts_before_pending_rows(api: Api, entries: Entries) -> None:
    for _ in range(3):
        await api.entries("write", TEA)
    started = await api("POST", "/api/v1/operations/sync", {}, status=202)
    queues = ["entries", "entries-operations"]
    (job,) = await entries.penstock.leases.claim(worker="one", queues=queues)
    assert str(job.id) == started["job_id"]


async def test_wrong_payload_is_refused_under_every_name_of_an_operation(api: Api) -> None:
    for name in ("sync", "sync-embeddings", "reembed", "rebuild-index"):
        body = {"payload": {"colour": 1}}
        wrong = await api("POST", f"/api/v1/operations/{name}", body, status=422)
        assert wrong["field"] == "payload.colour"
