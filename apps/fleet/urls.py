"""REST addresses of the fleet."""

from django.urls import URLPattern, path

from apps.fleet.api import ledger, names, nodes

api_urlpatterns: list[URLPattern] = [
    path("clusters", nodes.Clusters.as_view()),
    path("clusters/<str:code>/exclusions", ledger.ClusterExclusions.as_view()),
    path("clusters/<str:code>/exclusions/export", ledger.ClusterExclusionsExport.as_view()),
    path("clusters/<str:code>/names", names.ClusterNames.as_view()),
    path("nodes", nodes.Nodes.as_view()),
    path("nodes/<str:code>", nodes.OneNode.as_view()),
    path("nodes/<str:code>/exclusions", nodes.NodeExclusions.as_view()),
    path("nodes/<str:code>/aliases", names.NodeAliases.as_view()),
    path("nodes/<str:code>/aliases/<str:name>", names.NodeAlias.as_view()),
    path("nodes/<str:code>/apart", names.NodeApart.as_view()),
]
