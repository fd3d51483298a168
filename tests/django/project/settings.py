import json
import os
from importlib.util import find_spec

_BACKPORT = [] if find_spec("django.tasks") else ["django_tasks"]

SECRET_KEY = "of-tests"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
LOGGING_CONFIG = None
ROOT_URLCONF = "tests.django.project.urls"
ALLOWED_HOSTS = ["*"]
DATABASES = {"default": json.loads(os.environ.get("DJANGO_TEST_DATABASE", "{}"))}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *_BACKPORT,
    "penstock.django",
    "tests.django.project.shop",
]
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
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TASKS = {
    "default": {
        "BACKEND": "penstock.django.backend.PenstockBackend",
        "QUEUES": ["default", "mail"],
    }
}
