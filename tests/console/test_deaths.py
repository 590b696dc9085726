"""The last words of the first rank to die, on the incident's page."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from apps.engine.detection import CloseReason, Subject, SubjectKind
from apps.remediation.models import Action, Launch, Order
from apps.runs.models import Placement
from apps.runs.services import attempt_end
from apps.telemetry.models import Fact
from tests.console.conftest import HOT

LOST = replace(
    HOT,
    cause="rank_lost",
    subject=Subject(SubjectKind.RANK, rank=5, node="trn002"),
    verdict="Rank 5 on trn002 was killed by SIGKILL.",
)
NASTY = "<img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \u202ereversed"


@pytest.fixture
def told(attempt: Any, now: datetime) -> Any:
    """Tell a fact of a rank: `told("LOG", 5, "text")`."""

    def tell(kind: str, rank: int, text: str = "", **more: Any) -> None:
        times = dict.fromkeys(("happened_at", "received_at", "last_at", "until_at"), now)
        Fact.objects.create(
            attempt_id=attempt.id, kind=kind, rank=rank, text=text, fingerprint=b"", current=True, **times, **more
        )

    return tell


@pytest.fixture
def launched(attempt: Any, now: datetime) -> Any:
    """Let the attempt have been launched by Paceline, and ended: `launched(last_words="…")`."""

    def launch(**fields: Any) -> None:
        times = {"requested_at": now, "expires_at": now}
        action = Action.objects.create(kind="RESTART_RUN", state="SUCCEEDED", run_id=attempt.run_id, **times)
        order = Order.objects.create(action=action, kind="LAUNCH", launcher="LOCAL", state="DONE", not_before=now)
        given = {"state": "GONE", "started_at": now, "ended_at": now, **fields}
        Launch.objects.create(order=order, run_id=attempt.run_id, attempt_id=attempt.id, launcher="LOCAL", **given)

    return launch


@pytest.fixture
def page(client_as: Any, viewer: Any, now: datetime) -> Any:
    """The part of the one incident's page that tells who died first, as a viewer gets it."""

    def read() -> str:
        from apps.incidents.selectors import incidents_of

        number = incidents_of(now=now)[0].number
        whole = client_as(viewer).get(f"/incidents/{number}").text
        part = client_as(viewer).get(f"/incidents/{number}/parts/death", headers={"HX-Request": "true"}).text
        assert part.strip() in whole
        return str(part)

    return read


def shown(part: str) -> list[str]:
    """The lines that stand in the box."""
    found = re.search(r"<pre[^>]*>(.*?)</pre>", part, re.S)
    return html.unescape(found[1]).split("\n") if found else []


class TestDeath:
    def test_says_which_rank_where_how_and_its_last_hundred_lines(self, find: Any, told: Any, page: Any) -> None:
        find(LOST)
        told("EXIT", 5, signal=9)
        told("EXIT", 2, code=1)
        told("LOG", 2, "a victim's words")
        for number in range(130):
            told("LOG", 5, f"line {number}")

        part = page()

        assert "<b>Rank 5 on trn002</b> was killed by SIGKILL." in part
        assert "100 lines: its own last lines" in part
        assert shown(part) == [f"line {number}" for number in range(30, 130)]

    def test_takes_its_programs_words_where_the_rank_itself_said_nothing(
        self, find: Any, told: Any, launched: Any, page: Any
    ) -> None:
        find(LOST)
        told("EXIT", 5, code=1)
        launched(exit_status=1, last_words="Traceback (most recent call last):\n  RuntimeError: NCCL")

        part = page()

        assert "<b>Rank 5 on trn002</b> ended with status 1." in part
        assert "2 lines: the last lines of attempt 1, all its ranks together; none is marked as rank 5&#x27;s" in part
        assert shown(part)[-1] == "  RuntimeError: NCCL"

    def test_shows_the_lines_that_are_marked_as_its_own_first_and_then_all(
        self, find: Any, told: Any, launched: Any, page: Any
    ) -> None:
        find(LOST)
        told("EXIT", 5, code=1)
        mixed = ["[rank2]: waits", "[rank5]: KeyError: 'x'", "[rank55]: waits", "[default5]:waits", "[rank5]: <b>"]
        launched(exit_status=1, last_words="\n".join(mixed))

        part = page()

        assert "2 lines: its own last lines, as they are marked among those of all ranks of attempt 1" in part
        assert "5 lines: the last lines of attempt 1, all its ranks together" in part
        assert shown(part) == ["[rank5]: KeyError: 'x'", "[rank5]: <b>"]
        assert part.index("KeyError") < part.index("[rank2]: waits")

    @pytest.mark.parametrize(
        ("nodes", "said"),
        [(1, ["[default1]:RuntimeError: NCCL"]), (2, ["[default0]:waits", "[default1]:RuntimeError: NCCL"])],
    )
    def test_a_mark_that_counts_within_a_machine_says_whose_lines_only_where_there_is_one(
        self, find: Any, told: Any, launched: Any, page: Any, attempt: Any, nodes: int, said: list[str]
    ) -> None:
        whole = [1 + place % nodes for place in range(8)]
        Placement.objects.update_or_create(
            attempt_id=attempt.id,
            defaults={
                "nodes": np.array(whole, "<i8").tobytes(),
                "local_ranks": np.array([7, 6, 5, 4, 3, 1, 2, 0], "<i4").tobytes(),
                "stages": np.full(8, -1, "<i4").tobytes(),
            },
        )
        find(LOST)
        told("EXIT", 5, code=1)
        launched(exit_status=1, last_words="[default0]:waits\n[default1]:RuntimeError: NCCL")

        assert shown(page()) == said

    def test_says_so_where_nothing_of_it_is_known(self, find: Any, told: Any, page: Any) -> None:
        find(LOST)
        told("EXIT", 5, signal=11)

        part = page()

        assert "was killed by SIGSEGV: it touched memory that is not its own." in part
        assert "What it said last is not known here" in part

    def test_markup_stays_text_in_the_box_and_in_what_is_copied(self, find: Any, told: Any, page: Any) -> None:
        find(LOST)
        told("EXIT", 5, code=1)
        told("LOG", 5, NASTY)
        told("LOG", 5, "\"><script>alert('x')</script>")

        part = page()

        assert "<img" not in part
        assert "<script" not in part
        assert shown(part) == ["<img src=x onerror=alert(1)> red reversed", "\"><script>alert('x')</script>"]
        copied = re.search(r'data-copy="([^"]*)"', part)
        assert copied is not None
        assert html.unescape(copied[1]) == "\n".join(shown(part))

    def test_tells_of_the_whole_program_where_no_rank_is_known_to_have_died(
        self, find: Any, attempt: Any, launched: Any, page: Any, now: datetime
    ) -> None:
        find()
        launched(exit_status=127, last_words="sh: torchrun: not found")
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="WRAPPER", by="", source="LAUNCHER", now=now)

        part = page()

        assert "<b>The program of attempt 1</b> ended with status 127: the command was not found." in part
        assert shown(part) == ["sh: torchrun: not found"]

    def test_tells_what_a_program_said_whose_end_nobody_saw(
        self, find: Any, attempt: Any, launched: Any, page: Any, now: datetime
    ) -> None:
        find()
        launched(last_words="step 12")
        attempt_end(attempt_id=attempt.id, reason="UNKNOWN", authority="SILENCE", by="", source="LAUNCHER", now=now)

        part = page()

        assert "<b>The program of attempt 1</b> is gone, and nobody saw how it ended." in part
        assert shown(part) == ["step 12"]

    def test_says_what_else_is_known_of_a_programs_end(
        self, find: Any, attempt: Any, launched: Any, page: Any, now: datetime
    ) -> None:
        find()
        launched(exit_signal=9, exit_note="the kernel ended it for want of memory", last_words="step 12")
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="WRAPPER", by="", source="LAUNCHER", now=now)

        assert "was killed by SIGKILL (the kernel ended it for want of memory)." in page()

    @pytest.mark.parametrize(("dies_after_s", "is_told"), [(5, True), (26, False)])
    def test_is_not_there_of_a_program_that_died_after_the_incident_was_over(
        self,
        find: Any,
        attempt: Any,
        launched: Any,
        page: Any,
        now: datetime,
        later: Any,
        dies_after_s: float,
        is_told: bool,
    ) -> None:
        find()
        find(replace(HOT, closed=CloseReason.RECOVERED), at=later(20))
        launched(exit_status=1, last_words="practice-03 is lost", ended_at=later(dies_after_s))
        attempt_end(
            attempt_id=attempt.id, reason="CRASHED", authority="WRAPPER", by="", source="LAUNCHER", now=later(40)
        )

        assert ("practice-03 is lost" in page()) is is_told

    def test_is_not_there_where_nobody_died(self, find: Any, launched: Any, page: Any) -> None:
        find()
        launched(exit_signal=15, last_words="asked to leave")

        assert page().strip() == ""
