"""REST addresses of findings."""

from django.urls import URLPattern, path, re_path

from apps.diagnosis import api

api_urlpatterns: list[URLPattern] = [
    path("findings", api.Findings.as_view()),
    path("findings/<str:finding>", api.OneFinding.as_view()),
    re_path(r"^findings/(?P<finding>[^/]+)/(?P<how>dismiss|snooze)$", api.FindingMute.as_view()),
    path("runs/<str:code>/findings", api.RunFindings.as_view()),
    path("attempts/<str:attempt>/detectors", api.Detectors.as_view()),
]
