"""REST addresses of incidents."""

from django.urls import URLPattern, path, re_path

from apps.incidents import api

api_urlpatterns: list[URLPattern] = [
    path("incidents", api.Incidents.as_view()),
    path("incidents/<str:code>", api.OneIncident.as_view()),
    path("incidents/<str:code>/timeline", api.Timeline.as_view()),
    path("incidents/<str:code>/export", api.Export.as_view()),
    re_path(
        r"^incidents/(?P<code>[^/]+)/(?P<what>notes|acknowledge|assign|mitigate|resolve|false_alarm)$",
        api.Work.as_view(),
    ),
    path("runs/<str:code>/incidents", api.RunIncidents.as_view()),
]
