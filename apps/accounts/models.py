"""People, tokens, one-time links and the keys that make a repeated request harmless."""

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.accounts.choices import Role


class User(AbstractUser):
    """A person who signs in."""

    role = models.CharField(max_length=8, choices=Role.choices, default=Role.VIEWER)
    zone = models.CharField(max_length=64, blank=True)

    class Meta(AbstractUser.Meta):
        pass


class ApiToken(models.Model):
    """A bearer token; only its SHA-256 is kept."""

    name = models.CharField(max_length=100)
    digest = models.BinaryField(max_length=32, unique=True)
    hint = models.CharField(max_length=8)
    scopes = ArrayField(models.CharField(max_length=8))
    cluster_id = models.BigIntegerField(null=True)
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class SignInLink(models.Model):
    """A link that signs one person in, once."""

    user = models.ForeignKey(User, on_delete=models.CASCADE)
    digest = models.BinaryField(max_length=32, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class SignInFailure(models.Model):
    """Failed sign-ins of one name from one address since the first of them was told; the others wait to be told as a count."""

    name = models.CharField(max_length=150)
    address = models.CharField(max_length=45)
    since_at = models.DateTimeField()
    count = models.IntegerField(default=1)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "address"], name="accounts_signinfailure_who")]


class IdempotencyKey(models.Model):
    """An answer that was given, kept for the case that the same request comes again."""

    caller = models.CharField(max_length=64)
    key = models.CharField(max_length=128)
    body_digest = models.BinaryField(max_length=32)
    status = models.IntegerField(default=0)
    answer = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["caller", "key"], name="accounts_key")]
