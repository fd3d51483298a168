"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order and, later, its confirmation."""

    item = models.CharField(max_length=100)
    confirmed = models.BooleanField(default=False)

    def __str__(self) -> str:
        """Return what was ordered."""
        return str(self.item)
