"""What runs and attempts may be written with over REST: what is taken can be read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db

PAST: list[tuple[str, Any]] = [
    ("model", {"parameters": 1e20}),
    ("layout", {"pp": [{"deep": -1e300}]}),
    ("checkpoint", {"interval_s": 1e308}),
    ("framework", {"version": 2**63 - 1}),
    ("limits", {"no_telemetry_s": 1e308}),
    ("limits", {"no_telemetry_s": 9e15}),
    ("model", {"text": "x" * 70_000}),
    ("model", {"many": list(range(20_000))}),
]


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


class TestRunFields:
    @pytest.mark.parametrize(("name", "value"), [*PAST, ("model", deep(100))])
    def test_content_that_could_not_be_read_back_is_refused_and_named(
        self, api: Callable[..., Client], run: Any, name: str, value: Any
    ) -> None:
        rest = api("read", "report", "operate")

        answer = rest.put(f"/api/v1/runs/{run.slug}", {name: value}, content_type="application/json")

        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"{name}: ")
        assert rest.get(f"/api/v1/runs/{run.slug}").status_code == 200

    def test_what_is_taken_is_read_back(self, api: Callable[..., Client], run: Any) -> None:
        model = {"parameters": 7e9, "layers": 2**53, "names": ["a", {"b": None}], "tied": True}

        answer = api("read", "report").put(
            f"/api/v1/runs/{run.slug}", {"model": model}, content_type="application/json"
        )

        assert (answer.status_code, answer.json()["model"]) == (200, model)

    def test_a_cluster_that_is_not_the_tokens_is_403_known_or_not(
        self, api: Callable[..., Client], make_token: Callable[..., str], run: Any, cluster: int
    ) -> None:
        headers = {"Authorization": f"Bearer {make_token('report', cluster_id=cluster)}"}

        answer = Client().put("/api/v1/runs/new-run", {"cluster": "nowhere"}, "application/json", headers=headers)

        assert answer.status_code == 403

    def test_a_mode_for_a_cause_that_nobody_finds_is_refused(self, api: Callable[..., Client], run: Any) -> None:
        caller, path = api("read", "report", "operate"), f"/api/v1/runs/{run.slug}"

        mistyped = caller.put(path, {"modes": {"compute_stragler": "OBSERVE"}}, content_type="application/json")
        known = caller.put(path, {"modes": {"compute_straggler": "OBSERVE"}}, content_type="application/json")

        assert mistyped.status_code == 400
        assert "compute_straggler" in mistyped.json()["error"]["facts"]["known"]
        assert (known.status_code, known.json()["modes"]) == (200, {"compute_straggler": "OBSERVE"})


class TestAttemptFields:
    def test_a_configuration_that_could_not_be_read_back_is_refused(self, api: Callable[..., Client], run: Any) -> None:
        answer = api("report").post(
            f"/api/v1/runs/{run.slug}/attempts",
            {"key": "k", "world_size": 2, "config": {"seed": 1e20}},
            content_type="application/json",
        )

        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "config: holds a number past 2^53."


class TestNames:
    @pytest.mark.parametrize("name", ["a/b", "..", "a\u202eb", "a b"])
    def test_what_cannot_stand_in_an_address_is_refused(self, api: Callable[..., Client], run: Any, name: str) -> None:
        rest = api("report")

        answers = [
            rest.put("/api/v1/runs/new-7b", {"cluster": name}),
            rest.post(f"/api/v1/runs/{run.slug}/attempts", {"key": "slurm:1.0.0", "world_size": 1, "nodes": [name]}),
        ]

        assert [answer.status_code for answer in answers] == [422, 422]
        assert "none of /" in answers[0].json()["error"]["message"]
