"""What Django REST framework loads by name: how bodies are read and written, who passes, how errors look."""

import logging
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions, parsers, renderers
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import Principal
from apps.common.errors import BadRequest, PacelineError
from apps.common.unpack import too_large, unpacked

log = logging.getLogger(__name__)

MOST_BODY_BYTES = 16 * 2**20
"""As much as the largest report; doors that take more have parsers of their own."""


class JSONRenderer(renderers.BaseRenderer):
    """Write answers as JSON; values that are not finite become null."""

    media_type = "application/json"
    format = "json"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:  # noqa: ARG002
        if data is None:
            return b""
        try:
            return _written(data)
        except TypeError:  # a number past 64 bits, stored before they were refused
            return _written(_within_64_bits(data))


class JSONParser(parsers.BaseParser):
    """Read a JSON object."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:  # noqa: ARG002
        raw = stream.read(MOST_BODY_BYTES + 1)
        if len(raw) > MOST_BODY_BYTES:
            raise too_large(MOST_BODY_BYTES)
        if parser_context["request"].headers.get("Content-Encoding", "").lower() == "gzip":
            raw = unpacked(raw, most=MOST_BODY_BYTES)
        try:
            content = orjson.loads(raw or b"{}")
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"The body is not JSON: {error}.") from error
        if b"\\u0000" in raw and has_nul(content):
            raise BadRequest("The body holds a NUL character (\\u0000); no text here can have one.")
        return content


class ScopePermission(BasePermission):
    """Let a caller through who holds the scope that the view names for this method (`scopes = {"GET": "read"}`)."""

    def has_permission(self, request: Request, view: Any) -> bool:
        needed: dict[str, str] = getattr(view, "scopes", {})
        scope = needed.get("GET" if request.method in {"HEAD", "OPTIONS"} else str(request.method))
        principal = request.auth
        if not isinstance(principal, Principal):
            return False
        if scope is None and request.method != "OPTIONS":
            if not hasattr(view, str(request.method).lower()):
                raise exceptions.MethodNotAllowed(str(request.method))
            return False
        if scope is None:
            return True  # which methods there are is said to whoever may ask at all
        if not principal.may(scope):
            self.message = (
                f"This needs the scope “{scope}”; {principal.name} has {', '.join(sorted(principal.scopes))}."
            )
            return False
        return True


def _written(data: Any) -> bytes:
    return orjson.dumps(data, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _within_64_bits(data: Any) -> Any:
    """The same with whole numbers that no reader of JSON takes for such as texts."""
    if isinstance(data, dict):
        return {name: _within_64_bits(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_within_64_bits(value) for value in data]
    if isinstance(data, int) and not isinstance(data, bool) and not -(2**63) <= data < 2**64:
        return str(data)
    return data


def has_nul(content: Any) -> bool:
    """Return whether a text anywhere in decoded JSON holds a NUL character, which PostgreSQL stores in no text."""
    waiting = [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if "\0" in one:
                return True
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
    return False


def flat(errors: Any) -> str:
    """Return nested complaints about fields as one sentence."""
    if isinstance(errors, dict):
        return "; ".join(f"{name}: {flat(error)}" for name, error in errors.items())
    if isinstance(errors, list | tuple):
        return " ".join(flat(error) for error in errors)
    return str(errors)


def error_body(*, code: str, message: str, facts: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Return the one shape of an error."""
    return {"error": {"code": code, "message": message, "facts": facts, "request_id": request_id}}


def error_answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn whatever a view raised into the one shape; what nobody foresaw stays a 500 with an id to quote."""
    request: Request | None = context.get("request")
    request_id = getattr(getattr(request, "_request", None), "paceline_id", "")
    code, message, facts, status, headers = _describe(error)
    if status == 500:
        log.exception("request %s failed", request_id, exc_info=error)
    return Response(error_body(code=code, message=message, facts=facts, request_id=request_id), status, headers=headers)


def _describe(error: Exception) -> tuple[str, str, dict[str, Any], int, dict[str, str]]:
    if isinstance(error, PacelineError):
        headers = {"Retry-After": str(error.facts.get("retry_after_s", 5))} if error.http_status in {429, 503} else {}
        return error.code, error.message, dict(error.facts), error.http_status, headers
    if isinstance(error, Http404):
        return "not_found", "There is nothing here.", {}, 404, {}
    if isinstance(error, PermissionDenied):
        return "forbidden", "You may not do this.", {}, 403, {}
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        message = str(error.detail)
        return "unauthenticated", message, {}, 401, {"WWW-Authenticate": "Bearer"}
    if isinstance(error, exceptions.Throttled):
        wait = int(getattr(error, "wait", None) or 5)
        return "busy", "Too many requests.", {"retry_after_s": wait}, 429, {"Retry-After": str(wait)}
    if isinstance(error, exceptions.APIException):
        codes = {
            403: "forbidden",
            404: "not_found",
            405: "method_not_allowed",
            406: "not_acceptable",
            415: "unsupported_media_type",
        }
        return codes.get(error.status_code, "bad_request"), flat(error.detail), {}, error.status_code, {}
    return "internal", "Something failed on our side. Look whether it was done before you ask again.", {}, 500, {}
