"""django-tasks-db, the database backend of the authors of the framework."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

from django.core.management import call_command

from benchmarks.contenders.django import DjangoQueue


class TasksDbQueue(DjangoQueue):
    """Its worker runs one task at a time, and looks once a second while there is none."""

    backend = "django_tasks_db.DatabaseBackend"
    apps = ("django_tasks_db",)

    def work(self, *, until_empty: bool) -> None:
        call_command("db_worker", batch=until_empty, startup_delay=False, reload=False)


class PostgresTasksDbQueue(TasksDbQueue):
    """The same on PostgreSQL."""

    on_postgres = True
