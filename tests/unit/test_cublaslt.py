"""The best of cublasLt's heuristics over a scripted device, and what of the C interface needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.device import cublaslt
from sgemm_tune.device.blas import WORKSPACE_BYTES
from sgemm_tune.device.cublaslt import Api, Descriptors, HeuristicResult, MatmulAlgo
from sgemm_tune.errors import DeviceFault, LaunchError
from sgemm_tune.kernel import stage_named
from sgemm_tune.measure.cublaslt import CublasLtTime, best_of_cublaslt
from sgemm_tune.measure.outcome import Rejected, Status
from sgemm_tune.measure.protocol import Check, Policy, Request, Timing
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Precision, Problem
from tests.fakes import CUBLAS_MS, RIGHT, FakeAlgorithm, FakeDevice, Script, opener

PROBLEM = Problem(2048, 2048, 2048)
KERNEL = stage_named("coalesced")()
REQUEST = Request(KERNEL, Binary(b"cubin", 64, 0, 0, "12.9", 0.0, ""), PROBLEM, Policy())
TF32 = Check(error=4e-5, norm_error=3e-4)


def script(*heuristics: FakeAlgorithm, throttled: bool = False) -> Script:
    """Ours takes 1.25 ms."""
    return Script(ms={str(KERNEL): 1.25}, heuristics=heuristics, throttled=throttled)


def test_the_fastest_is_timed_beside_ours_and_cublas() -> None:
    found = best_of_cublaslt(FakeDevice(script(*map(FakeAlgorithm, (1.9, 1.5, 1.7)))), REQUEST)
    assert isinstance(found, CublasLtTime)
    assert (found.rank, found.proposed, found.discarded, found.throttled) == (1, 3, 0, False)
    assert found.ms == pytest.approx(1.5, rel=1e-3)
    assert found.vs_cublaslt == pytest.approx(1.5 / 1.25)
    assert found.vs_cublas == pytest.approx(CUBLAS_MS / 1.5)


@pytest.mark.parametrize(
    "wrong",
    [
        FakeAlgorithm(0.5, refuses=True),
        FakeAlgorithm(0.5, TF32),
        # in a long sum TF32 hides among the componentwise errors that fp32 may have
        FakeAlgorithm(0.5, replace(TF32, error=1e-9)),
        FakeAlgorithm(0.5, replace(RIGHT, error=float("nan"))),
        FakeAlgorithm(0.5, replace(RIGHT, norm_error=float("nan"))),
        FakeAlgorithm(0.5, replace(RIGHT, unwritten=1)),
        FakeAlgorithm(0.5, replace(RIGHT, nonfinite=1)),
        FakeAlgorithm(0.5, replace(RIGHT, guards=1)),
        FakeAlgorithm(0.5, replace(RIGHT, inputs_changed=1)),
    ],
)
def test_what_is_not_strict_fp32_is_no_rival(wrong: FakeAlgorithm) -> None:
    found = best_of_cublaslt(FakeDevice(script(wrong, FakeAlgorithm(1.5))), REQUEST)
    assert isinstance(found, CublasLtTime)
    assert (found.rank, found.discarded) == (1, 1)
    assert found.ms == pytest.approx(1.5, rel=1e-3)
    alone = best_of_cublaslt(FakeDevice(script(wrong)), REQUEST)
    assert isinstance(alone, Rejected)
    assert alone.reason == "none of the 1 algorithms that cublasLt proposes is right in fp32"


def test_no_proposal_is_said() -> None:
    device = FakeDevice(script())
    found = best_of_cublaslt(device, REQUEST)
    assert found == Rejected(Status.LAUNCH, "cublasLt proposes no fp32 algorithm")
    assert "time" not in device.calls


def test_samples_taken_while_throttled_are_repeated_once_and_marked() -> None:
    device = FakeDevice(script(FakeAlgorithm(1.5), throttled=True))
    found = best_of_cublaslt(device, REQUEST)
    assert isinstance(found, CublasLtTime)
    assert found.throttled
    assert device.calls.count("time") == 1 + 2  # the pilot, then the samples twice


def test_a_slow_candidate_gets_fewer_passes() -> None:
    class Counting(FakeDevice):
        samples = 0

        def time(
            self, runs: Sequence[Any], problem: Problem, precision: Precision, policy: Policy, samples: int
        ) -> Timing:
            self.samples = samples
            return super().time(runs, problem, precision, policy, samples)

    slow = replace(script(FakeAlgorithm(1.5)), ms={str(KERNEL): 500.0})
    device = Counting(slow)
    best_of_cublaslt(device, REQUEST)
    assert device.samples == 6  # passes of 3 runs at 0.5 s in 10 s
    device = Counting(script(FakeAlgorithm(1.5)))
    best_of_cublaslt(device, REQUEST)
    assert device.samples == Policy().max_samples


def test_the_worker_process_answers_it_and_survives_a_crash() -> None:
    with GpuWorker(opener(script(FakeAlgorithm(1.5)))) as worker:
        found = worker.best_of_cublaslt(REQUEST)
        assert isinstance(found, CublasLtTime)
        assert found.rank == 0
    dying = replace(script(FakeAlgorithm(1.5)), faults={str(KERNEL): "segfault_when_timed"})
    with GpuWorker(opener(dying)) as worker:
        lost = worker.best_of_cublaslt(REQUEST)
        assert isinstance(lost, Rejected)
        assert lost.status is Status.CRASHED
        assert "SIGSEGV" in lost.reason


# ------------------------------------------------------------------------------- C types, without a GPU


def _folders(name: str) -> list[Path]:
    """Folders `name` of the installed cuBLAS."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return [found for root in roots for part in ("cublas", "cu1*") for found in root.glob(f"{part}/{name}")]


@pytest.fixture(scope="module")
def header() -> str:
    texts = {
        name: next((path.read_text("utf-8") for f in _folders("include") for path in f.glob(name)), "")
        for name in ("cublasLt.h", "cublas_api.h")
    }
    if not all(texts.values()):
        pytest.skip("cuBLAS is installed without its headers")
    return "\n".join(texts.values())


@pytest.fixture(scope="module")
def api() -> Api:
    paths = [path for folder in _folders("lib") for path in folder.glob("libcublasLt.so.*")]
    if not paths:
        pytest.skip("no libcublasLt.so is installed")
    return Api(ctypes.CDLL(str(paths[0])))


def test_the_values_are_those_of_the_header(header: str) -> None:
    names = [name for name in vars(cublaslt) if name.startswith(("CUBLAS_", "CUBLASLT_"))]
    assert len(names) >= 9
    for name in names:
        match = re.search(rf"\b{name}\s*=?\s*\(?(0x[0-9a-fA-F]+|\d+)", header)
        assert match is not None, name
        assert int(match.group(1), 0) == getattr(cublaslt, name), name


def test_the_layouts_are_those_of_the_header(header: str) -> None:
    struct = re.search(r"typedef struct \{([^{}]*)\} cublasLtMatmulHeuristicResult_t;", header)
    algo = re.search(r"typedef struct \{([^{}]*)\} cublasLtMatmulAlgo_t;", header)
    assert struct is not None
    assert algo is not None
    plain = re.sub(r"/\*.*?\*/", "", struct.group(1), flags=re.DOTALL)
    assert [" ".join(line.split()) for line in plain.split(";") if line.strip()] == [
        "cublasLtMatmulAlgo_t algo",
        "size_t workspaceSize",
        "cublasStatus_t state",
        "float wavesCount",
        "int reserved[4]",
    ]
    assert algo.group(1).split() == ["uint64_t", "data[8];"]
    assert (ctypes.sizeof(MatmulAlgo), ctypes.sizeof(HeuristicResult)) == (64, 96)
    offsets = (HeuristicResult.workspace_size.offset, HeuristicResult.state.offset)
    assert offsets == (64, 72)


Read = Callable[[str, ctypes.c_void_p, int, Any], int]


@pytest.fixture(scope="module")
def read(api: Api) -> Read:
    """Reads an attribute of an object back from the library."""
    [path] = [path for folder in _folders("lib") for path in folder.glob("libcublasLt.so.*")][:1]
    library = ctypes.CDLL(str(path))

    def attribute(kind: str, made: ctypes.c_void_p, number: int, c_type: Any) -> int:
        value, written = c_type(), ctypes.c_size_t()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        function = getattr(library, f"cublasLt{kind}GetAttribute")
        assert function(made, number, ctypes.byref(value), size, ctypes.byref(written)) == 0
        assert written.value == size.value
        return int(value.value)

    return attribute


def test_row_major_is_told_as_the_product_of_the_transposes(api: Api, read: Read) -> None:
    problem = Problem(33, 65, 17, lda=19, ldb=67, ldc=71)
    made = Descriptors(api, problem, cublaslt.CUBLAS_COMPUTE_32F_PEDANTIC, 2**64 - 1)
    rows, cols, ld = 2, 3, 4  # cublasLtMatrixLayoutAttribute_t
    for layout, expected in (
        (made.first, (65, 17, 67)),
        (made.second, (17, 33, 19)),
        (made.result, (65, 33, 71)),
    ):
        found = [read("MatrixLayout", layout, which, ctypes.c_uint64) for which in (rows, cols)]
        assert (*found, read("MatrixLayout", layout, ld, ctypes.c_int64)) == expected
        assert read("MatrixLayout", layout, 0, ctypes.c_uint32) == cublaslt.CUDA_R_32F
    assert read("MatmulDesc", made.matmul, 0, ctypes.c_int32) == cublaslt.CUBLAS_COMPUTE_32F_PEDANTIC
    assert read("MatmulDesc", made.matmul, 1, ctypes.c_int32) == cublaslt.CUDA_R_32F
    for transposed in (3, 4):
        assert read("MatmulDesc", made.matmul, transposed, ctypes.c_int32) == 0


def test_the_fallback_has_no_tensor_cores_and_the_workspace_is_ours(api: Api, read: Read) -> None:
    (pedantic, _), (fallback, mask) = cublaslt._MODES[KERNEL.precision]
    assert pedantic == cublaslt.CUBLAS_COMPUTE_32F_PEDANTIC
    made = Descriptors(api, PROBLEM, fallback, mask)
    kept = read("MatmulPreference", made.preference, cublaslt.CUBLASLT_MATMUL_PREF_IMPL_MASK, ctypes.c_uint64)
    assert kept & cublaslt.CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK == 0
    assert kept & 1, "FMA"
    assert kept >> 8 == 2**56 - 1
    workspace = cublaslt.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
    assert (
        read("MatmulPreference", made.preference, workspace, ctypes.c_uint64) == WORKSPACE_BYTES == 32 << 20
    )


def test_a_refusal_is_no_fault(api: Api) -> None:
    with pytest.raises(LaunchError, match=r"cublasLtMatmulPreferenceSetAttribute refused .* status 7"):
        api.call("cublasLtMatmulPreferenceSetAttribute", None, 1, None, 0)
    if api.status("cublasLtCreate", ctypes.byref(ctypes.c_void_p())) != 0:  # there is no GPU
        with pytest.raises(DeviceFault, match="cublasLtCreate failed with status 1"):
            api.call("cublasLtCreate", ctypes.byref(ctypes.c_void_p()))
