"""Every kind of fault through the real pipeline: real worker process, real compile pool, scripted device."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from sgemm_tune.measure.outcome import Status
from sgemm_tune.measure.protocol import Policy
from sgemm_tune.search.types import SearchResult, Stop
from tests.fakes import FAULTS, SLOW_TO_DETECT, Bench, Script, kernels_of

QUICK = [fault for fault in FAULTS if fault not in SLOW_TO_DETECT]
SHORT = 3.0
"""A deadline that a healthy candidate, which takes milliseconds here, meets on a busy machine."""


def by_kernel(bench: Bench) -> dict[str, dict[str, str]]:
    """Rows by the kernel they are about, as `str(kernel)` has it."""
    stages = {str(kernel): kernel for stage in bench.stages for kernel in kernels_of(stage)}
    key = {(k.name(), json.dumps(k.params, sort_keys=True)): text for text, k in stages.items()}
    rows = bench.rows()
    found = {key[row["stage"], row["config"]]: row for row in rows}
    assert len(found) == len(rows), "no configuration is measured twice"
    return found


@pytest.fixture(scope="module")
def every_fault(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, SearchResult]:
    """One exhaustive search in which each kind of fault befalls one configuration."""
    stages = ("coalesced", "block_tile_2d")
    kernels = [kernel for stage in stages for kernel in kernels_of(stage)]
    step = len(kernels) / len(FAULTS)
    faults = {str(kernels[int(i * step)]): fault for i, fault in enumerate(FAULTS)}
    assert len(faults) == len(FAULTS) < len(kernels)
    root = tmp_path_factory.mktemp("faults")
    bench = Bench(root, Script(faults), stages, real=True, run_deadline=SHORT, compile_deadline=SHORT)
    (result,) = bench.search(trials=len(kernels))
    return bench, result


def test_there_are_at_least_25_kinds() -> None:
    assert len(FAULTS) >= 25


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_rejected_for_its_own_reason(every_fault: tuple[Bench, SearchResult], fault: str) -> None:
    bench, _ = every_fault
    (kernel,) = [kernel for kernel, name in bench.script.faults.items() if name == fault]
    row = by_kernel(bench)[kernel]
    status, reason = FAULTS[fault]
    assert row["status"] == status
    assert reason in row["reason"]
    assert row["ms"] == "", "what failed has no time"


def test_the_search_goes_on_and_counts_them(every_fault: tuple[Bench, SearchResult]) -> None:
    bench, result = every_fault
    assert result.stopped is Stop.TRIALS
    healthy = [row for row in by_kernel(bench).values() if row["status"] == "ok"]
    assert len(healthy) == result.done - len(FAULTS)
    assert {status: f.count for status, f in result.failures.items()} == {
        status: sum(s is status for s, _ in FAULTS.values()) for status in {s for s, _ in FAULTS.values()}
    }
    fastest = min(healthy, key=lambda row: float(row["ms"]))
    assert result.verdict.kernel is not None
    assert result.verdict.measurement is not None
    assert result.verdict.measurement.ms == pytest.approx(float(fastest["ms"]), rel=0.01)


def test_a_fifth_of_200_faulty_costs_the_healthy_ones_nothing(tmp_path: Path) -> None:
    stages = ("vectorized", "block_tile_2d")
    clean = Bench(tmp_path / "clean", Script(), stages, real=True)
    fully = Policy(early_cut=0)  # an early cut depends on what was the best so far, in which order
    clean.search(trials=200, sampler="exhaustive", policy=fully)
    without = by_kernel(clean)
    tried = sorted(without)
    assert len(tried) == 200
    names = itertools.chain(SLOW_TO_DETECT, itertools.cycle(QUICK))
    faults = dict(zip(tried[::5], names, strict=False))
    assert len(faults) == 40
    bench = Bench(
        tmp_path / "faulty", Script(faults), stages, real=True, run_deadline=SHORT, compile_deadline=SHORT
    )
    (result,) = bench.search(trials=200, sampler="exhaustive", policy=fully)
    found = by_kernel(bench)
    assert sorted(found) == tried
    assert sum(f.count for f in result.failures.values()) == 40
    for kernel, row in found.items():
        if kernel in faults:
            assert row["status"] == FAULTS[faults[kernel]][0]
            continue
        assert row["status"] == "ok"
        assert (row["ms"], row["vs_cublas"]) == (without[kernel]["ms"], without[kernel]["vs_cublas"])


def test_a_worker_killed_from_outside_loses_the_trial_it_was_at(tmp_path: Path) -> None:
    log = tmp_path / "log"
    bench = Bench(tmp_path, Script(pause=0.3, log=log), real=True)

    def kill_at_the_third() -> None:
        while sum(what == "gpu" for what, _ in bench.log()) < 3:
            time.sleep(0.01)
        (worker,) = [child for child in multiprocessing.active_children() if child.name == "sgemm-tune-gpu"]
        worker.kill()

    killer = threading.Thread(target=kill_at_the_third)
    killer.start()
    (result,) = bench.search(trials=15)
    killer.join()
    statuses = [row["status"] for row in bench.rows()]
    assert statuses.count("crashed") == 1
    assert statuses.count("ok") == 14
    assert "SIGKILL" in result.failures[Status.CRASHED].example


def test_the_main_process_never_touches_cuda(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.fakes import Bench, Script
        if __name__ == "__main__":
            (result,) = Bench(Path(sys.argv[1]), real=True).search(trials=15)
            assert result.verdict.kernel is not None
            unwanted = {"cupy", "cupy_backends", "pynvml", "pandas", "matplotlib"} & set(sys.modules)
            assert not unwanted, unwanted
            assert "libcuda" not in Path("/proc/self/maps").read_text()
            print("done")
    """)
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
