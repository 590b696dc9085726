"""REST addresses of what a site sends that it has already."""

from django.urls import URLPattern, path

from apps.intake import api

api_urlpatterns: list[URLPattern] = [
    path("ingest/scheduler", api.IngestScheduler.as_view()),
]
