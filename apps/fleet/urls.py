"""REST addresses of the fleet."""

from django.urls import URLPattern, path

from apps.fleet import api

api_urlpatterns: list[URLPattern] = [
    path("clusters", api.Clusters.as_view()),
    path("nodes", api.Nodes.as_view()),
    path("nodes/<str:code>", api.OneNode.as_view()),
    path("nodes/<str:code>/exclusions", api.NodeExclusions.as_view()),
]
