"""Roles, and the scopes that each carries."""

from django.db.models import TextChoices

from apps.common.access import ADMIN, OPERATE, READ


class Role(TextChoices):
    """What a person may do."""

    VIEWER = "VIEWER", "viewer"
    OPERATOR = "OPERATOR", "operator"
    ADMIN = "ADMIN", "admin"


ROLE_SCOPES: dict[str, frozenset[str]] = {
    Role.VIEWER: frozenset({READ}),
    Role.OPERATOR: frozenset({READ, OPERATE}),
    Role.ADMIN: frozenset({READ, OPERATE, ADMIN}),
}
