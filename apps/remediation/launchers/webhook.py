"""The webhook launcher: a site's own program starts and stops runs when a signed message asks it to.

The message is CONTRACT's: 2xx is a receipt, 4xx refused, 503 or no connection unavailable, anything else uncertain.
Redirects are not followed: a signed order goes where an admin said, and nowhere else.
"""

import hashlib
import hmac
import http.client
import json
import ssl
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain, ReadBack, Receipt
from apps.remediation.selectors.rows import LaunchFact, LaunchRow, OrderInHand

CONNECT_S = 5.0
ANSWER_S = 15.0
MOST_ANSWER = 65_536
KNOWN_BY_NOW_S = 60.0
"""A receiver that does not know an order so long after it was sent will not get it any more: it never waits in a queue."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer."""

    status: int
    receipt: str
    message: str


class WebhookLauncher:
    """Asks a receiver; one order is one message, and the receiver takes a repeat of the same order as the same."""

    def launch(self, order: OrderInHand) -> Receipt:
        return self._ask(order)

    def stop(self, order: OrderInHand) -> Receipt:
        return self._ask(order)

    def read_back(self, order: OrderInHand) -> ReadBack:
        path = f"{order.setting.url.rstrip('/')}/{order.code}"
        try:
            answer = _exchange("GET", path, body=None, headers=signature(order, b""))
        except (_NotSent, _NoAnswer) as error:
            raise LaunchUnavailable(str(error)) from error
        if 200 <= answer.status < 300:
            return ReadBack(True, _receipt(answer))
        if answer.status == 404 and (time.time() - order.claimed_at.timestamp()) > KNOWN_BY_NOW_S:
            return ReadBack(False, Receipt("the receiver never got this order"))
        return ReadBack(None, Receipt(f"the receiver answers {answer.status}"))

    def look(self, launch: LaunchRow) -> LaunchFact | None:  # noqa: ARG002 - a receiver is asked about orders only
        return None

    def _ask(self, order: OrderInHand) -> Receipt:
        body = message_of(order)
        try:
            answer = _exchange("POST", order.setting.url, body=body, headers=signature(order, body))
        except _NotSent as error:
            raise LaunchUnavailable(str(error)) from error
        except _NoAnswer as error:
            raise LaunchUncertain(str(error)) from error
        if 200 <= answer.status < 300:
            return _receipt(answer)
        words = f"the receiver answers {answer.status}" + (f": {answer.message}" if answer.message else "")
        if answer.status == 503:
            raise LaunchUnavailable(words)
        if 400 <= answer.status < 500:
            raise LaunchRefused(words)
        raise LaunchUncertain(words)


def message_of(order: OrderInHand) -> bytes:
    """Return the message's body."""
    words = {
        "order": order.code,
        "action": order.action,
        "kind": order.action_kind,
        "run": order.run,
        "attempt_key": order.attempt_key,
        "resume_step": order.resume_step,
        "exclude_nodes": list(order.exclude_nodes),
    }
    return json.dumps(words, separators=(",", ":")).encode()


def signature(order: OrderInHand, body: bytes) -> dict[str, str]:
    """Return the header that proves who sends `body` and when."""
    at = str(int(time.time()))
    secret = order.setting.secret or webhook_secret(order.run)
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Paceline-Signature": f"t={at},v1={digest}"}


def webhook_secret(run: str) -> str:
    """Return the secret of a run's webhook where its settings name none: derived from the installation's own, not kept."""
    return hmac.new(settings.SECRET_KEY.encode(), f"webhook:{run}".encode(), hashlib.sha256).hexdigest()


class _NotSent(Exception):
    """No connection: the receiver has seen nothing."""


class _NoAnswer(Exception):
    """Sent, at least in part, and no whole answer came."""


def _exchange(method: str, url: str, *, body: bytes | None, headers: dict[str, str]) -> Answer:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with closing(_connection(parts.scheme, parts.hostname or "", parts.port)) as connection:
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise _NotSent(f"no connection to the receiver: {error}") from error
        try:
            if connection.sock is not None:
                connection.sock.settimeout(ANSWER_S)
            more = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, target, body=body, headers={**headers, **more, "User-Agent": "Paceline"})
            response = connection.getresponse()
            content = response.read(MOST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise _NoAnswer(f"no answer from the receiver: {error or type(error).__name__}") from error
        return _answer(response.status, content)


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=CONNECT_S)


def _answer(status: int, content: bytes) -> Answer:
    words: Any = None
    with suppress(ValueError):
        words = json.loads(content)
    if not isinstance(words, dict):
        words = {}
    message = words.get("message") or words.get("error") or ""
    return Answer(status=status, receipt=str(words.get("receipt", ""))[:200], message=str(message)[:500])


def _receipt(answer: Answer) -> Receipt:
    return Receipt(
        f"taken by the receiver{f' as {answer.receipt}' if answer.receipt else ''}", {"receipt": answer.receipt}
    )
