"""Addresses of the pages."""

from django.urls import path, register_converter

from apps.console.addresses import NameConverter
from apps.console.views import actions, assets, incidents, ledger, nodes, run, runs, settings

register_converter(NameConverter, "name")

urlpatterns = [
    path("", runs.runs, name="home"),
    path("runs", runs.runs, name="runs"),
    path("runs/<str:slug>", run.run, name="run"),
    path("runs/<str:slug>/parts/<slug:name>", run.part, name="run-part"),
    path("runs/<str:slug>/heat", run.heat, name="run-heat"),
    path("runs/<str:slug>/lanes", run.lanes, name="run-lanes"),
    path("runs/<str:slug>/placement", run.placement, name="run-placement"),
    path("runs/<str:slug>/charts/<slug:name>", run.chart, name="run-chart"),
    path("runs/<str:slug>/findings/<int:number>/mute", run.mute, name="finding-mute"),
    path("runs/<str:slug>/actions/new", actions.of_run, name="action-new"),
    path("actions/<str:code>", actions.action, name="action"),
    path("actions/<str:code>/decide", actions.decide, name="action-decide"),
    path("copied", actions.copied, name="command-copied"),
    path("incidents", incidents.incidents, name="incidents"),
    path("incidents/<int:number>", incidents.incident, name="incident"),
    path("incidents/<int:number>/parts/<slug:name>", incidents.part, name="incident-part"),
    path("incidents/<int:number>/work", incidents.work, name="incident-work"),
    path("incidents/<int:number>/notes", incidents.notes, name="incident-notes"),
    path("incidents/<int:number>/notes/<int:note_id>", incidents.note, name="incident-note"),
    path("nodes", nodes.nodes, name="nodes"),
    path("nodes/<name:cluster>/<name:name>", nodes.node, name="node"),
    path("nodes/<name:cluster>/<name:name>/card", nodes.card, name="node-card"),
    path("nodes/<name:cluster>/<name:name>/actions/new", actions.of_node, name="node-action-new"),
    path("nodes/<name:cluster>/<name:name>/charts/<slug:chart>", nodes.chart, name="node-chart"),
    path("ledger", ledger.ledger, name="ledger"),
    path("ledger/export", ledger.export, name="ledger-export"),
    path("ledger/differences/<int:number>", ledger.drift, name="drift-decide"),
    path("ledger/names/<int:number>", ledger.name, name="name-place"),
    path("ledger/keep/<int:number>", ledger.keep, name="node-keep"),
    path("settings", settings.settings, name="settings"),
    path("find", runs.find, name="find"),
    path("watch", runs.watch, name="watch"),
    path("assets/plotly-<slug:tag>.js", assets.plotly_js, name="plotly-js"),
]
