from django.contrib import admin
from django.urls import path

from tests.django.project.shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("buy/", views.buy),
    path("buy-async/", views.buy_async),
]
