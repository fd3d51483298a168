"""Creates the tables of the queue, by the migrator that every store uses."""

from typing import Any, ClassVar

from django.db import migrations, models

from penstock.django import databases


def _create(_apps: Any, schema_editor: Any) -> None:
    databases.migrate(schema_editor.connection)


def _keep(_apps: Any, _schema_editor: Any) -> None:
    """Do nothing: the jobs stay, and with the next `migrate` their tables are used again."""


def _unmanaged(name: str) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name,
        fields=[("id", models.BigAutoField(primary_key=True, serialize=False))],
        options={
            "managed": False,
            "default_permissions": ("view", "change"),
            "verbose_name": name.lower(),
        },
    )


class Migration(migrations.Migration):
    """The only migration: `manage.py migrate` brings the tables up to date by itself."""

    initial = True
    # The migrator connects itself, and must not wait for a transaction of Django.
    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        _unmanaged("Job"),
        _unmanaged("Queue"),
        _unmanaged("Schedule"),
        migrations.RunPython(_create, _keep),
    ]
