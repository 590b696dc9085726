"""Pages answer, for whom they may, and say what is so."""

import pytest
from django.test import Client


class TestDoor:
    def test_a_stranger_is_sent_to_sign_in_and_back(self, db: None) -> None:
        answer = Client().get("/runs")

        assert answer.status_code == 302
        assert answer["Location"] == "/sign-in?next=/runs"

    def test_the_sign_in_page_has_a_form_and_a_strict_policy(self, db: None) -> None:
        answer = Client().get("/sign-in")

        assert b'name="username"' in answer.content
        policy = answer["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy

    def test_a_part_asks_a_stranger_to_load_the_page_again(self, db: None) -> None:
        answer = Client().get("/watch", headers={"HX-Request": "true"})

        assert answer.status_code == 401
        assert "HX-Redirect" in answer


class TestRuns:
    def test_an_empty_installation_says_what_to_do_next(self, client_as, viewer) -> None:
        answer = client_as(viewer).get("/runs")

        assert answer.status_code == 200
        assert "No run has reported yet" in answer.text
        assert "pip install paceline-client" in answer.text

    def test_a_run_is_listed_with_its_place_and_state(self, client_as, viewer, attempt) -> None:
        answer = client_as(viewer).get("/runs")

        assert 'href="/runs/dense-7b"' in answer.text
        assert "8 GPUs, north" in answer.text
        assert "Starting" in answer.text

    def test_a_name_with_dots_is_listed_and_opens(self, client_as, viewer, make_run) -> None:
        make_run("llama-3.1..70b_x")
        client = client_as(viewer)

        assert 'href="/runs/llama-3.1..70b_x"' in client.get("/runs").text
        assert client.get("/runs/llama-3.1..70b_x").status_code == 200


class TestRun:
    def test_figures_that_are_not_measured_say_so(self, client_as, viewer, attempt) -> None:
        answer = client_as(viewer).get("/runs/dense-7b")

        assert answer.status_code == 200
        assert "not measured" in answer.text
        assert "no rank has reported yet" in answer.text
        assert "Attempt 1 opened with 8\u00a0ranks" in answer.text

    def test_every_script_of_the_page_is_named_in_its_head(self, client_as, viewer, attempt) -> None:
        import re
        from pathlib import Path

        page = client_as(viewer).get("/runs/dense-7b").text
        named = set(re.findall(r'modulepreload" href="/static/(js/\w+\.js)"', page))
        static = Path(__file__).resolve().parents[2] / "static"
        wanted, reached = ["js/page.js", "js/run.js"], set()
        while wanted:
            module = wanted.pop()
            reached.add(module)
            imports = re.findall(r'from "\./(\w+\.js)"', (static / module).read_text())
            wanted += [f"js/{name}" for name in imports if f"js/{name}" not in reached]

        assert named == reached

    def test_an_unknown_run_is_a_page_that_says_so(self, client_as, viewer) -> None:
        answer = client_as(viewer).get("/runs/nothing")

        assert answer.status_code == 404
        assert "There is nothing here" in answer.text

    @pytest.mark.parametrize("part", ["head", "suspects", "ranks", "now", "phases", "may", "timeline", "chain"])
    def test_each_part_renders_by_itself(self, client_as, viewer, attempt, part: str) -> None:
        answer = client_as(viewer).get(f"/runs/dense-7b/parts/{part}", headers={"HX-Request": "true"})

        assert answer.status_code == 200
        assert "<html" not in answer.text

    def test_lanes_hold_the_attempt(self, client_as, viewer, attempt) -> None:
        lanes = client_as(viewer).get("/runs/dense-7b/lanes").json()["lanes"]

        assert [lane["name"] for lane in lanes] == [
            "attempts",
            "checkpoints",
            "findings",
            "node events",
            "actions",
            "notes",
        ]
        assert lanes[0]["marks"][0]["label"] == "attempt 1"

    def test_placement_names_the_node_of_each_rank(self, client_as, viewer, attempt) -> None:
        ranks = client_as(viewer).get("/runs/dense-7b/placement").json()["ranks"]

        assert (ranks["0"]["node"], ranks["7"]["node"], ranks["7"]["local_rank"]) == ("trn001", "trn002", 3)


class TestNodes:
    def test_nodes_of_a_run_are_tiles(self, client_as, viewer, attempt) -> None:
        answer = client_as(viewer).get("/nodes")

        assert 'href="/nodes/north/trn001"' in answer.text
        assert "2 in a run" in answer.text

    def test_a_node_has_its_record(self, client_as, viewer, attempt) -> None:
        answer = client_as(viewer).get("/nodes/north/trn001")

        assert answer.status_code == 200
        assert "dense-7b" in answer.text


class TestSettings:
    def test_a_viewer_sees_no_token(self, client_as, viewer, make_token) -> None:
        make_token("report", name="north runs")

        answer = client_as(viewer).get("/settings")

        assert "north runs" not in answer.text
        assert "Only an admin" in answer.text

    def test_an_operator_may_not_make_a_token(self, client_as, operator) -> None:
        answer = client_as(operator).post("/settings", {"act": "token", "name": "x", "scopes": ["admin"]})

        assert answer.status_code == 403

    def test_a_token_is_shown_once(self, client_as, admin) -> None:
        client = client_as(admin)

        made = client.post("/settings", {"act": "token", "name": "north", "scopes": ["report", "read"]})
        again = client.get("/settings")

        assert "pace_" in made.text
        assert "pace_" not in again.text
        assert "north" in again.text

    def test_a_revoked_token_says_so(self, client_as, admin, make_token) -> None:
        from apps.accounts.selectors import tokens_all

        make_token("report", name="old")
        client = client_as(admin)

        client.post("/settings", {"act": "revoke", "token": tokens_all()[0].id})

        assert "revoked" in client.get("/settings").text


class TestPlotly:
    def test_the_script_comes_from_the_wheel_compressed_and_for_a_year(self, client_as, viewer) -> None:
        from apps.console.selectors.plotly import plotly_tag

        answer = client_as(viewer).get(f"/assets/plotly-{plotly_tag()}.js", headers={"Accept-Encoding": "gzip"})

        assert answer["Content-Encoding"] == "gzip"
        assert "immutable" in answer["Cache-Control"]
        assert len(answer.content) < 2_000_000


class TestArrivals:
    def test_what_was_refused_is_on_the_page_with_why_how_often_and_a_sample(
        self, client_as, viewer, attempt, now
    ) -> None:
        from apps.telemetry.models import Refusal

        Refusal.objects.create(
            scope_kind="ATTEMPT",
            scope_id=attempt.id,
            sender="node-0007",
            reason="RANK_OUTSIDE",
            count=12,
            sample="rank <99>",
            first_at=now,
            last_at=now,
        )

        page = client_as(viewer).get("/runs/dense-7b").text

        assert "Not taken over" in page
        assert "node-0007" in page
        assert "rank &lt;99&gt;" in page
