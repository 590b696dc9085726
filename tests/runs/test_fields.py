"""What runs and attempts may be written with over REST: what is taken can be read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.common.clock import now as clock_now
from apps.runs.limits import limits_known
from apps.runs.models import Run
from apps.runs.selectors import run_by_code

pytestmark = pytest.mark.django_db

PAST: list[tuple[str, Any]] = [
    ("model", {"parameters": 1e20}),
    ("layout", {"pp": [{"deep": -1e300}]}),
    ("checkpoint", {"interval_s": 1e308}),
    ("framework", {"version": 2**63 - 1}),
    ("limits", {"no_telemetry_s": 1e308}),
    ("limits", {"no_telemetry_s": 9e15}),
    ("due_at", "9999-12-31T23:59:59-14:00"),
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


class TestListing:
    def test_a_state_is_looked_for_in_all_runs_not_in_the_first_page(
        self, api: Callable[..., Client], make_run: Any, make_attempt: Any
    ) -> None:
        make_attempt(make_run("first-7b"))
        for number in range(3):
            make_run(f"later-{number}")

        answer = api("read").get("/api/v1/runs?state=STARTING&limit=2").json()

        assert ([run["slug"] for run in answer["results"]], answer["next"]) == (["first-7b"], None)

    def test_another_start_is_told_that_the_first_one_has_not_reported(
        self, api: Callable[..., Client], run: Any, make_attempt: Any
    ) -> None:
        make_attempt(run, now=clock_now())

        answer = api("report").post(f"/api/v1/runs/{run.slug}/attempts", {"key": "slurm:2.0.0", "world_size": 8})

        assert answer.json()["error"]["code"] == "ATTEMPT_LIVE"
        assert "was opened" in answer.json()["error"]["message"]


class TestLauncherSecret:
    def test_is_written_and_never_read_and_stays_when_it_comes_back_as_shown(
        self, api: Callable[..., Client], run: Any
    ) -> None:
        rest, address = api("report", "read", "operate", "admin"), f"/api/v1/runs/{run.slug}"
        launcher = {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/", "secret": "s" * 32}

        put = rest.put(address, {"launcher": launcher})
        shown = rest.get(address).json()["launcher"]
        rest.put(address, {"launcher": {**shown, "url": "http://127.0.0.1:10/"}})

        assert "s" * 32 not in put.content.decode()
        assert shown["secret"] != "s" * 32
        assert {name: run_by_code(run.slug).launcher[name] for name in ("url", "secret")} == {
            "url": "http://127.0.0.1:10/",
            "secret": "s" * 32,
        }


class TestStored:
    def test_numbers_past_64_bits_that_are_stored_already_are_answered(
        self, api: Callable[..., Client], run: Any
    ) -> None:
        Run.objects.filter(pk=run.id).update(model={"parameters": 10**20, "deep": [-(10**30)]})

        answer = api("read").get(f"/api/v1/runs/{run.slug}")

        assert answer.json()["model"] == {"parameters": str(10**20), "deep": [str(-(10**30))]}


class TestMethods:
    @pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/nodes", "/api/v1/actions"])
    def test_one_that_a_door_has_not_is_a_405_to_whoever_may_knock(
        self, api: Callable[..., Client], client: Client, path: str
    ) -> None:
        assert api("read").delete(path).status_code == 405
        assert client.delete(path).status_code == 401


def test_every_threshold_ends_somewhere() -> None:
    assert [name for name, limit in limits_known().items() if not limit.most < 1e9] == []
