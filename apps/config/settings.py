"""Settings of one installation. Everything that differs between sites comes from the environment (see docs/deploy.md)."""

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from apps.config.pipeline import ROUTES, SWEEPS

BASE_DIR = Path(__file__).resolve().parents[2]
DATA_DIR = Path(os.environ.get("PACELINE_DATA_DIR") or BASE_DIR / "data").resolve()


def _adopt_running_installation() -> None:
    """Take over the addresses that a running supervisor left in its data folder, where the environment names none."""
    try:
        lines = (DATA_DIR / "env").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        name, sign, value = line.partition("=")
        if sign and name not in os.environ:
            os.environ[name] = value


def _secret_key() -> str:
    """Return the installation's key: from the environment, else from a file that is made at first need."""
    if key := os.environ.get("PACELINE_SECRET_KEY"):
        return key
    path = DATA_DIR / "secret_key"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        pass
    key = secrets.token_urlsafe(48)
    try:
        DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(key)
    except FileExistsError:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        pass  # a read-only place: this process keeps a key of its own
    return key


DATABASE_POOL = {"min_size": 0, "max_size": 12, "timeout": 10.0, "max_idle": 60.0, "reconnect_timeout": 2.0}
"""What one process may hold: requests beyond it wait for a moment. A database that is back is found within seconds."""


def _database(url: str) -> dict[str, Any]:
    """Return Django's connection settings for a `postgresql://` address, socket folders as `?host=` included."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "paceline",
        "USER": unquote(parts.username or query.pop("user", "paceline")),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", "") or unquote(parts.hostname or ""),
        "PORT": query.pop("port", "") or str(parts.port or ""),
        # Each request of the web process has a thread of its own: connections that stay with their thread would pile up.
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 5, "application_name": "paceline", "pool": DATABASE_POOL, **query},
    }


def _flag(name: str, default: bool) -> bool:
    return os.environ.get(name, "1" if default else "0").lower() in {"1", "true", "yes", "on"}


_adopt_running_installation()

SECRET_KEY = _secret_key()
DEBUG = _flag("PACELINE_DEBUG", False)
BIND = os.environ.get("PACELINE_BIND") or "127.0.0.1:8000"
PUBLIC_URL = (os.environ.get("PACELINE_PUBLIC_URL") or f"http://{BIND}").rstrip("/")
_public = urlsplit(PUBLIC_URL)
MORE_HOSTS = [host for name in os.environ.get("PACELINE_ALLOWED_HOSTS", "").split(",") if (host := name.strip())]
ALLOWED_HOSTS = [*dict.fromkeys(["127.0.0.1", "localhost", "[::1]", _public.hostname or "localhost", *MORE_HOSTS])]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]


def _origins() -> list[str]:
    """Return whose pages may open a websocket: those that we serve ourselves, by whatever name, as asked for or by a proxy."""
    own_port, proxy_port = BIND.rpartition(":")[2], f":{_public.port}" if _public.port else ""
    origins = [PUBLIC_URL, f"http://{BIND}"]
    origins += [f"http://{host}:{own_port}" for host in ("127.0.0.1", "localhost", *MORE_HOSTS)]
    origins += [f"{_public.scheme}://{host}{proxy_port}" for host in MORE_HOSTS]
    return [*dict.fromkeys(origins)]


WEBSOCKET_ORIGINS = _origins()
HTTPS = _public.scheme == "https"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "axes",
    "channels",
    "csp",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "apps.common",
    "apps.journal",
    "apps.accounts",
    "apps.fleet",
    "apps.runs",
    "apps.telemetry",
    "apps.diagnosis",
    "apps.incidents",
    "apps.remediation",
    "apps.intake",
    "apps.console",
    "apps.rehearsal",
    "apps.config",
]

MIDDLEWARE = [
    "apps.common.requests.request_id_middleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "apps.config.addresses.zero_byte_middleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "apps.config.urls"
ASGI_APPLICATION = "apps.config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": _database(os.environ.get("DATABASE_URL") or "postgresql://paceline@localhost/paceline")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = os.environ.get("REDIS_URL") or "redis://localhost:6379/0"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [{"address": REDIS_URL, "socket_connect_timeout": 2}],
            "prefix": os.environ.get("PACELINE_CHANNEL_PREFIX", "paceline"),
        },
    }
}

CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1) if REDIS_URL.startswith("unix://") else REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 900,
    "socket_timeout": 10,
    "socket_connect_timeout": 2,
    "global_keyprefix": os.environ.get("PACELINE_CHANNEL_PREFIX", "paceline") + ":",
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_MAX_MEMORY_PER_CHILD = 400_000
CELERY_TASK_DEFAULT_QUEUE = "watch"
CELERY_TASK_CREATE_MISSING_QUEUES = True
CELERY_TASK_ROUTES = ROUTES
CELERY_BEAT_SCHEDULE = {
    name: {"task": name, "schedule": period_s, "options": {"queue": queue, "expires": max(period_s, 2.0) * 5}}
    for name, (queue, period_s) in SWEEPS.items()
}
CELERY_TIMEZONE = "UTC"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in"
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_LOCKOUT_TEMPLATE = "accounts/locked.html"
AXES_VERBOSE = False

SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = False  # the proxy in front decides; see docs/deploy.md
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# Nothing inline anywhere: Plotly sets styles through the CSSOM; its style elements are kept out by the page's plotly_head.html.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:", "blob:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
    },
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT = os.environ.get("PACELINE_STATIC_ROOT") or None  # None: served from where the packages keep them
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 60 if not _flag("PACELINE_STATIC_CACHE", False) else 86_400

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.accounts.api.TokenAuthentication",
        "apps.accounts.api.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["apps.common.rest.ScopePermission"],
    "DEFAULT_RENDERER_CLASSES": ["apps.common.rest.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["apps.common.rest.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "apps.common.rest.error_answer",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,  # what ?format= means is each export's own
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Paceline",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["apps.common.rest.ScopePermission"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "COMPONENT_SPLIT_REQUEST": True,
}

EMAIL_HOST = os.environ.get("PACELINE_EMAIL_HOST", "")
EMAIL_PORT = int(os.environ.get("PACELINE_EMAIL_PORT", "25"))
EMAIL_HOST_USER = os.environ.get("PACELINE_EMAIL_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("PACELINE_EMAIL_PASSWORD", "")
EMAIL_USE_TLS = _flag("PACELINE_EMAIL_TLS", False)
EMAIL_TIMEOUT = 10
# Without a mail server, mails are written to the data folder: nothing is lost, and a first try needs no set-up.
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'filebased'}.EmailBackend"
EMAIL_FILE_PATH = DATA_DIR / "mail"
DEFAULT_FROM_EMAIL = os.environ.get("PACELINE_EMAIL_FROM", "paceline@localhost")

DATA_UPLOAD_MAX_MEMORY_SIZE = 70 * 2**20

PACELINE_LIMITS = {
    # Bounds of CONTRACT.md. A site can raise them; each is enforced while the input is read.
    "report_bytes": 16 * 2**20,
    "dump_bytes": 64 * 2**20,
    "log_bytes": 2**30,
    "metrics_per_run": 64,
    "ranks_per_attempt": 131_072,
    "inbox_bytes": 512 * 2**20,
    "inbox_rows": 500_000,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("PACELINE_LOG_LEVEL", "INFO")},
    "loggers": {
        "axes": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},  # a line for each of some tasks a second
        "django.channels.server": {"level": "WARNING"},
    },
}
