from __future__ import annotations

from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from apps.common.streams import stream_answer


def counted(parts: int) -> Iterator[str]:
    for number in range(parts):
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::text", (number,))
            yield f"{cursor.fetchone()[0]}\n"


def lends() -> bool:
    return connection.connection is not None


@pytest.mark.django_db(transaction=True)
class TestStreamAnswer:
    def test_holds_no_connection_while_a_reader_takes_its_time(self) -> None:
        async def read() -> tuple[list[bytes], list[bool]]:
            parts, lent = [], []
            async for part in stream_answer(counted(3), content_type="text/plain", filename="n.txt"):
                parts.append(part)
                lent.append(await sync_to_async(lends)())
            return parts, lent

        assert async_to_sync(read)() == ([b"0\n", b"1\n", b"2\n"], [False, False, False])
