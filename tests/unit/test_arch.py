"""The architecture table and the names people write."""

from __future__ import annotations

import itertools

import pytest

from sgemm_tune.arch import ARCHS, KIB, arch_of_capability, parse_arch
from sgemm_tune.errors import UnknownName

KNOWN = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def test_every_architecture_asked_for_is_there_in_order_of_age() -> None:
    assert tuple(ARCHS) == KNOWN
    capabilities = [arch.capability for arch in ARCHS.values()]
    assert capabilities == sorted(capabilities)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sm_90", "sm_90"),
        ("sm_90a", "sm_90"),
        ("SM90", "sm_90"),
        ("9.0", "sm_90"),
        ("90", "sm_90"),
        ("compute_90", "sm_90"),
        ("H100", "sm_90"),
        ("h200", "sm_90"),
        (" sm-90 ", "sm_90"),
        ("10.0", "sm_100"),
        ("sm_100a", "sm_100"),
        ("sm_103", "sm_103"),
        ("12.1", "sm_121"),
        ("sm_121", "sm_121"),
        ("gb10", "sm_121"),
        ("8.0", "sm_80"),
        ("rtx4090", "sm_89"),
        ("RTX 5090", "sm_120"),
    ],
)
def test_names_that_mean_one(text: str, name: str) -> None:
    assert parse_arch(text).name == name


@pytest.mark.parametrize(
    "text", ["sm_999", "sm_70", "sm_80a", "", "sm_", "hopper2", "9", "0.9", "9.0.0", "sm_90x", "sm_90aa"]
)
def test_an_unknown_name_lists_the_known_ones_in_one_line(text: str) -> None:
    with pytest.raises(UnknownName) as caught:
        parse_arch(text)
    message = str(caught.value)
    assert "\n" not in message
    assert repr(text) in message
    assert all(name in message for name in KNOWN)
    assert caught.value.exit_code == 2


def test_capabilities_and_names_agree() -> None:
    for arch in ARCHS.values():
        assert arch_of_capability(*arch.capability) is arch
    with pytest.raises(UnknownName):
        arch_of_capability(7, 5)


def test_architecture_specific_targets_begin_with_hopper() -> None:
    assert [arch.target for arch in ARCHS.values()] == [
        *("sm_80", "sm_86", "sm_89"),
        *("sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"),
    ]


def test_no_name_means_two_architectures() -> None:
    names = [name for arch in ARCHS.values() for name in {arch.config, *arch.aliases}]
    assert len(names) == len(set(names))
    for name in names:
        assert name in (parse_arch(name).config, *parse_arch(name).aliases)


def test_limits_are_consistent() -> None:
    for arch in ARCHS.values():
        # the system keeps 1 KiB of an SM's shared memory for each block
        assert arch.smem_per_block == arch.smem_per_sm - KIB
        assert arch.warps_per_sm * 32 >= 1024
        assert arch.blocks_per_sm <= arch.warps_per_sm


def test_peaks_are_those_of_the_data_sheets() -> None:
    sheets = {"sm_80": 19.5, "sm_90": 66.9, "sm_89": 82.6, "sm_120": 104.8}
    for name, tflops in sheets.items():
        arch = ARCHS[name]
        assert arch.fp32_peak_tflops(arch.board.sms, arch.board.boost_mhz) == pytest.approx(tflops, rel=0.01)
    a100, h100 = ARCHS["sm_80"], ARCHS["sm_90"]
    assert a100.tf32_peak_tflops(108, 1410) == pytest.approx(156, rel=0.01)
    assert h100.tf32_peak_tflops(132, 1830) == pytest.approx(495, rel=0.01)


def test_tensor_cores_are_faster_than_ffma_everywhere() -> None:
    for older, newer in itertools.pairwise(ARCHS.values()):
        assert older.tf32_flops >= 2 * older.fp32_lanes
        assert newer.tf32_flops >= 2 * newer.fp32_lanes
