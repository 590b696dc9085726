"""Writing people, tokens, one-time links and idempotency keys."""

import hashlib
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import orjson
from django.db import IntegrityError, transaction
from django.db.models import F

from apps.accounts.choices import ROLE_SCOPES, Role
from apps.accounts.models import ApiToken, IdempotencyKey, SignInFailure, SignInLink, User
from apps.common.access import SCOPES, Principal
from apps.common.errors import BadRequest, Conflict, NotFound, PacelineError, Unprocessable
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording

LINK_LIFE = timedelta(hours=1)
KEY_LIFE = timedelta(days=7)
FAILURES_WINDOW = timedelta(minutes=10)
"""How long failed sign-ins alike are one row of the log after the first."""
FAILURES_APART = 50
"""Names and addresses that a window tells apart; whoever tries more names must not drown the log."""
TOKEN_PREFIX = "pace_"  # noqa: S105 - a label, so that a leaked token can be found by secret scanners


class KeyReused(PacelineError):
    """The same Idempotency-Key came with another body."""

    code = "idempotency_key_reused"
    http_status = 422


def digest_of(secret: str) -> bytes:
    """Return what is kept of a secret of 256 random bits: its SHA-256 (no salt is needed for that much chance)."""
    return hashlib.sha256(secret.encode()).digest()


def token_create(
    *, name: str, scopes: Iterable[str], cluster_id: int | None, by: str, source: str, now: datetime
) -> tuple[int, str]:
    """Make a token; return its row and the secret, which is shown once and never kept.

    Raises:
        BadRequest: no name, or a scope that does not exist.
    """
    wanted = sorted(set(scopes))
    if not name.strip() or "\0" in name:
        raise BadRequest("name: a token needs a name that says what uses it, without a zero byte.")
    if not wanted or not set(wanted) <= set(SCOPES):
        raise BadRequest(f"scopes: must be of {', '.join(SCOPES)}.", scopes=wanted)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with recording(now=now) as log:
        token = ApiToken.objects.create(
            name=name.strip()[:100],
            digest=digest_of(secret),
            hint=secret[-4:],
            scopes=wanted,
            cluster_id=cluster_id,
            created_by=by,
            created_at=now,
        )
        log.add(
            StreamKey.system(),
            kind="token.created",
            text=f"Token “{token.name}” made with {', '.join(wanted)}",
            source=source,
            actor_name=by,
            payload={"token": token.pk},
        )
    return token.pk, secret


def token_revoke(*, token_id: int, by: str, source: str, now: datetime) -> None:
    """End a token; a second call changes nothing.

    Raises:
        NotFound: there is no such token.
    """
    with recording(now=now) as log:
        name = ApiToken.objects.filter(pk=token_id).values_list("name", flat=True).first()
        if name is None:
            raise NotFound("There is no such token.")
        if ApiToken.objects.filter(pk=token_id, revoked_at=None).update(revoked_at=now):
            log.add(
                StreamKey.system(),
                kind="token.revoked",
                text=f"Token “{name}” revoked",
                source=source,
                actor_name=by,
                payload={"token": token_id},
            )


def token_used(*, token_id: int, now: datetime) -> None:
    """Note that a token was used; at most one write a minute, however many requests come."""
    ApiToken.objects.filter(pk=token_id).exclude(last_used_at__gt=now - timedelta(minutes=1)).update(last_used_at=now)


def user_create(*, name: str, role: str, email: str, by: str, source: str, now: datetime) -> int:
    """Make a person without a password (they come by a one-time link); return the row.

    Raises:
        BadRequest: no name, no such role, or an address that is too long.
        Conflict: the name is taken.
    """
    name, email = name.strip(), email.strip()
    if not name or len(name) > 150 or "\0" in name:
        raise BadRequest("name: must have 1 to 150 characters and no zero byte.")
    if len(email) > 254 or "\0" in email:
        raise BadRequest("email: must have at most 254 characters and no zero byte.")
    if role not in ROLE_SCOPES:
        raise BadRequest(f"role: must be one of {', '.join(ROLE_SCOPES)}.")
    with recording(now=now) as log:
        user = User(username=name, role=role, email=email)
        user.set_unusable_password()
        try:
            with transaction.atomic():
                user.save()
        except IntegrityError as error:
            raise Conflict(f"“{name}” exists already.") from error
        log.add(
            StreamKey.system(),
            kind="user.created",
            text=f"{name} may sign in as {Role(role).label}",
            source=source,
            actor_name=by,
            payload={"user": user.pk, "role": role},
        )
    return user.pk


def role_set(*, user_id: int, role: str, by: str, source: str, now: datetime) -> None:
    """Give a person another role.

    Raises:
        BadRequest: no such role.
        NotFound: no such person.
        Unprocessable: they are the last admin.
    """
    if role not in ROLE_SCOPES:
        raise BadRequest(f"role: must be one of {', '.join(ROLE_SCOPES)}.")
    with recording(now=now) as log:
        # The admins are locked so that two of them cannot step down at once and leave nobody.
        admins = list(User.objects.select_for_update().filter(role=Role.ADMIN, is_active=True).order_by("pk"))
        user = User.objects.select_for_update().filter(pk=user_id).first()
        if user is None:
            raise NotFound("There is no such person.")
        if role != Role.ADMIN and [admin.pk for admin in admins] == [user.pk]:
            raise Unprocessable(f"{user.username} is the last admin; make another one first.")
        before, user.role = user.role, role
        user.save(update_fields=["role"])
        log.add(
            StreamKey.system(),
            kind="user.role_set",
            text=f"{user.username} is {Role(role).label}, was {Role(before).label}",
            source=source,
            actor_name=by,
            payload={"user": user_id, "role": role, "before": before},
        )


def signed_in(*, user_id: int, how: str, source: str, now: datetime) -> None:
    """Write that a person came in; `how` is `by password` or `by a one-time link`."""
    _tell_of(user_id, "user.signed_in", f"signed in {how}", source=source, now=now)


def sign_in_failed(*, name: str, address: str, source: str, now: datetime) -> None:
    """Write that somebody could not sign in: the first time at once, what is alike within a window as one count after it."""
    name = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)[:150]
    sign_in_failures_tell(now=now)
    with recording(now=now) as log:
        known = SignInFailure.objects.filter(name=name, address=address[:45]).exists()
        if not known and SignInFailure.objects.count() >= FAILURES_APART:
            name = address = ""
        row, is_new = SignInFailure.objects.get_or_create(name=name, address=address[:45], defaults={"since_at": now})
        if is_new:
            _failure_tell(log, row, "could not sign in", source=source)
        else:
            SignInFailure.objects.filter(pk=row.pk).update(count=F("count") + 1)


def sign_in_failures_tell(*, now: datetime) -> None:
    """Write how often each was tried again, once its window is over."""
    with recording(now=now) as log:
        # Skipped if locked, so that two at once tell of a window once.
        over = SignInFailure.objects.select_for_update(skip_locked=True, no_key=True)
        for row in over.filter(since_at__lte=now - FAILURES_WINDOW).order_by("pk"):
            if row.count > 1:
                times = "once more" if row.count == 2 else f"{row.count - 1:,} times more"
                _failure_tell(log, row, f"could not sign in, {times} since then", source=Source.SYSTEM)
            row.delete()


def _failure_tell(log: Log, row: SignInFailure, words: str, *, source: str) -> None:
    who = f"“{row.name}” from {row.address or 'an unknown address'}" if row.name else "Somebody with yet another name"
    log.add(
        StreamKey.system(),
        kind="user.sign_in_failed",
        text=f"{who} {words}",
        source=source,
        payload={"name": row.name, "address": row.address, "count": row.count},
    )


def password_set(*, user_id: int, password: str, source: str, now: datetime) -> None:
    """Give a person another password, by themselves.

    Raises:
        NotFound: there is no such person.
    """
    with recording(now=now):
        # Locked, so that of two at once the later one holds.
        user = User.objects.select_for_update(no_key=True).filter(pk=user_id).first()
        if user is None:
            raise NotFound("There is no such person.")
        user.set_password(password)
        user.save(update_fields=["password"])
        _tell_of(user_id, "user.password_set", "set a password", source=source, now=now)


def _tell_of(user_id: int, kind: str, what: str, *, source: str, now: datetime) -> None:
    name = User.objects.values_list("username", flat=True).get(pk=user_id)
    with recording(now=now) as log:
        log.add(
            StreamKey.system(),
            kind=kind,
            text=f"{name} {what}",
            source=source,
            actor_name=name,
            payload={"user": user_id},
        )


def sign_in_link_create(*, user_id: int, now: datetime) -> str:
    """Return the secret of a link that signs this person in once within an hour; earlier unused links end.

    Raises:
        NotFound: there is no such person.
    """
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        if not User.objects.filter(pk=user_id).exists():
            raise NotFound("There is no such person.")
        SignInLink.objects.filter(user_id=user_id, used_at=None).delete()
        SignInLink.objects.create(user_id=user_id, digest=digest_of(secret), created_at=now, expires_at=now + LINK_LIFE)
    return secret


def sign_in_link_use(*, secret: str, now: datetime) -> User | None:
    """Return the person whose link this is, and spend it; None if it is unknown, spent or too old."""
    spent = SignInLink.objects.filter(digest=digest_of(secret), used_at=None, expires_at__gt=now)
    link = spent.select_related("user").first()
    # Compare-and-set: of two requests with the same link one changes the row.
    if link is None or not spent.filter(pk=link.pk).update(used_at=now):
        return None
    return link.user if link.user.is_active else None


def once(
    *, principal: Principal, key: str, body: Any, now: datetime, act: Callable[[], tuple[int, dict[str, Any]]]
) -> tuple[int, dict[str, Any]]:
    """Do `act` once per caller and key; a repeat gets the first answer (a 201 as 200).

    `act` runs in the same transaction as the key, so that either both are kept or neither.

    Raises:
        BadRequest: no key, or one that is too long.
        KeyReused: the key came before with another body.
    """
    if not key or len(key) > 128:
        raise BadRequest("Idempotency-Key: this header is needed, with 1 to 128 characters.")
    digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS, default=str)).digest()
    with recording(now=now):
        row, is_new = IdempotencyKey.objects.get_or_create(
            caller=principal.key, key=key, defaults={"body_digest": digest, "created_at": now}
        )
        # Of two equal requests at once the second waits in get_or_create for the first one's commit.
        if not is_new:
            if bytes(row.body_digest) != digest:
                raise KeyReused("This Idempotency-Key was used before with another body.", key=key)
            return (200 if row.status == 201 else row.status), row.answer
        status, answer = act()
        IdempotencyKey.objects.filter(pk=row.pk).update(
            status=status, answer=orjson.loads(orjson.dumps(answer, default=str))
        )
        return status, answer


def keys_trim(*, now: datetime) -> int:
    """Forget keys older than seven days and links older than a day; return how many rows went."""
    gone, _ = IdempotencyKey.objects.filter(created_at__lt=now - KEY_LIFE).delete()
    links, _ = SignInLink.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()
    return gone + links
