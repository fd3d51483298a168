"""The queue of a Django project with its tasks: `penstock worker penstock.django.worker:default`.

After the colon is the name of a backend in `TASKS`.
"""

import django
from django.apps import apps

from penstock.django.framework import task_backends
from penstock.engine.penstock import Penstock


def __getattr__(backend: str) -> Penstock:
    if backend.startswith("_"):
        raise AttributeError(backend)
    if not apps.ready:
        django.setup()
    if backend not in task_backends.settings:
        raise AttributeError(f"TASKS has no backend {backend!r}")
    app: Penstock = task_backends[backend].worker_app()
    return app
