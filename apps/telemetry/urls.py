"""REST addresses of this room."""

from django.urls import URLPattern, path

from apps.telemetry.api import check, gauges, heatmap, ranks, reports

api_urlpatterns: list[URLPattern] = [
    path("attempts/<str:attempt>/reports", reports.AttemptReports.as_view()),
    path("attempts/<str:attempt>/ranks", ranks.AttemptRanks.as_view()),
    path("attempts/<str:attempt>/refusals", ranks.AttemptRefusals.as_view()),
    path("check", check.Check.as_view()),
    path("nodes/<str:node>/reports", reports.NodeReports.as_view()),
    path("nodes/<str:node>/series", gauges.NodeSeries.as_view()),
    path("attempts/<str:attempt>/heatmap", heatmap.AttemptHeatmap.as_view()),
    path("attempts/<str:attempt>/series", heatmap.AttemptSeries.as_view()),
    path("runs/<str:code>/heatmap", heatmap.RunHeatmap.as_view()),
]
