"""FORMAT.md, read by somebody who knows nothing of the code, and blobs that were written once and stay readable."""

import base64
import struct
import zlib

import numpy as np
import pytest
from numcodecs import zstd

from apps.engine.tiles import codec, hot, pooled
from apps.engine.tiles.metrics import Kind
from apps.engine.tiles.pyramid import Pooled, pool_columns
from tests.engine.tiles.arrays import NAN, training_metrics

CELLS = np.array([[5.01, 5.02, NAN, 4.99], [7.25, 7.5, 7.75, 900.0], [NAN] * 4], np.float32)

WRITTEN_ONCE = {
    "PTIL": "UFRJTAEAAAAGAQAAydvDPQMABAAAAAAAGwAAABUAAAAVAAAAAAAAAAAAAAAAAAAAXQXHwajqAYMotS/9IBKRAAAGCoD6CgoPCQQEBAQAAAAAZAko"
    "tS/9IAxhAAB/h39/iH9/f39/938otS/9IAxhAAAAPQAAOwAAAAAACwA=",
    "PHOT": "UEhPVAECAAQAAAAA6Z+fxb19shMUxl47zzd6DwMACQDsUaBA16OgQAAAwH8Urp9AAADoQAAA8EAAAPhAAABhRA==",
    "PPYR": "UFBZUgEEAQAAAAAAHXIM1QEjRWeJq83vAAECA2oAAAB2AAAAdgAAAFEAAAA2/UXXUFRJTAEBAQAQAQAAmwuaJQMAAQAAAAAADgAAAAwAAAAMAAAA"
    "DAAAAAAAAAAAAAAAAKIMP0bZ9y0otS/9IAUpAAAoXD+BBCi1L/0gAxkAAH/Hfyi1L/0gAxkAAADsACi1L/0gAxkAAABRAFBUSUwBAQEAEwEAAHWkLz"
    "cDAAEAAAAAAA4AAAAMAAAADAAAAAwAAAAMAAAAAAAAAHg2PuaZMhNuKLUv/SAFKQAArkdBgQQotS/9IAMZAAB/938otS/9IAMZAAAAKQAotS/9IAMZ"
    "AAAAXAAotS/9IAMZAAAAAABQVElMAQEBABMBAAB1pC83AwABAAAAAAAOAAAADAAAAAwAAAAMAAAADAAAAAAAAACvnoi3PdcIrCi1L/0gBSkAANij4I"
    "IEKLUv/SADGQAAf91/KLUv/SADGQAAABQAKLUv/SADGQAAAE4AKLUv/SADGQAAAAYAUFRJTAEBAgAAAAAAnUTV8gMAAQAAAAAADQAAAAwAAAAAAAAA"
    "AAAAAAAAAAAAAAAAPBMvMIyJSgsotS/9IAQhAAAGAAAAKLUv/SADGQAAf4B8",
}


def _stored(name):
    return base64.b64decode(WRITTEN_ONCE[name])


def _vector(side, n):
    part, rest = side[: 4 * n], side[4 * n :]
    folded = [sum(part[plane * n + i] << 8 * plane for plane in range(4)) for i in range(n)]
    return [(number >> 1) ^ -(number & 1) for number in folded], rest


def _wrapped(number):
    return (number + 2**31) % 2**32 - 2**31


def _read_by_the_document(blob):
    """A slow reader of PTIL written from FORMAT.md alone."""
    magic, version, _kind, domain, mode, low_bits, presence = struct.unpack_from("<4sB5B", blob)
    assert (magic, version, blob[10:12]) == (b"PTIL", 1, b"\0\0")
    assert zlib.crc32(blob[:12]) == struct.unpack_from("<I", blob, 12)[0]
    e, c, x = struct.unpack_from("<HHI", blob, 16)
    lengths = struct.unpack_from("<6I", blob, 24)
    assert zlib.crc32(blob[56:]) == struct.unpack_from("<I", blob, 48)[0]
    assert zlib.crc32(blob[16:52]) == struct.unpack_from("<I", blob, 52)[0]
    out = np.full((e, c), NAN, np.float32)
    at, frames = 56, []
    for length in lengths:
        frames.append(zstd.decompress(blob[at : at + length]) if length else b"")
        at += length
    side, high, *low = frames
    column, side = _vector(side, c) if presence != 2 else ([], b"")
    row, side = _vector(side, e) if mode else ([0] * e, side)
    mask = side[: (e * c + 7) // 8] if presence == 1 else b""
    distances, side = _vector(side[len(mask) :], x)
    values, side = _vector(side, x)
    assert side == b""
    exceptions = dict(zip(np.cumsum(distances).tolist(), values, strict=True))
    for i in range(e if presence != 2 else 0):
        code = 0
        for j in range(c):
            place = j * e + i
            r = exceptions.get(place)
            if r is None:
                r = ((high[place] - 127) << low_bits) | sum(
                    plane[place] << 8 * p for p, plane in enumerate(low) if plane
                )
            own = row[i] if mode == 1 or (mode == 2 and j == 0) else 0
            code = _wrapped((code if mode == 2 else 0) + column[j] + own + r)
            if presence == 1 and mask[place // 8] >> place % 8 & 1:
                continue
            if domain == 2:
                out[i, j] = code
                continue
            shift = 13 if domain == 0 else 0
            bits = code << shift if code >= 0 else 0x80000000 | (-code - 1 << shift)
            out[i, j] = struct.unpack("<f", struct.pack("<I", bits))[0]
    return out


class TestTheDocument:
    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("name", ["compute_s", "data_s", "tokens", "grad_norm"])
    def test_a_reader_made_from_the_document_reads_tiles_of_training(self, name, kind):
        cells = training_metrics(40, 16)[name]
        cells[3, 4:9] = NAN
        cells[7, 7] *= 1e6
        blob = codec.encode(cells, kind)

        np.testing.assert_array_equal(_read_by_the_document(blob), codec.decode(blob))

    @pytest.mark.parametrize(
        "cells",
        [
            CELLS,
            np.full((3, 2), NAN, np.float32),
            np.array([[-1.5, 2.5, -0.0, np.inf, -np.inf]], np.float32),
            np.arange(64, dtype=np.float32).reshape(16, 4) ** 3 - 9,
            np.random.default_rng(0).integers(0, 2**32, (20, 9), dtype=np.uint32).view(np.float32),
        ],
        ids=["mixed", "nothing", "signs", "counters", "any bits"],
    )
    @pytest.mark.parametrize("kind", Kind)
    def test_a_reader_made_from_the_document_reads_odd_tiles(self, cells, kind):
        blob = codec.encode(cells, kind)

        np.testing.assert_array_equal(_read_by_the_document(blob), codec.decode(blob))

    def test_a_drifting_gauge_is_read_through_its_differences(self):
        rng = np.random.default_rng(1)
        cells = np.round(60 + 9 * rng.normal(size=(40, 1)) + np.cumsum(0.3 * rng.normal(size=(40, 64)), axis=1))
        blob = codec.encode(cells.astype(np.float32), Kind.ROUNDED)

        assert codec.read_info(blob).mode.name == "DELTA"
        np.testing.assert_array_equal(_read_by_the_document(blob), cells)


class TestBlobsWrittenOnce:
    def test_a_sealed_tile_stays_readable(self):
        expected = [[5.01171875, 5.01953125, NAN, 4.98828125], [7.25, 7.5, 7.75, 900], [NAN] * 4]

        np.testing.assert_array_equal(codec.decode(_stored("PTIL")), expected)

    def test_a_hot_block_stays_readable_and_is_written_the_same_today(self):
        block = hot.read(_stored("PHOT"))

        assert block.metric_ids == (3, 9)
        np.testing.assert_array_equal(block.cells, CELLS[:2])
        assert hot.write(block) == _stored("PHOT")

    def test_a_pooled_tile_stays_readable(self):
        info, planes = pooled.read_info(_stored("PPYR")), pooled.decode(_stored("PPYR"))
        expected = pool_columns(Pooled.of(CELLS))

        assert (info.column_level, info.entity_level, info.order_version) == (1, 0, "0123456789abcdef")
        assert list(info.planes) == ["min", "max", "sum", "count"]
        for name, plane in planes.items():
            np.testing.assert_array_equal(plane, getattr(expected, name))
