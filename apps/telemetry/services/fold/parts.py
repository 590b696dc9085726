"""What reports say besides values: beats, where ranks sit, saves. Facts have a file of their own."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from apps.fleet.selectors import nodes_by_id
from apps.fleet.services import NAME_LENGTH, NAME_RULE, name_is_usable, nodes_ensure
from apps.journal.choices import Source
from apps.runs.choices import CheckpointState
from apps.runs.selectors import placement_of
from apps.runs.services import CheckpointFact, RankPlace, checkpoint_note, placement_merge, status_update
from apps.telemetry.choices import Reason
from apps.telemetry.selectors.beats import beats_merged, beats_packed
from apps.telemetry.services.fold.entries import Entry, Refusals
from apps.telemetry.services.parse import Refused, Save
from apps.telemetry.services.parse.parts import text_clean

INT8 = 2**63 - 1


def beats_keep(entries: Sequence[Entry], refusals: Refusals, *, world_size: int) -> None:
    """Keep the newest beat of each rank with its sender. What comes late says nothing about now."""
    for entry in entries:
        beats = entry.parsed.beats
        if not beats or not entry.is_now:
            continue
        inside = {beat.rank: beat for beat in beats if 0 <= beat.rank < world_size and (beat.step or 0) >= 0}
        if len(inside) < len({beat.rank for beat in beats}):
            outside = next(beat for beat in beats if beat.rank not in inside)
            refusals.add(entry.row, Refused(Reason.RANK_OUTSIDE, f"beat of rank {outside.rank} of {world_size}"))
        found = [(b.rank, b.step, b.phase, b.phase_age_s) for b in inside.values()]
        new = beats_packed(sorted(found, key=lambda beat: beat[0]), entry.row.received_at.timestamp())
        entry.process.beats = beats_merged(entry.process.beats, new)


def drops_keep(entries: Sequence[Entry]) -> None:
    """Keep what senders say that they lost: counts since they began, so the newest word is the whole."""
    for entry in entries:
        if entry.parsed.drops and entry.is_now:
            entry.process.drops = {**entry.process.drops, **entry.parsed.drops}


def places_keep(
    entries: Sequence[Entry],
    refusals: Refusals,
    *,
    attempt_id: int,
    run_id: int,
    cluster_id: int,
    world_size: int,
    now: datetime,
) -> None:
    """Take over where ranks of the world sit; nodes that were never heard of appear."""
    told = []
    for entry in entries:
        inside = [place for place in entry.parsed.places if place.rank < world_size]
        outside = [place.rank for place in entry.parsed.places if place.rank >= world_size]
        told += [(entry, place) for place in inside]
        if outside:
            why = f"placement of rank {outside[0]} of {world_size}"
            refusals.add(entry.row, Refused(Reason.RANK_OUTSIDE, why, len(outside)))
    if told:
        status_update(run_id=run_id)  # locks the run's status before the nodes', as everywhere: run, then node
        names = {place.node for _, place in told if name_is_usable(place.node)}
        nodes = nodes_ensure(cluster_id=cluster_id, names=names, now=now)
        places = []
        for entry, place in told:
            if place.node not in nodes:
                why = f"“{place.node[:80]}”: a name has 1 to {NAME_LENGTH} characters, {NAME_RULE}"
                refusals.add(entry.row, Refused(Reason.NODE_NAME, why))
                continue
            node_id = nodes[place.node]
            places.append(RankPlace(place.rank, node_id, place.local_rank, place.gpu, place.coords))
            entry.process.node_id = node_id
        placement_merge(attempt_id=attempt_id, places=places)
    _name_senders([entry for entry in entries if entry.process.is_new], attempt_id=attempt_id)


def saves_keep(entries: Sequence[Entry], refusals: Refusals, *, attempt_id: int, now: datetime) -> None:
    """Tell the run about its checkpoints, at times of our own clock as far as the senders' are off."""
    for entry in entries:
        for save in entry.parsed.saves:
            if save.kind == "restore" and save.state.upper() != CheckpointState.RESTORED:
                continue  # that a restore began or failed says nothing about the save
            fact = _fact(entry, save)
            if fact is None:
                refusals.add(entry.row, Refused(Reason.WORD, f"checkpoint state “{save.state[:40]}”"))
                continue
            checkpoint_note(
                attempt_id=attempt_id,
                fact=fact,
                source=Source.SENDER,
                actor_name=entry.row.sender,
                now=now,
            )


def moment_of(entry: Entry, happened_at: datetime | None) -> datetime:
    """Return when something happened by our own clock: the sender's word moved by its offset, else when it was sent."""
    if happened_at is None or happened_at.tzinfo is None:
        return entry.row.received_at
    try:
        return happened_at + timedelta(seconds=entry.process.offset)
    except OverflowError:
        return entry.row.received_at


def _fact(entry: Entry, save: Save) -> CheckpointFact | None:
    state = save.state.upper()
    if state not in CheckpointState.values:
        return None
    return CheckpointFact(
        step=save.step,
        state=state,
        happened_at=moment_of(entry, save.happened_at),
        duration_s=_seconds(save.duration_s),
        queue_s=_seconds(save.queue_s),
        blocking_s=_seconds(save.blocking_s),
        bytes=int(save.bytes) if save.bytes is not None and 0 <= save.bytes < INT8 else None,
        rank=save.rank,
        error=text_clean(save.error, length=2_000),
    )


def _seconds(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < 1e9 else None


def _name_senders(entries: Iterable[Entry], *, attempt_id: int) -> None:
    """A sender that is called like a node of the attempt speaks for it, even where it tells no places itself."""
    unnamed = [entry for entry in entries if entry.process.node_id is None]
    if not unnamed:
        return
    placement = placement_of(attempt_id)
    if placement is None:
        return
    nodes = {row.name: row.id for row in nodes_by_id(placement.node_ids).values()}
    for entry in unnamed:
        entry.process.node_id = nodes.get(entry.row.sender)
