"""What the environment says becomes settings."""

import json
import os
import subprocess
import sys

PRINT = "import json; from apps.config import settings; print(json.dumps([settings.ALLOWED_HOSTS, settings.WEBSOCKET_ORIGINS]))"


def hosts_and_origins(**environment: str) -> tuple[list[str], list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    hosts, origins = json.loads(done.stdout)
    return hosts, origins


class TestHosts:
    def test_pages_under_one_more_name_may_open_a_websocket(self) -> None:
        hosts, origins = hosts_and_origins(
            PACELINE_BIND="0.0.0.0:8000",
            PACELINE_PUBLIC_URL="https://paceline.example",
            PACELINE_ALLOWED_HOSTS="10.0.0.5, inner.example",
        )

        assert {"10.0.0.5", "inner.example", "paceline.example"} <= set(hosts)
        assert {
            "https://paceline.example",
            "http://10.0.0.5:8000",
            "http://inner.example:8000",
            "https://inner.example",
        } <= set(origins)

    def test_without_more_names_nobody_elses_pages_may(self) -> None:
        _, origins = hosts_and_origins(
            PACELINE_BIND="127.0.0.1:8000", PACELINE_PUBLIC_URL="http://127.0.0.1:8000", PACELINE_ALLOWED_HOSTS=""
        )

        assert sorted(origins) == ["http://127.0.0.1:8000", "http://localhost:8000"]
