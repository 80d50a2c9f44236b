"""The folder of faulty kernels as a stage: each is compiled for real and runs through the real pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.nvrtc import Binary, compile_source
from sgemm_tune.compiler.sources import SourceText
from sgemm_tune.kernel import Kernel, tune
from sgemm_tune.measure.outcome import Status

KERNELS = Path(__file__).parent / "kernels"

EXPECTED: dict[str, tuple[Status, str]] = {
    "out_of_bounds_read": (Status.CRASHED, "illegal"),
    "out_of_bounds_write": (Status.CRASHED, "illegal"),
    "misaligned_address": (Status.CRASHED, "misaligned"),
    "device_trap": (Status.CRASHED, "running"),
    "endless_loop": (Status.TIMEOUT, "no answer"),
    "half_unwritten": (Status.WRONG, "never written"),
    "nothing_written": (Status.WRONG, "never written"),
    "last_k_skipped": (Status.WRONG, "error"),
    "terms_dropped": (Status.WRONG, "error"),
    "missing_barrier": (Status.WRONG, ""),
    "uninitialised_tail": (Status.WRONG, "NaN"),
    "beta_zero_reads_c": (Status.WRONG, "NaN"),
    "tf32_in_fp32": (Status.WRONG, "error"),
    "write_past_end": (Status.WRONG, "outside the matrices"),
    "write_before_start": (Status.WRONG, "outside the matrices"),
    "write_between_rows": (Status.WRONG, "outside the matrices"),
    "does_not_compile": (Status.COMPILE, "undeclared"),
    "too_much_smem": (Status.LAUNCH, "invalid"),
    "too_many_registers": (Status.LAUNCH, "resources"),
    "spills": (Status.SPILL, "bytes of spills"),
    "minutes_in_compiler": (Status.COMPILE, "compiler"),
    "input_overwritten": (Status.WRONG, "of A or B"),
    "nan_swallowed": (Status.WRONG, "NaN"),
    "inf_clamped": (Status.WRONG, "NaN or Inf"),
    "alpha_ignored": (Status.WRONG, "error"),
    "beta_ignored": (Status.WRONG, "error"),
    "ldc_ignored": (Status.WRONG, ""),
    "lda_ignored": (Status.WRONG, ""),
    "alpha_zero_reads_a": (Status.WRONG, "NaN"),
    "k_zero_leaves_c": (Status.WRONG, "never written"),
    "transposed_result": (Status.WRONG, "error"),
    "last_column_missed": (Status.WRONG, "never written"),
    "accumulates_into_c": (Status.WRONG, "NaN"),
    "half_accumulator": (Status.WRONG, "error"),
    "unrepeatable": (Status.WRONG, "two runs"),
    "offset_32_bits": (Status.WRONG, "never written"),
}
"""Fault -> (status, words that its reason holds)."""


@dataclass(frozen=True)
class Faulty(Kernel):
    """A kernel of 16 x 16 tiles from the folder of faults: `fault` says which."""

    source: ClassVar[str] = str(KERNELS / "00_faulty.cu")
    SMEM: int = tune(0, 1 << 20)
    THREADS: int = tune(256, 1024)
    fault: str = "healthy"

    def __str__(self) -> str:
        return f"faulty({self.fault})"

    @property
    def defines(self) -> tuple[str, ...]:
        """With the fault among them: two of them are not compiled as one."""
        return (*super().defines, f"-DFAULT={self.fault}")

    @property
    def tile(self) -> tuple[int, int, int]:
        return 16, 16, 16

    @property
    def thread_tile(self) -> tuple[int, int]:
        return 1, 1

    @property
    def threads(self) -> int:
        return self.THREADS

    @property
    def smem_bytes(self) -> int:
        return self.SMEM


def kernel_for(fault: str) -> Faulty:
    """The fault with the launch configuration that it needs."""
    if fault == "too_much_smem":
        return Faulty(SMEM=1 << 20, fault=fault)
    return Faulty(THREADS=1024 if fault == "too_many_registers" else 256, fault=fault)


def compile_fault(fault: str, arch: Arch) -> Binary:
    """Compile one of the folder.

    Raises:
        CompileError: the fault is one of compilation.
    """
    text = (KERNELS / f"{fault}.cu").read_text(encoding="utf-8")
    return compile_source(SourceText(f"{fault}.cu", text, (), ""), arch, (), fault)


def compile_faulty(kernel: Kernel, arch: Arch, cache: BinaryCache | None) -> Binary:
    """What a compile pool's processes call for the kernels of `kernel_for`."""
    assert isinstance(kernel, Faulty)
    return compile_fault(kernel.fault, arch)
