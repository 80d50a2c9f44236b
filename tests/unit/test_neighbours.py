"""Where a search begins: the best of the nearest shapes on this device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.errors import ConfigFileError
from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.outcome import DeviceInfo
from sgemm_tune.problem import Problem
from sgemm_tune.search.neighbours import NEIGHBOURS, neighbours_best, siblings_best
from sgemm_tune.store.config_schema import Entry
from sgemm_tune.store.configs import config_path, measured_entry, merge_entries
from tests.stored import H200, measurement

SM_90 = parse_arch("sm_90")
KERNELS = stage_named("coalesced").legal(SM_90)
PROBLEM = Problem.parse_size(1024)


def entry(kernel: Kernel, *shape: int, info: DeviceInfo = H200) -> Entry:
    return measured_entry(Problem(*shape), kernel, measurement(), info, seed=0)


def found(folder: Path, *stages: str) -> list[Kernel]:
    asked = [stage_named(name) for name in stages or ("naive", "coalesced")]
    return neighbours_best(folder, SM_90, H200, asked, PROBLEM)


def store(folder: Path, *entries: Entry) -> None:
    merge_entries(config_path(folder, SM_90), SM_90, entries)


def test_nothing_is_known_in_an_empty_folder(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_the_nearest_come_first_and_only_a_few(tmp_path: Path) -> None:
    far, wide, near, same = KERNELS[:4]
    shapes = [(8192, 8192, 8192), (1024, 8192, 1024), (2048, 1024, 1024), (1024, 1024, 1024)]
    store(tmp_path, *(entry(k, *shape) for k, shape in zip((far, wide, near, same), shapes, strict=True)))
    assert found(tmp_path) == [same, near, wide, far]
    store(tmp_path, entry(KERNELS[4], 16384, 16384, 16384))
    assert found(tmp_path) == [same, near, wide, far]
    assert NEIGHBOURS == 4


def test_one_that_is_best_at_several_shapes_counts_once(tmp_path: Path) -> None:
    store(tmp_path, *(entry(KERNELS[0], size, size, size) for size in (512, 2048)))
    assert found(tmp_path) == [KERNELS[0]]


def test_another_device_or_precision_is_no_neighbour(tmp_path: Path) -> None:
    store(tmp_path, entry(KERNELS[0], 512, 512, 512, info=replace(H200, name="NVIDIA H100", sms=114)))
    assert found(tmp_path) == []
    store(tmp_path, entry(KERNELS[1], 512, 512, 512))
    assert found(tmp_path) == [KERNELS[1]]
    assert found(tmp_path, "tf32_mma") == []


def test_only_the_stages_of_the_search_are_hints(tmp_path: Path) -> None:
    """The nearest are of a stage that does not suit the shape, and take nobody's place."""
    skinny = stage_named("skinny").legal(SM_90)[: 2 * NEIGHBOURS]
    others = [entry(kernel, 64, 1024 + i, 1024) for i, kernel in enumerate(skinny)]
    store(tmp_path, *others, entry(KERNELS[0], 8192, 8192, 8192))
    assert found(tmp_path) == [KERNELS[0]]
    assert found(tmp_path, "coalesced", "skinny") == list(skinny[:NEIGHBOURS])
    fastest = {Problem(64, 1024, 1024): skinny, Problem.parse_size(8192): KERNELS[:2]}
    coalesced = [stage_named("coalesced")]
    assert siblings_best(fastest, coalesced, PROBLEM) == list(KERNELS[:2])


def test_a_stage_that_is_gone_costs_its_entry_only(tmp_path: Path) -> None:
    store(tmp_path, entry(KERNELS[0], 512, 512, 512), entry(KERNELS[1], 2048, 2048, 2048))
    path = config_path(tmp_path, SM_90)
    path.write_text(path.read_text().replace("stage: coalesced", "stage: retired", 1))
    assert len(found(tmp_path)) == 1


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    config_path(tmp_path, SM_90).write_text("entries: {")
    with pytest.raises(ConfigFileError):
        found(tmp_path)
