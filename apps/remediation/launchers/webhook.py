"""The webhook launcher: a site's own program starts and stops runs when a signed message asks it to.

The message is CONTRACT's: 2xx is a receipt, 4xx refused, 503 or no connection unavailable, anything else uncertain.
Redirects are not followed: a signed order goes where an admin said, and nowhere else.
"""

import hashlib
import hmac
import json
import time
from dataclasses import dataclass

from django.conf import settings

from apps.common.signing import HEADER, NotReached, answer_text, answer_words, http_exchange, signature_of
from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain, ReadBack, Receipt
from apps.remediation.selectors.rows import LaunchFact, LaunchRow, OrderInHand

CONNECT_S = 5.0
ANSWER_S = 15.0
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
            answer = _exchange("GET", path, order)
        except (OSError, ValueError) as error:
            raise LaunchUnavailable(f"no answer from the receiver: {error}") from error
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
            answer = _exchange("POST", order.setting.url, order, body=body)
        except ValueError as error:
            raise LaunchRefused(f"its address cannot be called: {error}") from error
        except NotReached as error:
            raise LaunchUnavailable(f"the receiver was not reached, {error}") from error
        except OSError as error:
            raise LaunchUncertain(f"no answer from the receiver: {error}") from error
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
    secret = order.setting.secret or webhook_secret(order.run)
    return {HEADER: signature_of(body, secret=secret, at=int(time.time()))}


def webhook_secret(run: str) -> str:
    """Return the secret of a run's webhook where its settings name none: derived from the installation's own, not kept."""
    return hmac.new(settings.SECRET_KEY.encode(), f"webhook:{run}".encode(), hashlib.sha256).hexdigest()


def _exchange(method: str, url: str, order: OrderInHand, *, body: bytes | None = None) -> Answer:
    headers = signature(order, body or b"") | ({"Content-Type": "application/json"} if body is not None else {})
    answer = http_exchange(method, url, body=body, headers=headers, connect_s=CONNECT_S, answer_s=ANSWER_S)
    return _answer(answer.status, answer.body)


def _answer(status: int, content: bytes) -> Answer:
    """Return what an answer says. What it means is its status; what can't be read in it counts as not said."""
    words = answer_words(content)
    message = answer_text(words.get("message"), most=500) or answer_text(words.get("error"), most=500)
    return Answer(status=status, receipt=answer_text(words.get("receipt"), most=200), message=message)


def _receipt(answer: Answer) -> Receipt:
    return Receipt(
        f"taken by the receiver{f' as {answer.receipt}' if answer.receipt else ''}", {"receipt": answer.receipt}
    )
