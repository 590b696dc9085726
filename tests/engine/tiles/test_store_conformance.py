"""What every stored form must hold: exact or within its declared error, and three different errors for three damages."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apps.engine.tiles import codec, hot, pooled
from apps.engine.tiles.errors import TileCorrupt, TileCut, TileVersionUnknown
from apps.engine.tiles.metrics import Kind
from apps.engine.tiles.pyramid import Pooled
from apps.engine.tiles.rounding import RELATIVE_ERROR
from tests.engine.tiles.arrays import NAN


@dataclass(frozen=True)
class Store:
    """One stored form, as functions of an array of cells."""

    name: str
    write: Callable[[np.ndarray], bytes]
    read: Callable[[bytes], np.ndarray]
    relative_error: float


def _write_pooled(cells, kind):
    return pooled.encode(Pooled.of(cells), kind, "max", column_level=1, entity_level=0, order_version="ab" * 8)


STORES = [
    Store("hot block", lambda c: hot.write(hot.HotBlock(tuple(range(len(c))), c)), lambda b: hot.read(b).cells, 0),
    Store("exact tile", lambda c: codec.encode(c, Kind.EXACT), codec.decode, 0),
    Store("rounded tile", lambda c: codec.encode(c, Kind.ROUNDED), codec.decode, RELATIVE_ERROR),
    Store("exact pooled", lambda c: _write_pooled(c, Kind.EXACT), lambda b: pooled.decode(b)["max"], 0),
    Store(
        "rounded pooled", lambda c: _write_pooled(c, Kind.ROUNDED), lambda b: pooled.decode(b)["max"], RELATIVE_ERROR
    ),
]

VALUES = st.one_of(
    st.just(NAN), st.floats(2.0**-100, 2.0**100, width=32), st.floats(-(2.0**100), -(2.0**-100), width=32)
)
CELLS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=10), elements=VALUES)


def _example(seed=0):
    """Cells that use every part of a blob: noise, absent ones, an exception."""
    rng = np.random.default_rng(seed)
    cells = (5 + 0.05 * rng.normal(size=(60, 20))).astype(np.float32)
    cells[3:5, 2:9] = NAN
    cells[1, 1] = 1e9
    return cells


def _with_version(blob, version):
    """The blob as a later version would begin it: its head is sound."""
    bare = blob[:4] + bytes([version]) + blob[5:12]
    return bare + zlib.crc32(bare).to_bytes(4, "little") + blob[16:]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
class TestEveryStore:
    @given(cells=CELLS)
    def test_values_come_back_exactly_or_within_the_declared_error(self, store, cells):
        found = store.read(store.write(cells))
        error = np.abs(found.astype(np.float64) - cells)[~np.isnan(cells)]

        assert found.shape == cells.shape
        assert (np.isnan(found) == np.isnan(cells)).all()
        assert (error <= store.relative_error * np.abs(cells.astype(np.float64))[~np.isnan(cells)]).all()

    @given(cells=CELLS)
    def test_what_was_read_is_written_as_the_same_bytes(self, store, cells):
        blob = store.write(cells)

        assert store.write(store.read(blob)) == blob

    @given(payload=st.integers(1, 0x3FFFFF), negative=st.booleans())
    def test_a_nan_of_any_payload_becomes_the_absent_one(self, store, payload, negative):
        odd = np.array([[0x7F800000 | payload | (negative << 31), 0x3F800000]], np.uint32).view(np.float32)
        found = np.ascontiguousarray(store.read(store.write(odd)))

        assert found.view(np.uint32).tolist() == [[0x7FC00000, 0x3F800000]]

    def test_a_blob_cut_anywhere_is_cut(self, store):
        blob = store.write(_example())

        for length in {*range(130), *range(130, len(blob), 97), len(blob) - 1}:
            with pytest.raises(TileCut):
                store.read(blob[:length])

    def test_a_flipped_bit_anywhere_is_corrupt(self, store):
        blob = store.write(_example())

        for place in {*range(130), *range(130, len(blob), 41), len(blob) - 1}:
            for bit in (0, 7):
                damaged = bytearray(blob)
                damaged[place] ^= 1 << bit
                with pytest.raises(TileCorrupt):
                    store.read(bytes(damaged))

    def test_a_later_version_is_unknown_even_when_the_rest_has_changed(self, store):
        blob = store.write(_example())

        for later in (_with_version(blob, 2), _with_version(blob, 255)[:40]):
            with pytest.raises(TileVersionUnknown):
                store.read(later)

    def test_a_blob_of_another_kind_is_corrupt(self, store):
        other = next(o for o in STORES if o.write(_example())[:4] != store.write(_example())[:4])

        with pytest.raises(TileCorrupt):
            store.read(other.write(_example()))

    def test_bytes_after_the_end_are_corrupt(self, store):
        with pytest.raises(TileCorrupt):
            store.read(store.write(_example()) + b"\0")

    def test_a_view_is_read_like_bytes(self, store):
        blob = store.write(_example())

        np.testing.assert_array_equal(store.read(memoryview(blob)), store.read(blob))

    def test_writing_leaves_its_input_alone(self, store):
        cells = _example()
        before = cells.copy()

        store.write(cells)

        np.testing.assert_array_equal(cells, before)


def test_the_three_damages_have_three_codes():
    assert len({error.code for error in (TileCut, TileCorrupt, TileVersionUnknown)}) == 3


def test_a_pooled_tiles_first_plane_is_read_from_a_prefix():
    blob = _write_pooled(_example(), Kind.ROUNDED)
    info = pooled.read_info(blob[: pooled.DIRECTORY_BYTES])
    prefix = blob[: info.worst_bytes]

    np.testing.assert_array_equal(pooled.decode(prefix, ("max",))["max"], pooled.decode(blob)["max"])
    with pytest.raises(TileCut):
        pooled.decode(prefix, ("min",))
