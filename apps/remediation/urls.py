"""REST addresses of actions and schedulers."""

from django.urls import URLPattern, path

from apps.remediation.api import actions, ledger, schedulers

api_urlpatterns: list[URLPattern] = [
    path("actions", actions.Actions.as_view()),
    path("actions/<str:action>", actions.OneAction.as_view()),
    path("actions/<str:action>/accept", actions.Accept.as_view()),
    path("actions/<str:action>/dismiss", actions.Dismiss.as_view()),
    path("actions/<str:action>/cancel", actions.Cancel.as_view()),
    path("actions/<str:action>/settle", actions.Settle.as_view()),
    path("runs/<str:code>/restart-preview", actions.RestartPreview.as_view()),
    path("clusters/<str:code>/scheduler", schedulers.ClusterScheduler.as_view()),
    path("clusters/<str:code>/check", ledger.ClusterCheck.as_view()),
    path("clusters/<str:code>/drift", ledger.ClusterDrift.as_view()),
    path("clusters/<str:code>/drift/<str:drift>/decide", ledger.Decide.as_view()),
    path("nodes/<str:code>/keep", ledger.NodeKeep.as_view()),
]
