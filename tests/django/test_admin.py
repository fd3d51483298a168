"""The admin: what is shown, and what each permission allows."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from penstock import RetryPolicy, State, run_sync
from tests.django.project.shop import tasks

ONCE = RetryPolicy(attempts=1)
BACKEND = "penstock.django.backend.PenstockBackend"
LISTS = ("job", "queue", "schedule")


def client_of(*permissions: str) -> Client:
    """A member of the staff with these permissions, signed in."""
    user = User.objects.create_user("ada", password="secret", is_staff=True)
    for name in permissions:
        user.user_permissions.add(
            Permission.objects.get(codename=name, content_type__app_label="penstock")
        )
    client = Client(enforce_csrf_checks=False)
    client.force_login(user)
    return client


def list_of(model: str) -> str:
    return str(reverse(f"admin:penstock_{model}_changelist"))


def page_of(job: str) -> str:
    return str(reverse("admin:penstock_job_change", args=[job]))


def text(answer: Any) -> str:
    assert answer.status_code == 200, answer
    return str(answer.content.decode())


@pytest.mark.every_store
def test_jobs_are_shown_retried_and_cancelled(site: Any) -> None:
    failed, waiting = tasks.fail.using(retry=ONCE).enqueue("<b>"), None
    site.work()
    waiting = tasks.add.enqueue(1, 2)
    client = client_of("view_job", "change_job")
    page = text(client.get(list_of("job")))
    assert failed.task.module_path in page
    assert "OutOfTeaError: &lt;b&gt;" in page
    assert "no tea" not in text(client.get(list_of("job"), {"state": "pending"}))
    selected = {"selected": [failed.id, waiting.id, "99", "x"], "action": "cancel"}
    answer = client.post(list_of("job"), selected, follow=True)
    assert "there is no job 99" in text(answer)
    assert run_sync(site.app.get(int(waiting.id))).state is State.CANCELLED
    assert run_sync(site.app.get(int(failed.id))).state is State.FAILED  # it has ended
    client.post(page_of(failed.id), {"action": "retry"})
    assert run_sync(site.app.get(int(failed.id))).state is State.PENDING
    shown = text(client.get(page_of(failed.id)))
    assert "ada in the admin" in shown
    assert "retried in the admin" in shown


@pytest.mark.every_store
@pytest.mark.parametrize("model", LISTS)
def test_pages_work_with_atomic_requests(
    site: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request holds no lock that the queue, on its own connection, would wait for."""
    site.work()
    waiting = tasks.add.enqueue(1, 2)
    client = client_of(f"view_{model}", f"change_{model}")
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    selected, action = {
        "job": (waiting.id, "cancel"),
        "queue": ("default", "pause"),
        "schedule": (tasks.tick.module_path, "pause"),
    }[model]
    assert selected in text(client.get(list_of(model)))
    answer = client.post(list_of(model), {"selected": selected, "action": action}, follow=True)
    assert f"{action.capitalize()}: 1" in text(answer)
    if model == "job":
        client.post(page_of(waiting.id), {"action": "retry"})
        assert run_sync(site.app.get(int(waiting.id))).state is State.PENDING


@pytest.mark.every_store
def test_queues_are_paused_and_resumed(site: Any) -> None:
    tasks.add.using(queue_name="mail").enqueue(1, 2)
    client = client_of("view_queue", "change_queue")
    assert "mail" in text(client.get(list_of("queue")))
    client.post(list_of("queue"), {"selected": "mail", "action": "pause"})
    assert [queue.paused for queue in run_sync(site.app.queues.list()) if queue.name == "mail"] == [
        True
    ]
    client.post(list_of("queue"), {"selected": "mail", "action": "resume"})
    assert not any(queue.paused for queue in run_sync(site.app.queues.list()))


@pytest.mark.every_store
def test_schedules_are_paused_resumed_and_run(site: Any) -> None:
    site.work()
    name = tasks.tick.module_path
    client = client_of("view_schedule", "change_schedule")
    assert name in text(client.get(list_of("schedule")))
    client.post(list_of("schedule"), {"selected": name, "action": "pause"})
    assert [one.paused for one in run_sync(site.app.schedules.list())] == [True]
    client.post(list_of("schedule"), {"selected": name, "action": "resume"})
    assert [one.paused for one in run_sync(site.app.schedules.list())] == [False]
    client.post(list_of("schedule"), {"selected": name, "action": "run now"})
    assert [job.task for job in run_sync(site.app.find())] == [name]


@pytest.mark.parametrize("model", LISTS)
def test_nothing_is_shown_without_permission(site: Any, model: str) -> None:
    client = client_of(*(f"view_{other}" for other in LISTS if other != model))
    assert client.get(list_of(model)).status_code == 403
    assert client.post(list_of(model), {"action": "pause"}).status_code == 403
    assert list_of(model) not in text(client.get(reverse("admin:index")))


@pytest.mark.parametrize(
    ("model", "action"),
    [("job", "retry"), ("job", "cancel"), ("queue", "pause"), ("schedule", "run now")],
)
def test_nothing_is_changed_without_permission(site: Any, model: str, action: str) -> None:
    result = tasks.add.enqueue(1, 2)
    client = client_of(*(f"view_{one}" for one in LISTS))
    selected = {"job": result.id, "queue": "default", "schedule": tasks.tick.module_path}[model]
    answer = client.post(list_of(model), {"selected": selected, "action": action})
    assert answer.status_code == 403
    assert f'value="{action}"' not in text(client.get(list_of(model)))
    assert client.post(page_of(result.id), {"action": "cancel"}).status_code == 403
    assert run_sync(site.app.get(int(result.id))).state is State.PENDING
    assert not any(queue.paused for queue in run_sync(site.app.queues.list()))


def test_page_of_a_job_needs_permission_and_a_job(site: Any) -> None:
    result = tasks.add.enqueue(1, 2)
    client = client_of("view_queue")
    assert client.get(page_of(result.id)).status_code == 403
    Client().force_login(User.objects.get())
    assert Client().get(page_of(result.id)).status_code == 302  # to the login
    User.objects.all().delete()
    client = client_of("view_job")
    assert client.get(page_of("12345")).status_code == 404
    assert client.get(page_of("x")).status_code == 404
    assert client.get(page_of("9" * 30)).status_code == 404


@pytest.mark.every_store
@pytest.mark.parametrize("given", ["9" * 30, "-1", "x", "\0", "٣", "x" * 10_000])
def test_senseless_values_are_answered(site: Any, given: str) -> None:
    client = client_of(*(f"{may}_{model}" for may in ("view", "change") for model in LISTS))
    for name in ("after", "queue", "task", "state"):
        for model in LISTS:
            assert client.get(list_of(model), {name: given}).status_code == 200, (model, name)
    for model, action in (("job", "cancel"), ("job", "retry"), ("schedule", "run now")):
        selected = {"selected": given, "action": action}
        answer = client.post(list_of(model), selected, follow=True)
        assert 'class="error"' in text(answer), (model, action)


def test_nothing_can_be_added_or_deleted(site: Any) -> None:
    result = tasks.add.enqueue(1, 2)
    User.objects.create_superuser("root", password="secret")
    client = Client()
    client.force_login(User.objects.get())
    assert client.post(reverse("admin:penstock_job_add")).status_code == 403
    gone = client.post(reverse("admin:penstock_job_delete", args=[result.id]), {"post": "yes"})
    assert gone.status_code in {403, 302, 404}
    assert run_sync(site.app.get(int(result.id))).state is State.PENDING


def test_forged_request_changes_nothing(site: Any) -> None:
    result = tasks.add.enqueue(1, 2)
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root", password="secret"))
    assert client.post(page_of(result.id), {"action": "cancel"}).status_code == 403
    assert run_sync(site.app.get(int(result.id))).state is State.PENDING


def test_secrets_are_hidden(site: Any) -> None:
    result = tasks.note.enqueue(path="/shown", text="x")
    secret = tasks.add.enqueue(a={"password": "hunter2"}, b=1)
    client = client_of("view_job")
    assert "/shown" in text(client.get(page_of(result.id)))
    assert "hunter2" not in text(client.get(page_of(secret.id)))


def test_long_lists_have_pages(site: Any) -> None:
    for n in range(101):
        tasks.add.enqueue(n, n)
    client = client_of("view_job")
    first = text(client.get(list_of("job")))
    assert "More" in first
    second = text(client.get(list_of("job"), {"after": "2"}))
    assert page_of("1") in second
    assert "More" not in second


def test_each_backend_has_its_pages(site: Any) -> None:
    both = {"default": {"BACKEND": BACKEND}, "other": {"BACKEND": BACKEND}}
    client = client_of("view_job")
    with override_settings(TASKS=both):
        assert '<select name="backend">' in text(client.get(list_of("job")))
        assert client.get(list_of("job"), {"backend": "other"}).status_code == 200
        assert client.get(list_of("job"), {"backend": "unknown"}).status_code == 404
