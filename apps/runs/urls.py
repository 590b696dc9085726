"""REST addresses of runs, attempts and the log."""

from django.urls import URLPattern, path

from apps.runs.api import attempts, events, runs

api_urlpatterns: list[URLPattern] = [
    path("runs", runs.Runs.as_view()),
    path("runs/<str:code>", runs.OneRun.as_view()),
    path("runs/<str:code>/attempts", attempts.Attempts.as_view()),
    path("runs/<str:code>/chains", attempts.Chains.as_view()),
    path("runs/<str:code>/events", events.RunEvents.as_view()),
    path("attempts/<str:attempt>", attempts.OneAttempt.as_view()),
    path("attempts/<str:attempt>/end", attempts.AttemptEnd.as_view()),
    path("attempts/<str:attempt>/checkpoints", attempts.Checkpoints.as_view()),
    path("events", events.Events.as_view()),
]
