"""The Django app: after every `manage.py migrate`, the tables of its databases are up to date."""

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate

from penstock.django import databases


class PenstockConfig(AppConfig):
    """The app `penstock`."""

    name = "penstock.django"
    label = "penstock"
    verbose_name = "Penstock"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Migrate with Django, and let go of test databases before Django destroys them."""
        post_migrate.connect(_migrate, sender=self)
        databases.close_before_test_databases_are_destroyed()


def _migrate(*, using: str, **_: Any) -> None:
    """Bring the tables up to date, which a new version of Penstock may have changed."""
    from penstock.django.backend import used_databases

    if using in used_databases():
        databases.migrate(connections[using])
