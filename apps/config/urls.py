"""Every address of an installation. Rooms bring their own lists; this file only mounts them."""

from importlib import import_module

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from apps.common.access import READ
from apps.common.api import Door

REST_ROOMS = (
    "fleet",
    "runs",
    "telemetry",
    "diagnosis",
    "incidents",
    "remediation",
    "rehearsal",
)


class Schema(Door, SpectacularAPIView):
    """The OpenAPI description, made from the code."""

    scopes = {"GET": READ}


class Docs(Door, SpectacularSwaggerView):
    """The description to read and try, served without any outside address."""

    scopes = {"GET": READ}


def _rest() -> list[URLPattern | URLResolver]:
    found: list[URLPattern | URLResolver] = []
    for room in REST_ROOMS:
        found += import_module(f"apps.{room}.urls").api_urlpatterns
    return found


urlpatterns = [
    path("api/v1/schema", Schema.as_view(), name="schema"),
    path("api/v1/docs", Docs.as_view(url_name="schema"), name="docs"),
    path("api/v1/", include(_rest())),
    path("", include("apps.accounts.urls")),
    path("", include("apps.console.urls")),
    path("", include("apps.rehearsal.urls")),
]

handler404 = "apps.console.views.errors.not_found"
handler403 = "apps.console.views.errors.forbidden"
handler500 = "apps.console.views.errors.failed"
