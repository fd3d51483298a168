"""A Django project for tests; in this process, its database is another one for every test."""

import os
import time


def set_up() -> None:
    """Set Django up with this project, once, and leave the environment as it is.

    Django takes its settings from a variable and sets the time zone of the process; other tests,
    and the processes that they start, share both.
    """
    from django.apps import apps

    if apps.ready:
        return
    before = dict(os.environ)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.django.project.settings"
    from django import setup

    setup()
    os.environ.clear()
    os.environ.update(before)
    time.tzset()
