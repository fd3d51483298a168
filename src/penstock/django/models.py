"""Models without tables of their own: what the admin shows, and its permissions."""

from django.db import models


class Job(models.Model):
    """A job: who may view it, and who may retry or cancel it (`change_job`)."""

    class Meta:
        """Jobs are read and changed through the API of Penstock, not by the ORM."""

        managed = False
        default_permissions = ("view", "change")
        verbose_name = "job"


class Queue(models.Model):
    """A queue: who may view it, and who may pause or resume it (`change_queue`)."""

    class Meta:
        """As for jobs."""

        managed = False
        default_permissions = ("view", "change")
        verbose_name = "queue"


class Schedule(models.Model):
    """A schedule: who may view it, and who may pause, resume or run it (`change_schedule`)."""

    class Meta:
        """As for jobs."""

        managed = False
        default_permissions = ("view", "change")
        verbose_name = "schedule"
