"""A script's way to a site of real processes: one REST request, answered or not."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def rest_ask(url: str, token: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Return status and answer of a REST request; 0 where no answer came, or not a whole one."""
    request = urllib.request.Request(
        f"{url}/api/v1/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, ValueError):
        return 0, None
