"""Prices on buttons: they keep their places, stand still while they are read, and say how sure they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.console.selectors.actions import confirm_page
from apps.console.selectors.suspects import in_order, price_words
from apps.remediation.choices import Moment
from apps.remediation.selectors import Price, restart_preview

from .test_choices import hooked, text_of

__all__ = ["hooked"]


def price(moment: str, gpu_hours: float | None, **more: Any) -> Price:
    """A price of which only what is given is known."""
    known = {"from_step": 300, "stop_step": 320, "steps": 20, "downtime_n": 5, "downtime_from": "OWN"}
    names = dict.fromkeys(Price.__dataclass_fields__)
    return Price(**names | known | {"moment": moment, "gpu_hours": gpu_hours} | more)


class TestPlaces:
    def test_the_least_stands_first_on_a_card_that_nobody_saw(self) -> None:
        rows = in_order([price("NOW", 0.11), price("CHECKPOINT_FIRST", 0.10)])

        assert [row.moment for row in rows] == ["CHECKPOINT_FIRST", "NOW"]

    @pytest.mark.parametrize(
        ("stood", "other", "held", "first"),
        [
            (1.0, 0.9, False, "NOW"),
            (1.0, 0.7, False, "CHECKPOINT_FIRST"),
            (1.0, 0.1, True, "NOW"),
            (0.08, 0.02, False, "NOW"),  # a quarter, of next to nothing
        ],
    )
    def test_what_stood_first_leaves_its_place_to_a_clearly_lower_price_and_never_under_a_hand(
        self, stood: float, other: float, held: bool, first: str
    ) -> None:
        rows = in_order([price("NOW", stood), price("CHECKPOINT_FIRST", other)], first="NOW", held=held)

        assert rows[0].moment == first

    def test_a_part_that_is_made_again_keeps_the_order_that_the_reader_has(
        self, client_as: Any, operator: Any, hooked: Any, pace: Any, find: Any
    ) -> None:
        from apps.diagnosis.selectors import findings_of

        find()
        number = findings_of(run_id=pace.id)[0].id
        address = "/runs/dense-7b/parts/suspects"

        shown = [
            text_of(client_as(operator), f"{address}?stood={number}:{moment}&held=1")
            for moment in ("NOW", "CHECKPOINT_FIRST")
        ]

        assert [page.index("Exclude and restart now…") < page.index("Checkpoint, exclude") for page in shown] == [
            True,
            False,
        ]
        assert f'name="stood" value="{number}:NOW"' in shown[0]


class TestFigures:
    @pytest.mark.parametrize(("one", "next_one"), [(11.0, 12.0), (43.0, 46.0)])
    def test_stand_still_while_seconds_pass(self, one: float, next_one: float) -> None:
        said = {
            price_words(price("NOW", 0.0512 + at / 10_000, full_pace_s=at, downtime_s=4.0)) for at in (one, next_one)
        }

        assert len(said) == 1

    def test_say_the_spread_where_few_restarts_were_measured(self) -> None:
        few = price("NOW", 0.05, full_pace_s=20.0, downtime_s=5.0, downtime_low_s=2.0, downtime_high_s=30.0)

        assert "back in 15\u00a0s to 45\u00a0s" in price_words(replace(few, downtime_n=2))
        assert "back in 20\u00a0s" in price_words(few)


class TestConfirm:
    def test_who_waits_for_a_save_goes_on_from_it(self, hooked: Any, pace: Any, now: Any) -> None:
        preview = restart_preview(pace.id, now=now)
        at_save = preview.price_at(Moment.CHECKPOINT_FIRST)

        waits = confirm_page(preview, when=Moment.CHECKPOINT_FIRST, now=now)
        at_once = confirm_page(preview, when=Moment.NOW, now=now)

        assert at_save is not None
        assert [label for _, label, _ in waits.saves] == [f"the save it waits for, about step {at_save.from_step}"]
        assert at_once.saves[0][1] == "step 90, the newest that can be trusted"

    def test_what_happens_and_the_orders_name_the_save_that_is_awaited(
        self, client_as: Any, operator: Any, hooked: Any, pace: Any
    ) -> None:
        page = text_of(client_as(operator), "/runs/dense-7b/actions/new?kind=RESTART_RUN&when=CHECKPOINT_FIRST")

        assert page.count("from the save it waits for, about step 135") == 2
        assert "from step 90" not in page

    def test_a_node_taken_back_is_counted_and_nobody_is_sent_to_a_scheduler_that_is_not_there(
        self, client_as: Any, operator: Any, attempt: Any
    ) -> None:
        client = client_as(operator)
        out = "/nodes/north/trn002/actions/new?kind=EXCLUDE_NODE"
        client.post(out, {"kind": "EXCLUDE_NODE", "key": "k" * 24, "reason": "ECC errors on GPU 2 since noon"})

        page = text_of(client, "/nodes/north/trn002/actions/new?kind=READMIT_NODE")

        assert "<b>1, then 0</b> of 2" in page
        assert "scontrol" not in page


class TestByHand:
    def test_a_run_that_paceline_may_not_restart_says_what_to_do_and_what_waiting_costs(
        self, client_as: Any, operator: Any, pace: Any, find: Any
    ) -> None:
        find()

        page = text_of(client_as(operator), "/runs/dense-7b/parts/suspects")

        assert "Exclude and restart it yourself…" in page
        assert "the commands stand ready: no launcher is set for this run" in page
        assert "each minute costs" in page
        assert "paid back" not in page
