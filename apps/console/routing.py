"""Addresses of the live feeds."""

from django.urls import path, re_path

from apps.console.consumers import FleetFeed, Nowhere, StreamFeed

websocket_urlpatterns = [
    path("ws/feed", StreamFeed.as_asgi()),  # type: ignore[arg-type]  # an ASGI application, as Channels has it
    path("ws/fleet", FleetFeed.as_asgi()),  # type: ignore[arg-type]
    re_path("", Nowhere.as_asgi()),  # type: ignore[arg-type]
]
