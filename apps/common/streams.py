"""Answers that are written while they are made, so that a long one needs no memory."""

from collections.abc import AsyncIterator, Iterable, Iterator

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import StreamingHttpResponse


def stream_answer(parts: Iterable[str], *, content_type: str, filename: str) -> StreamingHttpResponse:
    """Return an answer that a browser keeps as a file, sent part by part as `parts` gives them."""
    return StreamingHttpResponse(
        _sent(iter(parts)),
        content_type=content_type,
        headers={"Content-Disposition": f'attachment; filename="{filename}"', "X-Accel-Buffering": "no"},
    )


async def _sent(parts: Iterator[str]) -> AsyncIterator[bytes]:
    def following() -> str | None:
        try:
            return next(parts, None)
        finally:
            if not connection.in_atomic_block:
                connection.close()  # back into the pool: a reader may take its time for this part

    # A plain iterator would be read to its end before the first byte goes out.
    while (part := await sync_to_async(following)()) is not None:
        yield part.encode()
