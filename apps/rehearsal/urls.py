"""REST addresses of this room."""

from django.urls import URLPattern, path

from apps.rehearsal.api import Faults

api_urlpatterns: list[URLPattern] = [
    path("practice/faults", Faults.as_view(), name="practice-faults"),
]
