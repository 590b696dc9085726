"""The kit of the REST doors: reading fields, paging, what was ignored, ETags."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson
from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.common.access import Principal
from apps.common.errors import BadRequest, Forbidden
from apps.common.rest import flat, has_nul

DEFAULT_LIMIT = 100
MOST_LIMIT = 1000
BIGGEST = 2**63 - 1
"""The database's whole numbers end here."""

NOT_OURS = "cursor: not a token of this listing."


class Door(APIView):
    """Base of every REST view: `scopes` names the scope each method needs."""

    scopes: ClassVar[dict[str, str]] = {}

    @property
    def principal(self) -> Principal:
        """Return who asks; permission was checked before."""
        principal = self.request.auth
        assert isinstance(principal, Principal)
        return principal

    def check_cluster(self, cluster_id: int) -> None:
        """Refuse a caller that is bound to another cluster.

        Raises:
            Forbidden: it is.
        """
        if self.principal.cluster_id not in (None, cluster_id):
            raise Forbidden("This token belongs to another cluster.")


class RequestFields(serializers.Serializer[Any]):
    """Base of request bodies: unknown names are not refused but named in `ignored`."""

    ignored: list[str]

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise BadRequest("The body must be a JSON object.")
        self.ignored = sorted(str(name)[:80] for name in data if name not in self.fields)[:50]
        return super().to_internal_value(data)


def read_fields(kind: type[RequestFields], request: Request) -> tuple[dict[str, Any], list[str]]:
    """Return the checked fields of a request's body and the names that were ignored.

    Raises:
        BadRequest: a field cannot be read; the facts name each field with its sentence.
    """
    body = kind(data=request.data)
    if not body.is_valid():
        facts = {name: flat(errors) for name, errors in body.errors.items()}
        name, sentence = next(iter(facts.items()))
        raise BadRequest(f"{name}: {sentence}", fields=facts)
    return dict(body.validated_data), body.ignored


def page_answer(rows: Sequence[dict[str, Any]], *, following: Any | None) -> Response:
    """Return a listing: `results`, and `next`, an opaque token or null."""
    return Response({"results": list(rows), "next": None if following is None else cursor_write(following)})


def cursor_write(position: Any) -> str:
    """Return an opaque token for a position in a listing."""
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def cursor_int(request: HttpRequest | Request) -> int | None:
    """Return the number that `?cursor=` names, or None.

    Raises:
        BadRequest: the token is none of this listing.
    """
    position = _cursor(request)
    if position is None or (type(position) is int and abs(position) <= BIGGEST):
        return position
    raise BadRequest(NOT_OURS)


def cursor_pair(request: HttpRequest | Request) -> tuple[str, str] | None:
    """Return the two words that `?cursor=` names, or None.

    Raises:
        BadRequest: the token is none of this listing.
    """
    position = _cursor(request)
    if position is None:
        return None
    if isinstance(position, list) and [type(part) for part in position] == [str, str]:
        return position[0], position[1]
    raise BadRequest(NOT_OURS)


def _cursor(request: HttpRequest | Request) -> Any:
    text = request.GET.get("cursor")
    if not text:
        return None
    try:
        position = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError as error:
        raise BadRequest(NOT_OURS) from error
    if has_nul(position):
        raise BadRequest(NOT_OURS)
    return position


def limit_read(request: HttpRequest | Request) -> int:
    """Return `?limit=`, 1..1,000, default 100."""
    return int_read(request, "limit", default=DEFAULT_LIMIT, least=1, most=MOST_LIMIT)


def int_read(request: HttpRequest | Request, name: str, *, default: int, least: int, most: int) -> int:
    """Return an integer query parameter.

    Raises:
        BadRequest: not a whole number, or out of bounds.
    """
    text = request.GET.get(name)
    if text in (None, ""):
        return default
    try:
        value = int(str(text))
    except ValueError as error:
        raise BadRequest(f"{name}: “{str(text)[:40]}” is not a whole number.") from error
    if not least <= value <= most:
        raise BadRequest(f"{name}: must be from {least} to {most}.")
    return value


def choice_read(request: HttpRequest | Request, name: str, *, choices: Sequence[str], default: str) -> str:
    """Return a query parameter that is one of `choices`.

    Raises:
        BadRequest: another word.
    """
    text = request.GET.get(name) or default
    if text not in choices:
        raise BadRequest(f"{name}: must be one of {', '.join(choices)}.")
    return text


def etag_of(*parts: object) -> str:
    """Return a weak-enough, strong-form ETag over `parts`."""
    return '"' + hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest() + '"'


def with_etag(request: HttpRequest | Request, etag: str, build: Callable[[], Response]) -> Response:
    """Answer 304 if the caller has `etag` already, else what `build` makes, with the tag."""
    if etag in [tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")]:
        response = Response(status=304)
    else:
        response = build()
    response["ETag"] = etag
    response["Cache-Control"] = "private, no-cache"
    return response
