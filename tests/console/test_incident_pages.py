"""The incident's page: what it shows, what people write and do there, and what it keeps of it."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from apps.common.errors import BadRequest
from apps.incidents.services import note_add
from apps.journal.choices import Source, StreamKey
from apps.journal.services import recording


class TestList:
    def test_it_shows_what_is_not_over(self, client_as, viewer, incident) -> None:
        answer = client_as(viewer).get("/incidents")

        assert f"INC-{incident.number}" in answer.text
        assert "nobody yet" in answer.text

    def test_without_incidents_it_says_so_quietly(self, client_as, viewer) -> None:
        assert "No open incidents" in client_as(viewer).get("/incidents").text


class TestPage:
    def test_it_tells_what_where_since_when_and_the_evidence(self, client_as, viewer, incident) -> None:
        answer = client_as(viewer).get(f"/incidents/{incident.number}")

        assert answer.status_code == 200
        for words in ("trn001 runs hot", "thermal_throttle", "8.82", "7.05", "1.25", "Record of trn001"):
            assert words in answer.text

    def test_evidence_is_a_picture_of_the_ranks_it_names_and_those_beside(self, client_as, viewer, incident) -> None:
        import json
        from html import unescape

        client = client_as(viewer)
        shown = client.get(f"/incidents/{incident.number}").text
        band = json.loads(unescape(re.search(r'data-band="([^"]*)"', shown).group(1)))

        assert band["ranks"] == [0, 1, 2, 3]
        assert band["since"] == 100
        assert "ranks=0-7" in band["url"]
        assert client.get(band["url"]).status_code == 200

    def test_a_viewer_reads_and_is_told_why_there_is_no_composer(self, client_as, viewer, incident) -> None:
        answer = client_as(viewer).get(f"/incidents/{incident.number}")

        assert "You may read this timeline" in answer.text
        assert 'id="write"' not in answer.text

    def test_rows_of_the_machinery_come_hidden_before_any_script_runs(self, client_as, viewer, incident) -> None:
        shown = (
            client_as(viewer).get(f"/incidents/{incident.number}/parts/timeline", headers={"HX-Request": "true"}).text
        )

        groups = {
            group: "hidden-row" in cls for cls, group in re.findall(r'<li([^>]*?) id="[^"]*" data-group="(\w+)"', shown)
        }
        assert groups == {group: group == "system" for group in groups}
        assert "system" in groups
        assert len(groups) > 1

    def test_what_happened_long_before_stands_in_one_row_that_opens(
        self, client_as, operator, attempt, incident
    ) -> None:
        began, run = incident.began_at, StreamKey.run(attempt.run_id)
        with recording(now=began) as log:
            for minutes, text in ((9, "Attempt 3 ended"), (5, "Attempt 4 begins"), (1, "Rank 2 warns")):
                log.add(
                    run,
                    kind="rank.warned",
                    text=text,
                    source=Source.SENDER,
                    happened_at=began - timedelta(minutes=minutes),
                )
        note_add(
            incident_id=incident.id,
            text="a fan was loud",
            happened_at=began - timedelta(minutes=7),
            author_key="x",
            author_name="ops",
            source=Source.WEB,
            now=incident.found_at,
        )

        shown = client_as(operator).get(f"/incidents/{incident.number}").text
        rows = re.findall(r"<li[^>]*data-at=.*?</li>", shown, re.S)
        folded = [row for row in rows if "data-earlier" in row]

        assert "2 earlier rows" in shown
        assert [any(text in row for row in folded) for text in ("Attempt 3", "Attempt 4", "Rank 2", "a fan")] == [
            True,
            True,
            False,
            False,
        ]
        assert all("hidden-row" in row for row in folded)

    @pytest.mark.parametrize("part", ["head", "timeline", "rail"])
    def test_each_part_renders_by_itself(self, client_as, viewer, incident, part: str) -> None:
        answer = client_as(viewer).get(f"/incidents/{incident.number}/parts/{part}", headers={"HX-Request": "true"})

        assert answer.status_code == 200
        assert "<html" not in answer.text


class TestWork:
    def test_an_operator_acknowledges_and_owns_it(self, client_as, operator, incident) -> None:
        client = client_as(operator)

        client.post(f"/incidents/{incident.number}/work", {"act": "acknowledge"})

        assert "Acknowledged" in client.get(f"/incidents/{incident.number}").text
        assert "operator" in client.get("/incidents").text

    def test_a_viewer_may_not(self, client_as, viewer, incident) -> None:
        answer = client_as(viewer).post(f"/incidents/{incident.number}/work", {"act": "acknowledge"})

        assert answer.status_code == 403
        assert "right to operate" in answer.text

    def test_resolving_asks_for_the_cause_and_keeps_the_answer(self, client_as, operator, incident) -> None:
        client = client_as(operator)

        client.post(
            f"/incidents/{incident.number}/work",
            {"act": "resolve", "answer": "CONFIRMED", "words": "fan tray changed"},
        )

        page = client.get(f"/incidents/{incident.number}").text
        assert "fan tray changed" in page
        assert "they said: confirmed" in page

    def test_a_second_resolve_says_that_it_is_over(self, client_as, operator, incident) -> None:
        client = client_as(operator)
        form = {"act": "resolve", "answer": "UNKNOWN", "words": "quiet"}
        client.post(f"/incidents/{incident.number}/work", form)

        answer = client.post(f"/incidents/{incident.number}/work", form)

        assert answer.status_code == 409
        assert "incident_state" in answer.text


class TestNotes:
    def test_markup_in_a_note_stays_text(self, client_as, operator, incident) -> None:
        client = client_as(operator)

        client.post(f"/incidents/{incident.number}/notes", {"text": "<img src=x onerror=alert(1)>"})

        page = client.get(f"/incidents/{incident.number}").text
        assert "<img src=x" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page

    def test_a_back_dated_note_shows_when_it_was_written(self, client_as, operator, incident) -> None:
        client = client_as(operator)

        client.post(
            f"/incidents/{incident.number}/notes",
            {"text": "fan at 60 %", "at": f"{incident.began_at:%Y-%m-%d %H:%M}", "offset_min": "0"},
        )

        assert "written" in client.get(f"/incidents/{incident.number}").text

    def test_pasted_lines_become_a_note_each(self, client_as, operator, incident) -> None:
        from apps.incidents.models import Note

        client_as(operator).post(
            f"/incidents/{incident.number}/notes",
            {"text": "02:05 looked at trn018\n02:07 and at trn019", "offset_min": "60"},
        )

        rows = list(Note.objects.order_by("happened_at").values_list("text", flat=True))
        assert rows == ["looked at trn018", "and at trn019"]

    def test_an_edit_keeps_what_was_said_before(self, client_as, operator, incident) -> None:
        from apps.incidents.models import Note

        client = client_as(operator)
        client.post(f"/incidents/{incident.number}/notes", {"text": "it is the air"})
        note = Note.objects.get()

        client.post(f"/incidents/{incident.number}/notes/{note.pk}", {"text": "it is the fan", "version": "1"})

        page = client.get(f"/incidents/{incident.number}").text
        assert "it is the fan" in page
        assert "it is the air" in page
        assert "see before" in page

    def test_an_edit_of_an_old_version_is_refused(self, client_as, operator, incident) -> None:
        from apps.incidents.models import Note

        client = client_as(operator)
        client.post(f"/incidents/{incident.number}/notes", {"text": "one"})
        note = Note.objects.get()
        client.post(f"/incidents/{incident.number}/notes/{note.pk}", {"text": "two", "version": "1"})

        answer = client.post(f"/incidents/{incident.number}/notes/{note.pk}", {"text": "three", "version": "1"})

        assert answer.status_code == 409
        assert Note.objects.get().text == "two"

    def test_nobody_edits_anothers_note(self, client_as, operator, admin, incident) -> None:
        from apps.incidents.models import Note

        client_as(operator).post(f"/incidents/{incident.number}/notes", {"text": "mine"})
        note = Note.objects.get()

        answer = client_as(admin).post(
            f"/incidents/{incident.number}/notes/{note.pk}", {"text": "yours", "version": "1"}
        )

        assert answer.status_code == 403
        assert Note.objects.get().text == "mine"

    def test_a_pin_shows(self, client_as, operator, incident) -> None:
        from apps.incidents.models import Note

        client = client_as(operator)
        client.post(f"/incidents/{incident.number}/notes", {"text": "keep this"})

        client.post(f"/incidents/{incident.number}/notes/{Note.objects.get().pk}", {"pinned": "1"})

        assert "Pinned" in client.get(f"/incidents/{incident.number}").text


class TestMomentOf:
    NOW = datetime(2026, 12, 1, 1, 14, tzinfo=UTC)

    def test_a_clock_alone_is_the_newest_that_has_passed(self) -> None:
        from apps.console.views.incidents import moment_of

        assert moment_of("02:05", self.NOW, 60) == datetime(2026, 12, 1, 1, 5, tzinfo=UTC)
        assert moment_of("23:50", self.NOW, 60) == datetime(2026, 11, 30, 22, 50, tzinfo=UTC)

    def test_a_day_can_be_given(self) -> None:
        from apps.console.views.incidents import moment_of

        assert moment_of("2026-11-28 07:31:05", self.NOW, 0) == datetime(2026, 11, 28, 7, 31, 5, tzinfo=UTC)

    @pytest.mark.parametrize("text", ["25:00", "yesterday", "2026-02-30 10:00", ""])
    def test_what_is_no_time_is_refused_with_a_sentence(self, text: str) -> None:
        from apps.console.views.incidents import moment_of

        with pytest.raises(BadRequest, match="time"):
            moment_of(text, self.NOW, 0)
