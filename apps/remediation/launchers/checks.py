"""Carrying a check of a node out: by a command on this machine, under the local launcher's wrapper, or by a webhook.

Both are begun once under the order's name and then looked at. A worker that dies over it changes nothing: the command goes
on under its wrapper, and the next worker finds it by the order's folder; the webhook's receiver is asked what it knows of
the order before it is told again.

The webhook is told `{order, action, kind, node, names, cluster, timeout_s}`, signed, and answers `{state, text}` with state
RUNNING, PASSED or NOT_PASSED, now or when it is asked (`GET url/{order}`).
"""

import hashlib
import hmac
import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.common.errors import NotFound
from apps.common.ids import id_read
from apps.common.signing import HEADER, NotReached, answer_text, answer_words, http_exchange, signature_of
from apps.remediation.choices import CheckKind, LauncherKind
from apps.remediation.launchers import check_runner
from apps.remediation.launchers.local import LocalLauncher
from apps.remediation.launchers.processes import Process, Seen, process_look
from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain, Receipt
from apps.remediation.selectors.checks import checks_over
from apps.remediation.selectors.rows import CheckTarget, OrderInHand
from apps.runs.launcher import LauncherSetting

CONNECT_S = 5.0
ANSWER_S = 15.0
GRACE_S = 5.0
MOST_TEXT = 2000
STATES = ("RUNNING", "PASSED", "NOT_PASSED")
PLACE = "{node}"
"""Stands in a word of the command for the node's name."""


def check(order: OrderInHand) -> Receipt:
    """Begin a check, or look how far it is; with its result it is done, and its facts hold `passed`.

    Raises: LaunchRefused, LaunchUnavailable, LaunchUncertain.
    """
    target, by_command = order.check, order.setting.kind == LauncherKind.LOCAL
    assert target is not None
    if by_command and order.asked_at is not None:
        return _command_look(LocalLauncher().folder(order.code))  # by what is on disk, whatever is set meanwhile
    if not target.kind:
        raise LaunchRefused("no check is set for this cluster any more")
    if by_command != (target.kind == CheckKind.COMMAND):
        raise LaunchRefused("how nodes are checked here was changed while this check was under way")
    return _command(order, target) if by_command else _webhook(order, target)


def check_secret(cluster: str) -> str:
    """Return the secret of a cluster's check webhook where none is set: derived from the installation's own, not kept."""
    return hmac.new(settings.SECRET_KEY.encode(), f"check:{cluster}".encode(), hashlib.sha256).hexdigest()


def checks_trim(*, before: datetime, most: int) -> int:
    """Remove the folders of checks that were over before a moment, and of all but the newest `most`; return how many went.

    Found by what is on disk, so that none is missed. What they came to stands in the ledger. One whose wrapper still
    runs is left to it.
    """
    local, folders = LocalLauncher(), {}
    for path in local.folder("").glob("ord_*"):
        with suppress(NotFound):
            folders[id_read("ord", path.name)] = path
    over = checks_over(folders)
    old = [folders[row.id] for place, row in enumerate(over) if place >= most or row.settled_at < before]
    return local.trim_folders([folder for folder in old if _is_gone(folder)])


def _command(order: OrderInHand, target: CheckTarget) -> Receipt:
    local = LocalLauncher()
    folder = local.folder(order.code)
    if not any((folder / name).exists() for name in ("started.json", "result.json")):
        words = [word.replace(PLACE, target.node) for word in target.command]
        setting = LauncherSetting(
            kind=order.setting.kind,
            command=(sys.executable, "-I", "-S", check_runner.__file__, str(folder), str(target.timeout_s), *words),
            environment={"PACELINE_NODE": target.node, "PACELINE_NODE_NAMES": ",".join(target.names)},
            stop_grace_s=GRACE_S,
        )
        return replace(local.launch(replace(order, setting=setting)), done=False)
    return _command_look(folder)


def _command_look(folder: Path) -> Receipt:
    gone = _is_gone(folder)  # before its result: it may end in between
    if found := _result(folder):
        return found
    if gone:
        raise LaunchRefused("it was killed before it had a result")
    return Receipt("the check runs", {"directory": str(folder)}, done=False)


def _result(folder: Path) -> Receipt | None:
    found = _read(folder / "result.json")
    if found is None:
        return None
    state, output = found.get("state"), str(found.get("output", "")).strip()
    tail = f": {output[-MOST_TEXT:]}" if output else ""
    if state == "NOT_STARTED":
        raise LaunchRefused(f"the check could not be started{tail}")
    if state == "TIMEOUT":
        return Receipt(f"it did not end in time and was killed{tail}", {"passed": False, "state": state})
    number = found.get("signal")
    how = f"signal {number}" if number is not None else f"exit status {found.get('status')}"
    return Receipt(f"{how}{tail}", {"passed": found.get("status") == 0, "state": state, "status": found.get("status")})


def _is_gone(folder: Path) -> bool:
    started = _read(folder / "started.json")
    if (folder / "exit.json").exists() or started is None:
        return True
    one = Process(started["boot_id"], started["pid_namespace"], started["pid"], started["start_ticks"])
    return process_look(one) == Seen.GONE


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _webhook(order: OrderInHand, target: CheckTarget) -> Receipt:
    if order.asked_at is not None or order.tries > 1:
        known = _exchange("GET", f"{target.url.rstrip('/')}/{order.code}", target)
        if known.status != 404:
            return _answered(known)
        if order.asked_at is not None:
            raise LaunchUncertain("the receiver does not know this check any more")
    words = {
        "order": order.code,
        "action": order.action,
        "kind": order.action_kind,
        "node": target.node,
        "names": list(target.names),
        "cluster": target.cluster,
        "timeout_s": target.timeout_s,
    }
    return _answered(_exchange("POST", target.url, target, body=json.dumps(words, separators=(",", ":")).encode()))


def _exchange(method: str, url: str, target: CheckTarget, *, body: bytes | None = None) -> Any:
    secret = target.secret or check_secret(target.cluster)
    headers = {HEADER: signature_of(body or b"", secret=secret, at=int(time.time()))}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        return http_exchange(method, url, body=body, headers=headers, connect_s=CONNECT_S, answer_s=ANSWER_S)
    except ValueError as error:
        raise LaunchRefused(f"its address cannot be called: {error}") from error
    except NotReached as error:
        raise LaunchUnavailable(f"the receiver was not reached, {error}") from error
    except OSError as error:
        raise LaunchUncertain(f"no answer from the receiver: {error}") from error


def _answered(answer: Any) -> Receipt:
    words = answer_words(answer.body)
    text = answer_text(words.get("text") or words.get("message"), most=MOST_TEXT)
    if answer.status == 503:
        raise LaunchUnavailable(f"the receiver answers 503{f': {text}' if text else ''}")
    if 400 <= answer.status < 500:
        raise LaunchRefused(f"the receiver answers {answer.status}{f': {text}' if text else ''}")
    if not 200 <= answer.status < 300:
        raise LaunchUncertain(f"the receiver answers {answer.status}{f': {text}' if text else ''}")
    state = answer_text(words.get("state", "RUNNING"), most=40).upper()
    if state not in STATES:
        raise LaunchRefused(f"the receiver answers the state {state!r}, which is none of {', '.join(STATES)}")
    receipt = {"receipt": answer_text(words.get("receipt"), most=200)}
    if state == "RUNNING":
        return Receipt(text or "taken by the receiver", receipt, done=False)
    return Receipt(text or state.lower().replace("_", " "), {"passed": state == "PASSED", "state": state, **receipt})
