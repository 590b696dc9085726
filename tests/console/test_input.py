"""What comes in from addresses and forms is read as it is meant, or refused with a sentence; never a failure of ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest
from django.test import Client
from django.urls import resolve, reverse

from apps.common.errors import BadRequest
from apps.fleet.models import Cluster, Node
from apps.fleet.services import node_place, nodes_ensure

ODD = ["²", "9" * 40, "-1", "1e3"]
"""Texts that look like numbers: `isdigit` takes the first, `int` the others."""


@pytest.fixture
def desk(client_as: Any, operator: Any, incident: Any, pace: Any) -> Client:
    """An operator's browser in front of a run in trouble, with an incident."""
    return client_as(operator)


class TestAddresses:
    @pytest.mark.parametrize("number", ODD)
    @pytest.mark.parametrize(
        "address",
        [
            "/find?q={}",
            "/find?q=INC-{}",
            "/runs/dense-7b/charts/steptime?from={0}&to={0}&columns={0}",
            "/runs/dense-7b/actions/new?kind=RESTART_RUN&from_step={}",
            "/runs/dense-7b?attempt={}",
            "/runs/dense-7b/heat?attempt={}",
        ],
    )
    def test_a_number_that_is_none_fails_nothing(self, desk: Client, address: str, number: str) -> None:
        assert desk.get(address.format(number)).status_code < 500

    def test_an_incident_is_found_by_its_number(self, desk: Client, incident: Any) -> None:
        assert desk.get(f"/find?q=inc-{incident.number}")["Location"] == f"/incidents/{incident.number}"

    @pytest.mark.parametrize("address", ["/runs/dense-7b", "/runs/dense-7b/heat", "/runs/dense-7b/placement"])
    def test_an_attempt_of_another_run_is_none_of_this_runs(
        self, desk: Client, make_run: Any, make_attempt: Any, address: str
    ) -> None:
        from apps.common.ids import id_write

        other = make_attempt(make_run("other-7b"), key="slurm:9.0.0")

        assert desk.get(f"{address}?attempt={id_write('att', other.id)}").status_code == 404


class TestZeroByte:
    @pytest.mark.parametrize("address", ["/runs?q=%00", "/api/v1/runs?cluster=%00"])
    def test_in_an_address_is_a_400_and_no_failure_in_the_log(
        self, desk: Client, caplog: pytest.LogCaptureFixture, address: str
    ) -> None:
        answer = desk.get(address)

        assert answer.status_code == 400
        assert [record.name for record in caplog.records if record.exc_info] == []


class TestPlaces:
    def test_racks_are_named_as_people_like(self, desk: Client, cluster: int, now: datetime) -> None:
        nodes = nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)
        node_place(node_id=nodes["trn001"], rack="row ²", rack_slot="³", leaf="")

        assert "row ²" in desk.get("/nodes").content.decode()


class TestForms:
    @pytest.mark.parametrize("minutes", ["²", "9" * 15])
    def test_a_time_to_keep_quiet_that_nobody_lives_to_see_is_refused(self, desk: Client, minutes: str) -> None:
        from apps.diagnosis.selectors import findings_of

        number = findings_of(state="OPEN")[0].id
        form = {"reason": "known, filter change", "for": minutes}

        assert desk.post(f"/runs/dense-7b/findings/{number}/mute", form).status_code < 500

    @pytest.mark.parametrize("version", ODD)
    def test_an_edit_of_a_version_that_is_none_is_refused(self, desk: Client, incident: Any, version: str) -> None:
        from apps.incidents.models import Note

        desk.post(f"/incidents/{incident.number}/notes", {"text": "one"})
        address = f"/incidents/{incident.number}/notes/{Note.objects.get().pk}"

        assert desk.post(address, {"text": "two", "version": version}).status_code == 409

    @pytest.mark.parametrize(("text", "minutes"), [("60", 60), ("-300", -300), ("²", 0), ("9999", 0), ("--5", 0)])
    def test_a_zone_is_taken_as_far_as_zones_go(self, rf: Any, text: str, minutes: int) -> None:
        from apps.console.views.incidents import _offset

        assert _offset(rf.post("/", {"offset_min": text})) == minutes

    def test_the_first_hours_of_the_calendar_are_refused(self) -> None:
        from apps.console.views.incidents import moment_of

        with pytest.raises(BadRequest, match="calendar"):
            moment_of("0001-01-01 00:00", datetime(2026, 12, 1, tzinfo=UTC), 600)

    def test_of_pasted_lines_all_are_kept_or_none(self, desk: Client, incident: Any) -> None:
        from apps.incidents.models import Note

        address = f"/incidents/{incident.number}/notes"
        refused = desk.post(address, {"text": f"02:05 looked at trn018\n02:07 {'x' * 20_001}"})

        assert refused.status_code == 400
        assert Note.objects.count() == 0

    @pytest.mark.parametrize("name", ["n/1", "..", "~2F", "a\x1bb", "", "/"])
    def test_names_that_were_taken_before_they_were_refused_fail_no_page(
        self, desk: Client, run: Any, cluster: int, now: datetime, name: str
    ) -> None:
        node_id = nodes_ensure(cluster_id=cluster, names=["odd"], now=now)["odd"]
        Node.objects.filter(pk=node_id).update(name=name)
        Cluster.objects.filter(pk=cluster).update(name="a/b")
        address = reverse("node", args=["a/b", name])

        pages = ["/", "/runs/dense-7b", "/nodes", "/incidents", address, f"{address}/card", f"{address}/actions/new"]

        assert {page: desk.get(page).status_code for page in pages if desk.get(page).status_code >= 400} in (
            {},
            {f"{address}/actions/new": 400},
        )
        assert resolve(unquote(address)).kwargs == {"cluster": "a/b", "name": name}
