"""Addresses of the pages."""

from django.urls import path

from apps.console.views import assets, nodes, run, runs, settings

urlpatterns = [
    path("", runs.runs, name="home"),
    path("runs", runs.runs, name="runs"),
    path("runs/<slug:slug>", run.run, name="run"),
    path("runs/<slug:slug>/parts/<slug:name>", run.part, name="run-part"),
    path("runs/<slug:slug>/lanes", run.lanes, name="run-lanes"),
    path("runs/<slug:slug>/placement", run.placement, name="run-placement"),
    path("nodes", nodes.nodes, name="nodes"),
    path("nodes/<str:cluster>/<str:name>", nodes.node, name="node"),
    path("settings", settings.settings, name="settings"),
    path("find", runs.find, name="find"),
    path("watch", runs.watch, name="watch"),
    path("assets/plotly-<slug:tag>.js", assets.plotly_js, name="plotly-js"),
]
