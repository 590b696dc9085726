"""How REST callers are known: a bearer token, or a browser's session with its CSRF check."""

from typing import Any

from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.accounts.selectors import principal_by_token_digest, principal_of_user
from apps.accounts.services import digest_of, token_used
from apps.common.access import Principal
from apps.common.clock import now


def bearer_of(header: str) -> str | None:
    """Return the token in an `Authorization` header, or None if it carries none."""
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer …`."""

    def authenticate(self, request: Request) -> tuple[None, Principal] | None:
        secret = bearer_of(request.headers.get("Authorization", ""))
        if secret is None:
            return None
        principal = principal_by_token_digest(digest_of(secret))
        if principal is None:
            raise AuthenticationFailed("This token is unknown or was revoked.")
        token_used(token_id=principal.id, now=now())
        return None, principal

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        return "Bearer"


class BrowserAuthentication(SessionAuthentication):
    """A signed-in page; writes need its CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, Principal] | None:
        found = super().authenticate(request)
        if found is None:
            return None
        return found[0], principal_of_user(found[0])
