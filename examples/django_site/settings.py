"""The settings of the shop: one SQLite file for orders and jobs."""

from importlib.util import find_spec
from pathlib import Path

SECRET_KEY = "only-for-this-example"  # noqa: S105 - a real project has a real one
DEBUG = True
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(__file__).parent / "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        "ATOMIC_REQUESTS": True,
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    # Django 5.2 has its Tasks framework in a package of its own.
    *(() if find_spec("django.tasks") else ("django_tasks",)),
    "penstock.django",
    "shop",
]
TASKS = {"default": {"BACKEND": "penstock.django.backend.PenstockBackend"}}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
