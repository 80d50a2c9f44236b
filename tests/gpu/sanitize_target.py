"""What compute-sanitizer looks at: every stage at several configurations on ragged shapes, each once.

compute-sanitizer --tool memcheck python -m tests.gpu.sanitize_target [stage ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.compiler.nvrtc import Binary, compile_kernel
from sgemm_tune.device.gpu import GpuDevice
from sgemm_tune.kernel import Kernel, ladder
from sgemm_tune.measure.cases import Case
from sgemm_tune.problem import Problem

SAMPLED = 2
CASES = (
    Case(Problem(133, 197, 77), "ragged"),
    Case(Problem(131, 190, 75, 1.5, 0.5, 77, 191, 193), "ragged, odd leading dimensions, beta", misaligned=1),
    Case(Problem(9, 132, 2052), "few rows, deep: blocks share a tile of stage 12"),
)


def kernels(stages: Sequence[str] = ()) -> list[Kernel]:
    """The default of each stage (or of those named) and a few more, the same ones every time.

    Of a stage that has clusters, also that configuration with them which is most like the default.
    """
    arch = parse_arch("sm_90")
    chosen: list[Kernel] = []
    for stage in [stage for stage in ladder() if not stages or stage.name() in stages]:
        legal = list(stage.legal(arch))
        sampled = [stage(), *random.Random(5).sample(legal, min(SAMPLED, len(legal)))]
        clustered = [kernel for kernel in legal if kernel.cluster > 1]
        if clustered:
            sampled.append(min(clustered, key=lambda kernel: _differences(kernel, sampled[0])))
        chosen += dict.fromkeys(sampled)
    return chosen


def _differences(one: Kernel, other: Kernel) -> int:
    return sum(one.params[name] != value for name, value in other.params.items())


def compile_all(kernels: Sequence[Kernel], arch: Arch) -> list[Binary]:
    """Compile side by side: NVRTC lets other threads run meanwhile."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda kernel: compile_kernel(kernel, arch), kernels))


def main() -> None:
    """Run them all; the last line says how many runs there were."""
    device = GpuDevice(0)
    arch = parse_arch(device.info.arch)
    runs = 0
    chosen = kernels(sys.argv[1:])
    for kernel, binary in zip(chosen, compile_all(chosen, arch), strict=True):
        loaded = device.load(kernel, binary)
        for case in CASES:
            check = device.check(loaded, case, kernel.precision, seed=1)
            if (
                check.guards
                or check.unwritten
                or not check.error <= kernel.precision.error_bound(case.problem.k)
            ):
                raise SystemExit(f"{kernel} is wrong on {case.problem}: {check}")
            runs += 1
    print(f"{runs} runs")


if __name__ == "__main__":
    main()
