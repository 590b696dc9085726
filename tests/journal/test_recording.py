"""The log: dense numbers, one statement, append-only."""

import threading
from datetime import datetime

import pytest
from django.db import DatabaseError, connection, connections, transaction

from apps.journal.choices import Source, StreamKey
from apps.journal.models import Event
from apps.journal.selectors import events_after, events_latest, stream_seq
from apps.journal.services import recording
from apps.telemetry.selectors.sql import cursor as binary_cursor


def write(stream: StreamKey, *texts: str, now: datetime) -> None:
    with recording(now=now) as log:
        for text in texts:
            log.add(stream, kind="test.said", text=text, source=Source.SYSTEM)


def write_and_fail(now: datetime) -> None:
    with recording(now=now) as log:
        log.add(StreamKey.run(1), kind="test.said", text="never happened", source=Source.SYSTEM)
        raise RuntimeError


@pytest.mark.django_db
class TestRecording:
    def test_numbers_each_stream_densely_in_the_order_of_adding(self, now: datetime) -> None:
        with recording(now=now) as log:
            log.add(StreamKey.run(7), kind="a.b", text="one", source=Source.SYSTEM)
            log.add(StreamKey.node(7), kind="a.b", text="other stream", source=Source.SYSTEM)
            log.add(StreamKey.run(7), kind="a.b", text="two", source=Source.SYSTEM)
        write(StreamKey.run(7), "three", now=now)

        rows = events_after(StreamKey.run(7), after=0, limit=10)

        assert [(row.seq, row.text) for row in rows] == [(1, "one"), (2, "two"), (3, "three")]
        assert stream_seq(StreamKey.node(7)) == 1

    def test_takes_no_number_for_what_was_rolled_back(self, now: datetime) -> None:
        write(StreamKey.run(1), "kept", now=now)
        with pytest.raises(RuntimeError):
            write_and_fail(now)
        write(StreamKey.run(1), "kept too", now=now)

        assert [(row.seq, row.text) for row in events_after(StreamKey.run(1), after=0, limit=9)] == [
            (1, "kept"),
            (2, "kept too"),
        ]

    def test_drops_the_events_of_an_inner_block_that_failed_and_keeps_the_outer_ones(self, now: datetime) -> None:
        with recording(now=now) as log:
            log.add(StreamKey.run(1), kind="a.b", text="outer", source=Source.SYSTEM)
            with pytest.raises(RuntimeError):
                write_and_fail(now)

        assert [row.text for row in events_latest(StreamKey.run(1), limit=9)] == ["outer"]

    def test_keeps_the_time_of_happening_apart_from_the_time_of_recording(self, now: datetime, later) -> None:
        with recording(now=later(60)) as log:
            log.add(StreamKey.system(), kind="a.b", text="late", source=Source.API, happened_at=now)

        row = events_latest(StreamKey.system(), limit=1)[0]

        assert (row.happened_at, row.recorded_at) == (now, later(60))

    def test_refuses_a_time_without_a_zone(self, now: datetime) -> None:
        with pytest.raises(ValueError, match="zone"), recording(now=now) as log:
            log.add(StreamKey.system(), kind="a.b", text="x", source=Source.API, happened_at=now.replace(tzinfo=None))

    @pytest.mark.parametrize("statement", ["UPDATE journal_event SET kind = 'x'", "DELETE FROM journal_event"])
    def test_lets_nobody_change_or_delete_a_row(self, statement: str, now: datetime) -> None:
        write(StreamKey.run(1), "for ever", now=now)

        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)

        assert Event.objects.count() == 1


@pytest.mark.django_db
class TestTheApplicationsOwnRole:
    """What `apps` connects as: the role that may write the log can neither change nor empty it."""

    @pytest.mark.parametrize(
        "statement",
        [
            "TRUNCATE journal_event",
            "TRUNCATE journal_event, journal_stream RESTART IDENTITY CASCADE",
            "UPDATE journal_event SET payload = '{}'",
            "DELETE FROM journal_event",
            "INSERT INTO journal_event (id, stream_kind, stream_id, seq, happened_at, recorded_at, kind, source, actor_name,"
            " subject, payload) SELECT id, stream_kind, stream_id, seq, happened_at, recorded_at, 'x', source, actor_name,"
            " subject, payload FROM journal_event ON CONFLICT (id) DO UPDATE SET kind = 'x'",
        ],
    )
    def test_cannot_change_delete_or_empty_it(self, statement: str, now: datetime) -> None:
        write(StreamKey.run(1), "for ever", now=now)

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL paceline.truncate = 'off'")  # as in every database but those of tests
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                cursor.execute(statement)

        assert [row.text for row in events_latest(StreamKey.run(1), limit=9)] == ["for ever"]

    def test_gives_no_number_of_a_stream_twice(self, now: datetime) -> None:
        write(StreamKey.run(1), "for ever", now=now)

        with (
            pytest.raises(DatabaseError, match="journal_event_key"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "INSERT INTO journal_event (stream_kind, stream_id, seq, happened_at, recorded_at, kind, source, actor_name,"
                " subject, payload) SELECT stream_kind, stream_id, seq, happened_at, recorded_at, kind, source, 'somebody else',"
                " subject, payload FROM journal_event"
            )


@pytest.mark.django_db(transaction=True)
def test_two_writers_of_one_stream_leave_no_hole_and_no_double(now: datetime) -> None:
    def many() -> None:
        for _ in range(20):
            write(StreamKey.run(3), "a", "b", now=now)
        connections.close_all()

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [row.seq for row in events_after(StreamKey.run(3), after=0, limit=1000)] == list(range(1, 121))


@pytest.mark.django_db
class TestTimesOutsideOfTheCalendar:
    @pytest.mark.parametrize(
        ("stored", "year"), [("10000-01-01 13:59:59+00", 9000), ("infinity", 9000), ("0044-03-15 00:00:00+00 BC", 1970)]
    )
    def test_that_are_stored_already_can_be_read(self, now: datetime, stored: str, year: int) -> None:
        stream = StreamKey.run(7)
        write(stream, "before", now=now)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO journal_event (stream_kind, stream_id, seq, happened_at, recorded_at, kind, source,"
                " actor_name, subject, payload) VALUES ('RUN', 7, 2, %s, %s, 'rank.log', 'SENDER', '', '{}', '{}')",
                [stored, now],
            )

        rows = events_after(stream, after=0, limit=10)
        with binary_cursor() as cursor:
            cursor.execute("SELECT happened_at FROM journal_event ORDER BY seq")
            binary = [at.year for (at,) in cursor]

        assert [row.happened_at.year for row in rows] == binary == [now.year, year]
