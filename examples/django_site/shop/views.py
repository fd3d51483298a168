"""Takes orders."""

from django.http import HttpRequest, HttpResponse

from .models import Order
from .tasks import confirm


def buy(request: HttpRequest, item: str) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Store an order and its task: both or neither, because the request is one transaction."""
    order = Order.objects.create(item=item)
    result = confirm.enqueue(order.pk)
    if item == "nothing":
        raise ValueError("there is nothing to buy")
    return HttpResponse(f"order {order.pk} is confirmed soon, by task {result.id}\n")
