"""The source that the throughput benchmark gives to Kernel Tuner, by the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmarks.throughput import peer_params, peer_source, within_peer_limit
from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler.nvrtc import Binary, compile_source
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.errors import CompileError
from sgemm_tune.kernel import stage_named

HOPPER = parse_arch("sm_90")
WARP_TILE = stage_named("warp_tile")


def compiled(params: Mapping[str, int]) -> Binary:
    """With every parameter a define, as Kernel Tuner has it."""
    source = replace(source_text(WARP_TILE.source), text=peer_source(WARP_TILE))
    defines = tuple(f"-D{name}={value}" for name, value in params.items())
    return compile_source(source, HOPPER, defines, "warp_tile for Kernel Tuner")


def test_kernel_tuners_source_compiles_whatever_the_launch_value() -> None:
    """And is another kernel for another one: the constant is that of the define."""
    large = within_peer_limit(k for k in WARP_TILE.legal(HOPPER) if k.params["GROUP"] != 8)[0]
    cubins = set()
    for group in WARP_TILE.tunables()["GROUP"]:
        found = compiled(peer_params(large) | {"TUNE_GROUP": group})
        assert found.registers * large.threads <= 65536
        assert found.spill_bytes == 0
        cubins.add(found.cubin)
    assert len(cubins) == 3


def test_kernel_tuners_source_of_a_split_compiles() -> None:
    split = within_peer_limit(k for k in WARP_TILE.legal(HOPPER) if k.params["SPLIT_K"] == 5)[-1]
    assert compiled(peer_params(split)).spill_bytes == 0


def test_kernel_tuners_source_needs_the_launch_value_defined() -> None:
    params = peer_params(WARP_TILE())
    del params["TUNE_GROUP"]
    with pytest.raises(CompileError, match="TUNE_GROUP"):
        compiled(params)
