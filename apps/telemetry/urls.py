"""REST addresses of this room."""

from django.urls import URLPattern, path

from apps.telemetry.api import heatmap

api_urlpatterns: list[URLPattern] = [
    path("attempts/<str:attempt>/heatmap", heatmap.AttemptHeatmap.as_view()),
]
