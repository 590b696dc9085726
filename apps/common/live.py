"""Pokes: messages without content that tell open pages to look again. Losing every one of them loses nothing."""

import logging
from typing import Any

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

from apps.common.commits import on_commit_once

log = logging.getLogger(__name__)

FLEET_GROUP = "fleet"


def stream_group(stream_kind: str, stream_id: int) -> str:
    """Return the channel group that follows one log stream."""
    return f"stream.{stream_kind.lower()}.{stream_id}"


def poke_on_commit(group: str, message: dict[str, Any]) -> None:
    """Send `message` to `group` once the present transaction is committed; equal messages of one transaction go once."""
    on_commit_once(("poke", group, repr(sorted(message.items()))), lambda: poke(group, message))


def poke(group: str, message: dict[str, Any]) -> None:
    """Send `message` now. A channel layer that is away is logged and forgotten: the sweeps catch up."""
    try:
        async_to_sync(poke_async)(group, message)
    except RuntimeError:
        log.warning("a poke was asked for from inside an event loop", extra={"group": group})


async def poke_async(group: str, message: dict[str, Any]) -> None:
    """Send `message` now, from a coroutine; the same rules."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        await layer.group_send(group, {"type": "feed.poke", **message})
    except (redis.RedisError, OSError) as error:
        log.info("poke lost: %s", error)
