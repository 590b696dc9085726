"""The ASGI entry: websockets to the console, reports to the lean door, everything else to Django."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # first: it loads the apps that the imports below need

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator
from django.conf import settings

from apps.console.routing import websocket_urlpatterns
from apps.telemetry.door import ReportDoor

# The stubs know another shape of ASGI applications and of routes than the one that these packages share at run time.
websockets = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))  # type: ignore[arg-type]
rooms = ProtocolTypeRouter(
    {"http": django_application, "websocket": OriginValidator(websockets, settings.WEBSOCKET_ORIGINS)}
)
application = ReportDoor(rooms)  # type: ignore[arg-type]
