"""Every stage compiles for every architecture, keeps its sums in registers and uses the wide instructions."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.compiler.nvrtc import compile_kernel
from sgemm_tune.kernel import Kernel, ladder, stage_named
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.problem import Problem
from sgemm_tune.stages.tma import COPYING, KEPT, Tma

STAGES = ladder()
HOPPER = ARCHS["sm_90"]
SEED = 20250701


def _ids(value: object) -> str:
    return (
        value.name() if isinstance(value, type) and issubclass(value, Kernel) else getattr(value, "name", "")
    )


@pytest.mark.parametrize(
    ("stage", "arch"),
    [(stage, arch) for stage in STAGES for arch in ARCHS.values() if arch.capability >= stage.min_arch],
    ids=_ids,
)
def test_default_compiles(stage: type[Kernel], arch: Arch) -> None:
    binary = compile_kernel(stage(), arch)
    assert binary.cubin[:4] == b"\x7fELF"
    assert binary.registers > 0
    assert binary.static_smem == 0, "shared memory is dynamic, so that one limit governs it"
    assert binary.spill_bytes <= Policy().spill_limit


@pytest.mark.parametrize("stage", STAGES, ids=_ids)
def test_sampled_configurations_compile(stage: type[Kernel]) -> None:
    legal = stage.legal(HOPPER)
    for kernel in random.Random(SEED).sample(legal, min(3, len(legal))):
        binary = compile_kernel(kernel, HOPPER)
        assert 0 < binary.registers * kernel.threads <= 65536, kernel


@pytest.mark.parametrize(
    "params",
    [
        {
            "BM": 256,
            "BN": 64,
            "BK": 8,
            "TM": 16,
            "TN": 8,
            "PAD": 4,
            "LANES_M": 4,
            "ORDER": 1,
            "MIN_BLOCKS": 1,
        },
        {
            "BM": 128,
            "BN": 128,
            "BK": 8,
            "TM": 16,
            "TN": 8,
            "PAD": 4,
            "LANES_M": 8,
            "ORDER": 2,
            "MIN_BLOCKS": 1,
        },
        {
            "BM": 128,
            "BN": 128,
            "BK": 8,
            "TM": 8,
            "TN": 8,
            "PAD": 4,
            "LANES_M": 4,
            "ORDER": 2,
            "MIN_BLOCKS": 2,
        },
        {"BM": 64, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "PAD": 4, "LANES_M": 8, "ORDER": 0, "MIN_BLOCKS": 1},
    ],
    ids=["256x64", "128x128", "128x128-two-blocks", "64x128"],
)
def test_known_good_shapes_are_legal_and_do_not_spill(params: dict[str, int]) -> None:
    kernel = stage_named("double_buffer").from_params(params)
    assert compile_kernel(kernel, HOPPER).spill_bytes == 0


def test_one_warp_and_one_mma_is_legal() -> None:
    params = {"WARPS_M": 1, "WARPS_N": 1, "WM": 16, "WN": 8, "BK": 4, "MMA_K": 4}
    kernel = stage_named("tf32_mma").from_params(params)
    assert kernel.threads == 32
    assert compile_kernel(kernel, HOPPER).spill_bytes == 0


# ------------------------------------------------------------------------------------------------- SASS


def _nvdisasm() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [path for root in roots for path in Path(root).glob("*/bin/nvdisasm")]
    return found[0] if found else None


NVDISASM = _nvdisasm()
needs_nvdisasm = pytest.mark.skipif(
    NVDISASM is None, reason="nvdisasm is not installed: nvidia-cuda-nvdisasm"
)


def _listing(kernel: Kernel, folder: Path, arch: Arch = HOPPER) -> str:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compile_kernel(kernel, arch).cubin)
    return subprocess.run(
        [str(NVDISASM), "-c", str(cubin)], check=True, capture_output=True, text=True
    ).stdout


def _sass(kernel: Kernel, folder: Path, arch: Arch = HOPPER) -> list[str]:
    """The kernel's instructions, without predicates and operands: `LDG.E.128.CONSTANT`."""
    listing = _listing(kernel, folder, arch)
    return re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)", listing, re.MULTILINE)


@needs_nvdisasm
@pytest.mark.parametrize("name", ["vectorized", "coalesced_store", "double_buffer"])
def test_vector_stages_move_16_bytes_at_a_time(name: str, tmp_path: Path) -> None:
    kernel = stage_named(name)()
    count = Counter(_sass(kernel, tmp_path))
    tm, tn = kernel.thread_tile
    wide = {
        prefix: sum(n for op, n in count.items() if op.startswith(prefix) and ".128" in op)
        for prefix in ("LDS", "LDG", "STG", "STS")
    }
    assert all(wide.values()), wide
    assert not any(op == "LDS" for op in count), "fragments are read as vectors only"
    assert wide["LDS"] >= kernel.tile[2] * (tm + tn) // 4
    assert count["FFMA"] >= kernel.tile[2] * tm * tn
    assert not any(op.startswith(("LDL", "STL")) for op in count), "nothing lies in local memory"


def _longest_run(ops: list[str], math: str = "FFMA") -> list[str]:
    """The instructions without a branch that hold the most FFMAs: the main loop."""
    longest: list[str] = []
    current: list[str] = []
    for op in ops:
        current = [] if op.startswith(("BRA", "BSYNC", "EXIT", "BSSY")) else [*current, op]
        if current.count(math) > longest.count(math):
            longest = current
    return longest


@needs_nvdisasm
@pytest.mark.parametrize(
    ("name", "most"), [("double_buffer", 0.10), ("async_copy", 0.08), ("warp_tile", 0.08), ("tma", 0.06)]
)
def test_main_loop_is_nearly_all_ffma(name: str, most: float, tmp_path: Path) -> None:
    """Between the tile's first and last FFMA, other instructions take less than that share."""
    longest = _longest_run(_sass(stage_named(name)(), tmp_path))
    ffma = longest.count("FFMA")
    assert ffma > 0
    assert (len(longest) - ffma) / ffma < most


@needs_nvdisasm
@pytest.mark.parametrize("name", ["async_copy", "warp_tile"])
def test_async_stages_copy_past_the_registers(name: str, tmp_path: Path) -> None:
    kernel = stage_named(name)()
    (bm, bn, bk), (tm, tn) = kernel.tile, kernel.thread_tile
    ops = _sass(kernel, tmp_path)
    count = Counter(ops)
    assert count["LDGSTS.E"] >= bm * bk // kernel.threads
    assert count["LDGSTS.E.BYPASS.128"] >= bk * bn // 4 // kernel.threads
    assert not any(op.startswith(("LDL", "STL")) for op in ops), "nothing lies in local memory"
    loop = Counter(_longest_run(ops))
    assert loop["LDS.128"] == bk * (tm + tn) // 4
    assert loop["BAR.SYNC.DEFER_BLOCKING"] == 1, "one barrier per tile"
    assert not any(op.startswith(("LDG.", "STS")) for op in loop)


@needs_nvdisasm
def test_tma_has_warps_that_copy_and_warps_that_compute(tmp_path: Path) -> None:
    kernel = stage_named("tma")()
    (bm, bn, bk), (tm, tn) = kernel.tile, kernel.thread_tile
    ops = _sass(kernel, tmp_path)
    count = Counter(ops)
    assert count["UTMALDG.2D"] == 1, "the copy engine fetches B"
    assert count["LDGSTS.E"] >= bm * bk // 128, "128 lanes fetch A, float by float"
    assert count["USETMAXREG.TRY_ALLOC.CTAPOOL"] == count["USETMAXREG.DEALLOC.CTAPOOL"] == 1
    assert not any(op.startswith(("LDL", "STL", "CALL")) for op in ops), "nothing lies in local memory"
    loop = Counter(_longest_run(ops))
    steps = loop["FFMA"] // (tm * tn)
    assert loop["LDS.128"] == steps * (tm + tn) // 4
    assert not any(op.startswith(("SYNCS", "LDGSTS", "UTMALDG", "STS")) for op in loop)
    assert (kernel.box_of_a, kernel.box_of_b) == (None, (bk, bn))


@needs_nvdisasm
def test_with_a_pre_pass_the_copy_engine_fetches_both(tmp_path: Path) -> None:
    kernel = stage_named("tma").from_params({**stage_named("tma")().params, "PREPASS": 1})
    ops = _sass(kernel, tmp_path)
    count = Counter(ops)
    assert count["UTMALDG.2D"] == 2
    assert not any(op.startswith(("LDGSTS", "LDL", "STL", "CALL")) for op in ops)
    assert kernel.box_of_a == (kernel.tile[2], kernel.tile[0])
    plain = stage_named("tma")()
    assert kernel.smem_bytes < plain.smem_bytes, "rows of A need no padding"


CLUSTERED = [{}, {"PREPASS": 1}, {"BK": 64, "STAGES": 2, "LANES_M": 8}, {"BN": 128, "MIN_BLOCKS": 2}]


@pytest.mark.parametrize("params", CLUSTERED, ids=str)
@pytest.mark.parametrize("arch", [arch for arch in ARCHS.values() if arch.multicast], ids=_ids)
def test_clusters_of_tma_compile_without_spills(arch: Arch, params: dict[str, int]) -> None:
    kernel = stage_named("tma").from_params({**stage_named("tma")().params, **params, "CLUSTER": 2})
    binary = compile_kernel(kernel, arch)
    assert (binary.registers, binary.spill_bytes) == (kernel.launch_registers, 0)


@needs_nvdisasm
@pytest.mark.parametrize("params", CLUSTERED[:2], ids=str)
def test_a_cluster_of_tma_fetches_b_for_all_and_meets_twice(params: dict[str, int], tmp_path: Path) -> None:
    stage = stage_named("tma")
    alone, together = (
        Counter(_sass(stage.from_params({**stage().params, **params, "CLUSTER": size}), tmp_path))
        for size in (1, 2)
    )
    assert (alone["UTMALDG.2D.MULTICAST"], together["UTMALDG.2D.MULTICAST"]) == (0, 1)
    assert alone["UTMALDG.2D"] == together["UTMALDG.2D"] + 1
    assert (alone["UCGABAR_ARV"], together["UCGABAR_ARV"]) == (0, 2)
    # one that tells the other block, and this one, that a buffer is ready: without a fence of the whole GPU
    arrivals = sum(n for op, n in together.items() if op.startswith("SYNCS.ARRIVE.TRANS64.RED"))
    assert arrivals == 2
    assert together["MEMBAR.ALL.GPU"] == alone["MEMBAR.ALL.GPU"] + 1, "that of the start"
    assert not any(op.startswith(("LDL", "STL", "CALL")) for op in together), "nothing lies in local memory"


def test_tma_asks_for_the_registers_that_its_rules_count_on() -> None:
    for changed in ({}, {"BN": 128, "MIN_BLOCKS": 2}):
        kernel = stage_named("tma").from_params({**stage_named("tma")().params, **changed})
        assert isinstance(kernel, Tma)
        assert compile_kernel(kernel, HOPPER).registers == kernel.launch_registers
        total = kernel.computing_registers * kernel.computing_threads + KEPT * COPYING
        assert total <= kernel.launch_registers * kernel.threads


_BANKS = re.compile(r"FFMA R\d+, (R\d+\S*), (R\d+\S*), (R\d+\S*) ;")


def _ffma_cycles(kernel: Kernel, folder: Path) -> float:
    """Cycles per FFMA where two banks of registers, even and odd, give one operand a cycle each and a marked
    operand stays at hand for the same place of the next FFMA."""
    listing = _listing(kernel, folder)
    held: list[str] = ["", "", ""]
    cycles: list[int] = []
    for operands in _BANKS.findall(listing):
        names = [operand.removesuffix(".reuse") for operand in operands]
        fetched = [int(name[1:]) % 2 for name, kept in zip(names, held, strict=True) if name != kept]
        held = [
            name if operand.endswith(".reuse") else "" for name, operand in zip(names, operands, strict=True)
        ]
        cycles.append(max(1, fetched.count(0), fetched.count(1)))
    return sum(cycles) / len(cycles)


@needs_nvdisasm
@pytest.mark.parametrize("params", [{}, {"BK": 64, "STAGES": 2}, {"BN": 128, "MIN_BLOCKS": 2}], ids=str)
def test_operands_of_tma_come_from_different_banks(params: dict[str, int], tmp_path: Path) -> None:
    kernel = stage_named("tma")
    assert _ffma_cycles(kernel.from_params({**kernel().params, **params}), tmp_path) < 1.15


@needs_nvdisasm
@pytest.mark.parametrize(
    "params",
    [{}, {"SPLIT_K": 4}, {"BM": 64, "BN": 128, "TM": 8, "TN": 8, "LANES_M": 4, "MIN_BLOCKS": 2}],
    ids=str,
)
def test_operands_come_from_different_banks(params: dict[str, int], tmp_path: Path) -> None:
    """1.06 to 1.23; without place_sums 1.5 and more."""
    kernel = stage_named("warp_tile")
    assert _ffma_cycles(kernel.from_params({**kernel().params, **params}), tmp_path) < 1.3


@needs_nvdisasm
@pytest.mark.parametrize("params", [{}, {"SIDE": 1, "TM": 4}, {"TM": 1, "AHEAD": 16}], ids=str)
def test_skinny_streams_the_large_operand_into_registers(params: dict[str, int], tmp_path: Path) -> None:
    kernel = stage_named("skinny").from_params({**stage_named("skinny")().params, **params})
    ops = _sass(kernel, tmp_path)
    count = Counter(ops)
    ahead = kernel.params["AHEAD"]
    stream = "LDG.E.NA.128.CONSTANT"
    assert count[stream] == 2 * ahead, "all that is on its way is asked for before the loop, and again in it"
    assert not any(op.startswith(("LDL", "STL", "CALL")) for op in ops), "nothing lies in local memory"
    assert count["ATOMG.E.INC.STRONG.GPU"] == 1, "the last block to arrive is found by one ticket each"
    few = kernel.params["TN" if kernel.params["SIDE"] else "TM"]
    places = [i for i, op in enumerate(ops) if op == stream]
    assert ops[places[ahead - 1] : places[-1]].count("FFMA") >= 2 * ahead * few
    for first, last in ((0, ahead - 1), (ahead, 2 * ahead - 1)):
        between = ops[places[first] : places[last]]
        assert not any(op.startswith(("BAR", "DEPBAR", "BRA", "WARPSYNC")) for op in between), "none waits"


def test_split_k_needs_clusters() -> None:
    stage = stage_named("warp_tile")
    split = stage.from_params({**stage().params, "BM": 64, "BN": 128, "TN": 8, "MIN_BLOCKS": 2, "SPLIT_K": 8})
    assert split.violations(ARCHS["sm_89"]) == ["sm_89 has no clusters of blocks: SPLIT_K must be 1"]
    for arch in (HOPPER, ARCHS["sm_100"], ARCHS["sm_121"]):
        assert split.violations(arch) == []
        assert compile_kernel(split, arch).spill_bytes == 0


def test_split_k_multiplies_the_grid_and_keeps_the_partial_sums() -> None:
    stage = stage_named("warp_tile")
    whole, split = (stage.from_params({**stage().params, "SPLIT_K": by}) for by in (1, 4))
    problem = Problem(1000, 1000, 64)
    assert split.grid(problem) == 4 * whole.grid(problem) == 4 * 8 * 4
    assert split.smem_bytes == 4 * 128 * 256 > whole.smem_bytes


BLACKWELL = [ARCHS[name] for name in ("sm_100", "sm_103", "sm_120", "sm_121")]
PACKED = {"BM": 64, "BN": 128, "TM": 8, "TN": 8, "MIN_BLOCKS": 2, "PACKED": 1}


@pytest.mark.parametrize("params", [{"PACKED": 1}, {**PACKED, "SPLIT_K": 4}], ids=str)
@pytest.mark.parametrize("arch", BLACKWELL, ids=_ids)
def test_packed_kernels_compile_without_spills(arch: Arch, params: dict[str, int]) -> None:
    stage = stage_named("warp_tile")
    kernel = stage.from_params({**stage().params, **params})
    binary = compile_kernel(kernel, arch)
    assert binary.spill_bytes == 0
    assert kernel.params["MIN_BLOCKS"] * binary.registers * kernel.threads <= 65536


@needs_nvdisasm
@pytest.mark.parametrize("params", [{"PACKED": 1}, PACKED], ids=str)
@pytest.mark.parametrize("arch", [arch for arch in BLACKWELL if arch.packed_ffma], ids=_ids)
def test_packed_loops_make_two_ffmas_by_one_instruction(
    arch: Arch, params: dict[str, int], tmp_path: Path
) -> None:
    """And nothing packs or unpacks pairs: sums stay in aligned registers, a[m] serves both halves."""
    stage = stage_named("warp_tile")
    kernel = stage.from_params({**stage().params, **params})
    (_, _, bk), (tm, tn) = kernel.tile, kernel.thread_tile
    ops = _sass(kernel, tmp_path, arch)
    loop = Counter(_longest_run(ops, "FFMA2"))
    assert loop["FFMA2"] == bk * tm * tn // 2
    assert loop["LDS.128"] == bk * (tm + tn) // 4
    assert loop["FFMA"] == 0
    assert not any(op.startswith(("MOV", "IMAD.MOV", "PRMT", "SEL")) for op in loop)
    assert not any(op.startswith(("LDL", "STL")) for op in ops), "nothing lies in local memory"


@needs_nvdisasm
@pytest.mark.parametrize("arch", [arch for arch in BLACKWELL if not arch.packed_ffma], ids=_ids)
def test_other_architectures_have_no_packed_instruction(arch: Arch, tmp_path: Path) -> None:
    """Why PACKED is refused there. Once a compiler knows better, `Arch.packed_ffma` should."""
    stage = stage_named("warp_tile")
    count = Counter(_sass(stage.from_params({**stage().params, "PACKED": 1}), tmp_path, arch))
    assert count["FFMA2"] == 0 < count["FFMA"]


@pytest.mark.parametrize("arch", ARCHS.values(), ids=_ids)
def test_packed_needs_its_instruction(arch: Arch) -> None:
    stage = stage_named("warp_tile")
    plain, packed = (stage.from_params({**stage().params, "PACKED": value}) for value in (0, 1))
    refused = [f"{arch.name} has no instruction that makes two FFMAs: PACKED must be 0"]
    assert plain.violations(arch) == []
    assert packed.violations(arch) == ([] if arch.name in ("sm_100", "sm_103") else refused)
    assert (packed in stage.legal(arch)) == arch.packed_ffma
    share = sum(kernel.packed for kernel in stage.legal(arch)) / len(stage.legal(arch))
    assert share == (0.5 if arch.packed_ffma else 0.0)


@needs_nvdisasm
def test_tf32_runs_on_tensor_cores(tmp_path: Path) -> None:
    ops = Counter(_sass(stage_named("tf32_mma")(), tmp_path))
    assert any(op.startswith("HMMA") and "TF32" in op for op in ops), ops
    assert any(op.startswith("STG.E.64") for op in ops), ops
