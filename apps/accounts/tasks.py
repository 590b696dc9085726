"""Clockwork of accounts."""

from typing import Any

from celery import shared_task

from apps.accounts import services
from apps.common.clock import now


@shared_task(name="accounts.failures_sweep")
def failures_sweep(**_later: Any) -> None:
    """Tell how often failed sign-ins were repeated."""
    services.sign_in_failures_tell(now=now())


@shared_task(name="accounts.keys_trim")
def keys_trim(**_later: Any) -> None:
    """Forget old idempotency keys and links."""
    services.keys_trim(now=now())
