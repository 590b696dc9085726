"""Every address of an installation. Rooms bring their own lists; this file only mounts them."""

from importlib import import_module

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.response import Response

from apps.common.access import READ
from apps.common.api import Door
from apps.common.rest import JSONRenderer

REST_ROOMS = (
    "fleet",
    "runs",
    "telemetry",
    "diagnosis",
    "incidents",
    "remediation",
    "intake",
    "rehearsal",
)


class Schema(Door, SpectacularAPIView):
    """The OpenAPI description, made from the code."""

    scopes = {"GET": READ}
    renderer_classes = [JSONRenderer]


class Docs(Door, SpectacularSwaggerSplitView):
    """The description to read and try, served without any outside address and without any script of the page's own."""

    scopes = {"GET": READ}
    template_name = "docs/page.html"

    def handle_exception(self, exc: Exception) -> Response:
        """Answer errors as everywhere: this page's template has no place for them."""
        self.request.accepted_renderer = JSONRenderer()
        return super().handle_exception(exc)


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

handler400 = "apps.console.views.errors.refused"
handler404 = "apps.console.views.errors.not_found"
handler403 = "apps.console.views.errors.forbidden"
handler500 = "apps.console.views.errors.failed"
