"""What is encoded into a tensor map, and when there can be none. No driver is asked."""

from __future__ import annotations

import pytest

from sgemm_tune.device.tensor_maps import MAP_BYTES, TiledMap, encode, tiled_map

POINTER = 0x7F00_0000_0100


def test_the_contiguous_side_comes_first_and_strides_are_bytes() -> None:
    found = tiled_map(POINTER, rows=1000, cols=4096, ld=4100, box=(16, 256))
    assert found == TiledMap(POINTER, sides=(4096, 1000), strides=(16400,), box=(256, 16))


def test_a_matrix_may_be_smaller_than_the_box() -> None:
    assert tiled_map(POINTER, rows=1, cols=1, ld=4, box=(32, 128)) is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"pointer": POINTER + 4},
        {"ld": 4097},
        {"rows": 0},
        {"cols": 0},
        {"cols": 2**32 + 4, "ld": 2**32 + 4},
        {"ld": 2**38},
        {"ld": 4092},
        {"box": (16, 260)},
        {"box": (257, 64)},
        {"box": (16, 6)},
    ],
    ids=str,
)
def test_what_the_copy_engine_cannot_take_has_no_map(changed: dict[str, object]) -> None:
    legal = {"pointer": POINTER, "rows": 1000, "cols": 4096, "ld": 4096, "box": (16, 256)}
    assert tiled_map(**legal) is not None  # type: ignore[arg-type]
    assert tiled_map(**{**legal, **changed}) is None  # type: ignore[arg-type]


def test_without_maps_as_many_bytes_are_passed_and_no_driver_is_asked() -> None:
    nothing = encode((None, None))
    assert nothing.size == 1
    assert nothing.itemsize == 2 * MAP_BYTES
    assert not any(nothing.tobytes())
