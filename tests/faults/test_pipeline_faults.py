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
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler.pool import CompilePool
from sgemm_tune.measure.outcome import Measurement, Status
from sgemm_tune.problem import Problem
from sgemm_tune.search.types import SearchResult, Stop
from tests.fakes import FAULTS, SLOW_TO_DETECT, Bench, Script, compiler, kernels_of, opener
from tests.faults.faulty import EXPECTED, compile_faulty, kernel_for
from tests.faults.fifth import Agreement, Plan, agreement

QUICK = [fault for fault in FAULTS if fault not in SLOW_TO_DETECT]
SM_90 = parse_arch("sm_90")
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


def scripted(names: Iterable[str], healthy: CompilePool, faulty: CompilePool, trials: int = 200) -> Plan:
    """A plan over a scripted device on which the faults of those names happen."""
    return Plan(
        ("vectorized", "block_tile_2d"),
        Problem(2048, 2048, 2048),
        opener(Script({str(kernel_for(name)): name for name in names})),
        lambda _: SHORT,
        healthy,
        faulty,
        trials=trials,
    )


def test_a_fifth_of_200_faulty_costs_the_healthy_ones_nothing(tmp_path: Path) -> None:
    compile_scripted = compiler(Script({str(kernel_for(name)): name for name in FAULTS}))
    with CompilePool(SM_90, 2, None, SHORT, compile_scripted) as pool:
        plan = scripted(FAULTS, pool, pool)
        without = plan.search(tmp_path / "without")
        found = plan.search(tmp_path / "faulty", itertools.chain(SLOW_TO_DETECT, itertools.cycle(QUICK)))
    assert (found.result.stopped, len(found.outcomes), len(found.faults)) == (Stop.TRIALS, 200, 40)
    assert set(found.faults.values()) == set(FAULTS)
    assert found.misjudged(FAULTS) == []
    assert found.restarts == found.lost() > 0
    assert all(outcome.status is Status.OK for outcome in without.outcomes.values())
    assert without.outcomes.keys() == found.outcomes.keys()
    assert found.others == {kernel: without.outcomes[kernel] for kernel in found.others}


def test_the_folder_of_faulty_kernels_takes_the_places_of_candidates(tmp_path: Path) -> None:
    """As tests/gpu does it, with the real compiler, but on a device that only acts as if it ran them."""
    names = [name for name in FAULTS if name in EXPECTED and name != "minutes_in_compiler"]
    assert len(names) >= 12
    with (
        CompilePool(SM_90, 1, None, 30.0, compiler(Script())) as healthy,
        CompilePool(SM_90, 1, None, 30.0, compile_faulty) as faulty,
    ):
        plan = scripted(names, healthy, faulty, trials=5 * len(names) + 4)
        found = plan.search(tmp_path, names)
    assert list(found.faults.values()) == names
    assert found.misjudged(EXPECTED) == []
    assert all(outcome.status is Status.OK for outcome in found.others.values())
    measured = [kernel for kernel in found.outcomes if kernel not in found.faults]
    assert found.result.verdict.kernel in measured, "the last round replaces nobody"


def test_what_was_misjudged_and_times_that_differ_are_told(tmp_path: Path) -> None:
    with CompilePool(SM_90, 2, None, SHORT, compiler(Script())) as pool:
        plan = scripted(["nothing_written"], pool, pool, trials=20)
        found = plan.search(tmp_path, ["nothing_written", "launch_refused"])
    assert [text.split(":")[0] for text in found.misjudged(FAULTS)] == ["launch_refused"]
    assert found.misjudged(FAULTS | {"nothing_written": (Status.WRONG, "a race")})[0].startswith("nothing")
    same = agreement(found.others, found.others)
    assert same == Agreement(18, 1.0, 0.0)
    slower = {
        kernel: replace(outcome, vs_cublas=outcome.vs_cublas * (0.9 if i < 2 else 0.98))
        for i, (kernel, outcome) in enumerate(found.others.items())
        if isinstance(outcome, Measurement)
    }
    worse = agreement(found.others, slower)
    assert (worse.median, worse.within_95) == pytest.approx((0.98, 0.1))
    cut = {kernel: replace(outcome, early_cut=True) for kernel, outcome in list(slower.items())[:2]}
    rest = agreement(found.others, slower | cut)
    assert (rest.count, rest.median, rest.within_95) == pytest.approx((16, 0.98, 0.02))


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
