"""The settings of the project, from the environment."""

import json
import logging
import os
from importlib.util import find_spec

_database, _backend, _apps = json.loads(os.environ["BENCHMARK_DJANGO"])
_backport = [] if find_spec("django.tasks") else ["django_tasks"]

# Two of the workers print a line for every task unless logging is configured.
logging.disable(logging.INFO)

SECRET_KEY = "of-benchmarks"  # noqa: S105 - nothing is signed
USE_TZ = True
LOGGING_CONFIG = None
DATABASES = {"default": _database}
INSTALLED_APPS = [*_backport, *_apps]
TASKS = {
    "default": {
        "BACKEND": _backend,
        "OPTIONS": {"modules": ["benchmarks.contenders.django.tasks"]}
        if _backend.startswith("penstock")
        else {},
    }
}
