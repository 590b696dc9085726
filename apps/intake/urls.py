"""REST addresses of this room."""

from django.urls import URLPattern

api_urlpatterns: list[URLPattern] = []
