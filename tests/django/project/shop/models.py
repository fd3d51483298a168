from django.db import models


class Order(models.Model):
    """An order; its task counts how often it was handled."""

    item = models.TextField()
    handled = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.item)
