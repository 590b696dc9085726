"""Scheduler times: a configured zone, the doubled hour said, words for none, epochs of any version."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from apps.engine.readers.slurm import epoch_read, time_read, times_in_order

PARIS = ZoneInfo("Europe/Paris")


class TestTimeRead:
    @pytest.mark.parametrize(
        ("text", "at", "uncertain"),
        [
            ("2026-11-30T12:50:48", datetime(2026, 11, 30, 11, 50, 48, tzinfo=UTC), False),
            ("2026-07-01T12:00:00", datetime(2026, 7, 1, 10, 0, tzinfo=UTC), False),
            ("2026-10-25T02:30:00", datetime(2026, 10, 25, 0, 30, tzinfo=UTC), True),
            ("2026-03-29T02:30:00", datetime(2026, 3, 29, 1, 30, tzinfo=UTC), True),
            ("2026-11-30T12:50:48+0000", datetime(2026, 11, 30, 12, 50, 48, tzinfo=UTC), False),
            ("2026-11-30T05:50:48-07:00", datetime(2026, 11, 30, 12, 50, 48, tzinfo=UTC), False),
            ("1796043048", datetime(2026, 11, 30, 12, 50, 48, tzinfo=UTC), False),
        ],
    )
    def test_places_a_moment_in_the_zone_of_its_source(self, text: str, at: datetime, uncertain: bool) -> None:
        read = time_read(text, zone=PARIS)

        assert read is not None
        assert (read.at, read.uncertain) == (at, uncertain)

    @pytest.mark.parametrize("text", ["None", "Unknown", "N/A", "(null)", "", "INFINITE"])
    def test_a_word_for_none_is_no_moment(self, text: str) -> None:
        read = time_read(text, zone=PARIS)

        assert read is not None
        assert read.at is None

    @pytest.mark.parametrize("text", ["soon", "2026-13-01T00:00:00", "2026-11-30T25:00:00", "12:00", "14:24:22"])
    def test_what_is_not_understood_is_not_guessed(self, text: str) -> None:
        assert time_read(text, zone=PARIS) is None

    def test_a_time_of_day_belongs_to_a_day_that_is_given_and_is_uncertain(self) -> None:
        read = time_read("14:24:22", zone=PARIS, today=datetime(2026, 11, 30, 23, 30, tzinfo=UTC))

        assert read is not None
        assert (read.at, read.uncertain) == (datetime(2026, 12, 1, 13, 24, 22, tzinfo=UTC), True)


class TestTimesInOrder:
    @pytest.mark.parametrize(
        ("written", "read"),
        [
            (["2026-10-25T01:50:00", "2026-10-25T02:10:00"], ["23:50", "00:10"]),
            (["2026-10-25T02:50:00", "2026-10-25T02:10:00", "2026-10-25T02:20:00"], ["00:50", "01:10", "01:20"]),
            (["2026-10-25T02:50:00", "Unknown", "2026-10-25T02:10:00"], ["00:50", "", "01:10"]),
            (["2026-10-25T02:20:00", "2026-10-25T02:40:00"], ["00:20", "00:40"]),
            (["2026-10-25T03:10:00", "2026-10-25T02:40:00"], ["02:10", "00:40"]),
            (["2026-10-25T02:50:00+02:00", "2026-10-25T02:10:00"], ["00:50", "01:10"]),
            (["2026-03-29T03:40:00", "2026-03-29T02:30:00"], ["01:40", "01:30"]),
            (["2026-11-30T12:00:00", "2026-11-30T11:00:00"], ["11:00", "10:00"]),
        ],
    )
    def test_of_an_hour_that_exists_twice_the_second_is_taken_where_the_first_came_too_early(
        self, written: list[str], read: list[str]
    ) -> None:
        times = [time for text in written if (time := time_read(text, zone=PARIS)) is not None]

        placed = times_in_order(times, zone=PARIS)

        assert [f"{time.at:%H:%M}" if time.at else "" for time in placed] == read
        assert [time.uncertain for time in placed] == [time.uncertain for time in times]


class TestEpochRead:
    @pytest.mark.parametrize(
        "value", [0, None, {"set": False, "number": 5}, {"set": True, "infinite": True}, 6091010462]
    )
    def test_what_is_unset_or_endless_is_no_moment(self, value: object) -> None:
        read = epoch_read(value)

        assert read is not None
        assert read.at is None

    @pytest.mark.parametrize("value", [float("nan"), 10**30, [1], "x"])
    def test_what_is_no_number_is_not_understood(self, value: object) -> None:
        assert epoch_read(value) is None
