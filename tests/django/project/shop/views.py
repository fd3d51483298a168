from typing import Any

from django.http import HttpResponse

from tests.django.project.shop.models import Order
from tests.django.project.shop.tasks import add, handle


def buy(request: Any) -> HttpResponse:
    """Store an order and its task; fail afterwards if asked to."""
    order = Order.objects.create(item="tea")
    handle.enqueue(order.pk)
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse(str(order.pk))


async def buy_async(request: Any) -> HttpResponse:
    """Enqueue from an event loop."""
    result = await add.aenqueue(1, 2)
    await result.arefresh()
    return HttpResponse(result.id)
