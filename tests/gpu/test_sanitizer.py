"""compute-sanitizer finds nothing in any stage."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from sgemm_tune.kernel import ladder
from tests.gpu.sanitize_target import CASES, kernels

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_clean(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit")
    stages = [stage.name() for stage in ladder()]
    command = [
        sanitizer,
        "--tool",
        tool,
        "--error-exitcode",
        "99",
        sys.executable,
        "-m",
        "tests.gpu.sanitize_target",
        *stages,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{len(kernels(stages)) * len(CASES)} runs" in done.stdout
    assert "0 errors" in done.stdout or "0 hazards" in done.stdout, done.stdout[-500:]
