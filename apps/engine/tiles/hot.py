"""Hot blocks: the values of all metrics of 1,024 entities in one column, as one blob that a fold rewrites.

FORMAT.md describes the bytes. A blob is raw float32, so that a fold reads it without copying and a page can fetch one
metric as a slice. Values are written into it by `scatter`.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import at_least
from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles.errors import TileCorrupt
from apps.engine.tiles.framing import HEAD_BYTES, check_sum, head, need, open_head
from apps.engine.tiles.layout import BLOCK

Cells = NDArray[np.float32]

ABSENT = np.uint32(0x7FC00000).view(np.float32)
"""The one NaN that means absent; every other NaN is turned into it when a blob is written."""

MAGIC = b"PHOT"
VERSION = 1
COUNT_BIT = 0x8000
"""Added to a metric's id for the row that counts the samples in its mean. Sealing leaves such rows out."""

_FIELDS = struct.Struct("<HHxxx")  # n_metrics, n_entities


@dataclass(frozen=True, eq=False)
class HotBlock:
    """One column of one block. metric_ids: the row order; cells: float32 [metric, entity], absent is NaN."""

    metric_ids: tuple[int, ...]
    cells: Cells

    @property
    def n_entities(self) -> int:
        return int(self.cells.shape[1])

    def row(self, metric_id: int) -> Cells | None:
        """The values of one metric, float32 [entity], or None if the block does not have it."""
        return self.cells[self.metric_ids.index(metric_id)] if metric_id in self.metric_ids else None


def header_bytes(n_metrics: int) -> int:
    """Return where the values begin in a blob of `n_metrics` metrics, in bytes.

    >>> header_bytes(8), header_bytes(0)
    (72, 24)
    """
    return (HEAD_BYTES + 4 + 6 * n_metrics + 7) // 8 * 8


def row_slice(n_metrics: int, position: int, n_entities: int) -> tuple[int, int]:
    """Return (offset, length), in bytes from 0, of one metric's values in a blob, for reading a slice of it.

    >>> row_slice(8, 1, 1024)
    (4168, 4096)
    """
    return header_bytes(n_metrics) + 4 * n_entities * position, 4 * n_entities


def empty(metric_ids: Sequence[int], n_entities: int = BLOCK) -> HotBlock:
    """Return a writable block without values.

    metric_ids: int 0..65535, distinct, the row order. n_entities: 1..1024, how many entities the block really has: the
    last block of a run is narrower, and a run of 8 ranks costs 8 values a metric, not 1,024. O(size).

    >>> empty([3, 7], 2).cells.shape
    (2, 2)
    """
    _check(tuple(metric_ids), n_entities)
    return HotBlock(tuple(metric_ids), np.full((len(metric_ids), n_entities), ABSENT, np.float32))


def read(blob: bytes | memoryview, *, verify: bool = True) -> HotBlock:
    """Return the block in `blob` as a read-only view, without copying.

    blob: what `write` gave. verify: also compare the checksums of header and rows (about 1 µs a row of 1,024).

    Raises `TileCut` when bytes are missing, `TileVersionUnknown` for another version, `TileCorrupt` for anything else
    that does not fit: magic, length, checksum. O(size) when verifying, else O(metrics).

    Source: FORMAT.md.

    >>> read(write(empty([3], 2))).metric_ids
    (3,)
    """
    metric_ids, sums, n_entities = _read_header(blob)
    start, length = header_bytes(len(metric_ids)), len(metric_ids) * n_entities * 4
    need(blob, start + length)
    if len(blob) > start + length:
        raise TileCorrupt("The hot block is longer than its head says.", have=len(blob), need=start + length)
    cells = np.frombuffer(blob, "<f4", offset=start).reshape(len(metric_ids), n_entities)
    if verify:
        for metric_id, expected, row in zip(metric_ids, sums, cells, strict=True):
            check_sum(row.data, expected, f"row of metric {metric_id}")
    return HotBlock(metric_ids, cells)


def write(block: HotBlock) -> bytes:
    """Return the blob of a block; NaNs of any payload become the absent one.

    block: as `empty`, `grown` or `read` gave it, values filled in. O(size), about 25 µs for 8 metrics of 1,024.

    Raises `ArgumentInvalid` for repeated or too large ids.

    Source: FORMAT.md.

    >>> len(write(empty([3, 7], 1024)))
    8224
    """
    _check(block.metric_ids, block.n_entities)
    cells = normalised(block.cells)
    sums = [zlib.crc32(row.data) for row in cells]
    n_metrics = len(block.metric_ids)
    table = struct.pack(f"<{n_metrics}I{n_metrics}H", *sums, *block.metric_ids)
    table = table.ljust(header_bytes(n_metrics) - HEAD_BYTES - 4, b"\0")
    blob_head = head(MAGIC, VERSION, _FIELDS.pack(n_metrics, block.n_entities))
    return b"".join((blob_head, struct.pack("<I", zlib.crc32(table)), table, cells.data))


def grown(block: HotBlock, metric_ids: Sequence[int], n_entities: int) -> HotBlock:
    """Return a writable copy that has all `metric_ids` and at least `n_entities`, its old rows first.

    metric_ids: those needed; ones the block lacks are added after its own. n_entities: 1..1024. O(size).

    >>> block = grown(empty([3], 2), [7, 3], 4)
    >>> block.metric_ids, block.cells.shape
    ((3, 7), (2, 4))
    """
    added = [metric_id for metric_id in metric_ids if metric_id not in block.metric_ids]
    bigger = empty((*block.metric_ids, *added), max(n_entities, block.n_entities))
    bigger.cells[: len(block.metric_ids), : block.n_entities] = block.cells
    return bigger


def stack(blobs: Sequence[bytes | None], metric_ids: Sequence[int], n_entities: int, *, verify: bool = True) -> Cells:
    """Return many blocks as one writable array, float32 [block, metric, entity], in the order of `metric_ids`.

    blobs: one a block; None for one that does not exist yet (all absent). metric_ids: the rows wanted; what a blob
    has beyond them is left out, so a fold that writes back must name every id that its blobs hold (`ids_of`).
    n_entities: 1..1024, at least as many as any blob has.

    Raises as `read` does. O(size).

    >>> stack([None, write(empty([7], 2))], [3, 7], 2).shape
    (2, 2, 2)
    """
    wanted = tuple(metric_ids)
    _check(wanted, n_entities)
    cells = np.full((len(blobs), len(wanted), n_entities), ABSENT, np.float32)
    for target, blob in zip(cells, blobs, strict=True):
        if blob is None:
            continue
        block = read(blob, verify=verify)
        at_least("n_entities", n_entities, block.n_entities)
        if block.metric_ids == wanted:
            target[:, : block.n_entities] = block.cells
            continue
        for metric_id, row in zip(block.metric_ids, block.cells, strict=True):
            if metric_id in wanted:
                target[wanted.index(metric_id), : block.n_entities] = row
    return cells


def ids_of(blobs: Sequence[bytes | None], first: Sequence[int] = ()) -> tuple[int, ...]:
    """Return every metric id that occurs in `first` or in a blob, each once, in order of appearance. O(metrics).

    >>> ids_of([None, write(empty([7, 3], 1))], first=[3])
    (3, 7)
    """
    found = dict.fromkeys(first)
    for blob in blobs:
        if blob is not None:
            found.update(dict.fromkeys(_read_header(blob)[0]))
    return tuple(found)


def unstack(cells: Cells, metric_ids: Sequence[int]) -> list[bytes]:
    """Return the blobs of `stack`'s array after values were written into it, one a block. O(size).

    >>> [len(blob) for blob in unstack(stack([None], [3], 8), [3])]
    [64]
    """
    return [write(HotBlock(tuple(metric_ids), block)) for block in cells]


def normalised(cells: Cells) -> Cells:
    """Return `cells` as contiguous little-endian float32 in which every NaN is the absent one.

    >>> hex(normalised(np.array([0x7FC00001], np.uint32).view(np.float32)).view(np.uint32)[0])
    '0x7fc00000'
    """
    cells = np.ascontiguousarray(cells, "<f4")
    missing = np.isnan(cells)
    if missing.any() and (cells.view(np.uint32)[missing] != ABSENT.view(np.uint32)).any():
        cells = cells.copy()
        cells[missing] = ABSENT
    return cells


def _check(metric_ids: tuple[int, ...], n_entities: int) -> None:
    if not 1 <= n_entities <= BLOCK:
        raise ArgumentInvalid(f"A block has 1 to {BLOCK} entities.", n_entities=n_entities)
    if len(set(metric_ids)) != len(metric_ids) or any(not 0 <= metric_id <= 0xFFFF for metric_id in metric_ids):
        raise ArgumentInvalid("Metric ids are distinct and lie in 0..65535.", metric_ids=metric_ids)


def _read_header(blob: bytes | memoryview) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    n_metrics, n_entities = _FIELDS.unpack(open_head(blob, MAGIC, VERSION))
    end = header_bytes(n_metrics)
    need(blob, end)
    (checksum,) = struct.unpack_from("<I", blob, HEAD_BYTES)
    check_sum(blob[HEAD_BYTES + 4 : end], checksum, "table of metrics")
    numbers = struct.unpack_from(f"<{n_metrics}I{n_metrics}H", blob, HEAD_BYTES + 4)
    return numbers[n_metrics:], numbers[:n_metrics], n_entities
