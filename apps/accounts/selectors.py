"""Reading people and tokens."""

from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from types import SimpleNamespace
from typing import cast

from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import F
from django.http import HttpRequest

from apps.accounts.choices import ROLE_SCOPES
from apps.accounts.models import ApiToken, User
from apps.common.access import Principal


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as lists show it; the secret itself is not kept."""

    id: int
    name: str
    hint: str
    scopes: tuple[str, ...]
    cluster_id: int | None
    created_by: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class PersonRow:
    """A person as lists show them."""

    id: int
    name: str
    email: str
    role: str
    is_active: bool
    last_login: datetime | None


def principal_of_user(user: User) -> Principal:
    """Return the caller that a signed-in person is."""
    return Principal(kind="USER", id=user.pk, name=user.get_username(), scopes=ROLE_SCOPES[user.role])


def principal_of_session(key: str | None) -> Principal | None:
    """Return the caller whose session has this key, or None if it is over, its person left or has another password."""
    session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(cast(HttpRequest, SimpleNamespace(session=session)))  # it reads nothing else of a request
    return principal_of_user(user) if isinstance(user, User) else None


def principal_by_token_digest(digest: bytes) -> Principal | None:
    """Return the caller that a token's SHA-256 names, or None if there is none or it is revoked."""
    token = ApiToken.objects.filter(digest=digest, revoked_at=None).first()
    if token is None:
        return None
    return Principal(
        kind="TOKEN", id=token.pk, name=token.name, scopes=frozenset(token.scopes), cluster_id=token.cluster_id
    )


def tokens_all() -> list[TokenRow]:
    """Return all tokens, living ones first, then newest first."""
    rows = ApiToken.objects.order_by(F("revoked_at").asc(nulls_first=True), "-created_at")
    return [
        TokenRow(
            id=row.pk,
            name=row.name,
            hint=row.hint,
            scopes=tuple(row.scopes),
            cluster_id=row.cluster_id,
            created_by=row.created_by,
            created_at=row.created_at,
            last_used_at=row.last_used_at,
            revoked_at=row.revoked_at,
        )
        for row in rows
    ]


def people_all() -> list[PersonRow]:
    """Return everyone who can sign in, by name."""
    return [
        PersonRow(
            id=user.pk,
            name=user.get_username(),
            email=user.email,
            role=user.role,
            is_active=user.is_active,
            last_login=user.last_login,
        )
        for user in User.objects.order_by("username")
    ]
