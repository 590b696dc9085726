"""Addresses of this room: REST, and the practice page."""

from django.urls import URLPattern, path

from apps.rehearsal import views
from apps.rehearsal.api import Faults

api_urlpatterns: list[URLPattern] = [
    path("practice/faults", Faults.as_view(), name="practice-faults-rest"),
]

urlpatterns: list[URLPattern] = [
    path("practice", views.practice, name="practice"),
    path("practice/faults", views.faults, name="practice-faults"),
    path("practice/switch", views.switch, name="practice-switch"),
]
