"""The commands of this room."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.remediation.launchers.webhook import webhook_secret
from tests.remediation.conftest import is_watched


def said(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def test_what_goes_on_is_listed_by_pid(local_run: Any, ask: Callable[..., Any], work: Callable[..., Any]) -> None:
    row = work(ask("RESTART_RUN", local_run).id, until=is_watched)

    assert said("launches").startswith(f"dense-7b  pid {row.orders[0].receipt['pid']}  since ")


def test_a_webhook_s_secret_is_the_run_s_own_or_the_one_that_was_set(make_run: Callable[..., Any]) -> None:
    make_run("plain", launcher={"kind": "WEBHOOK", "url": "http://127.0.0.1:9/"})
    make_run("set", launcher={"kind": "WEBHOOK", "url": "http://127.0.0.1:9/", "secret": "theirs"})

    assert said("webhook_secret", "plain").strip() == webhook_secret("plain")
    assert said("webhook_secret", "set").strip() == "theirs"
    with pytest.raises(CommandError, match="no run"):
        said("webhook_secret", "nowhere")
