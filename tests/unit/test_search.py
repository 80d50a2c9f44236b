"""The search loop over stand-ins for the worker and the pool: no processes, no GPU."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sgemm_tune.errors import ConfigFileError, DeviceUnavailable, SgemmTuneError, UsageError
from sgemm_tune.measure.outcome import Outcome, Status
from sgemm_tune.measure.protocol import Check, Policy, Request
from sgemm_tune.problem import Problem
from sgemm_tune.search.journal import Journal
from sgemm_tune.search.types import Progress, SearchSettings, Stop
from sgemm_tune.store.files import FileWriteError
from tests.fakes import Bench, InlineWorker, Script, default_ms, kernels_of

KERNELS = kernels_of("coalesced")
NAMES = [str(kernel) for kernel in KERNELS]
FASTEST = min(KERNELS, key=default_ms)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, Script(log=tmp_path / "log"))


def states(bench: Bench) -> list[str]:
    return [trial.state.name for trial in bench.trials()]


def tried(bench: Bench) -> list[str]:
    """What was compiled for a trial, in order: the last round compiles again, at the end."""
    return [kernel for what, kernel in bench.log() if what == "compile"]


def test_the_fastest_is_found_stored_and_shown(bench: Bench) -> None:
    (result,) = bench.search(trials=len(KERNELS))
    assert result.verdict.kernel == FASTEST
    assert (result.stopped, result.done, result.new, result.resumed) == (Stop.TRIALS, 15, 15, 0)
    assert result.why_nothing == ""
    assert result.path == bench.yaml
    (entry,) = yaml.safe_load(bench.yaml.read_text())["entries"]
    assert (entry["stage"], entry["params"]) == ("coalesced", FASTEST.params)
    assert entry["ms"] == pytest.approx(default_ms(FASTEST), rel=1e-2)
    rows = bench.rows()
    assert len(rows) == 15
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["source"] for row in rows} == {"search"}
    assert set(states(bench)) == {"COMPLETE"}


def test_trials_are_the_budget_and_every_one_is_another_configuration(bench: Bench) -> None:
    (result,) = bench.search(trials=7)
    assert result.done == len(bench.rows()) == len({row["config"] for row in bench.rows()}) == 7


def test_a_space_that_is_exhausted_ends_the_search(bench: Bench) -> None:
    (result,) = bench.search(trials=100)
    assert (result.stopped, result.done) == (Stop.EXHAUSTED, 15)
    assert len(bench.rows()) == 15


@pytest.mark.parametrize("sampler", ["random", "exhaustive", "tpe", "gp"])
def test_every_sampler_serves(bench: Bench, sampler: str) -> None:
    faulty = replace(bench, script=Script(dict.fromkeys(NAMES[:5], "half_unwritten")))
    (result,) = faulty.search(trials=15, sampler=sampler)
    assert result.done == 15
    assert {status: f.count for status, f in result.failures.items()} == {Status.WRONG: 5}


def test_the_same_command_again_measures_nothing_twice(bench: Bench) -> None:
    bench.search(trials=10)
    before, rows = len(bench.log()), bench.rows()
    (result,) = bench.search(trials=10)
    assert (result.done, result.new, result.resumed) == (10, 0, 10)
    assert bench.rows() == rows
    assert len(bench.log()) - before <= 2 * 6  # the last round: five and the stored best


def test_more_trials_go_on_where_the_study_ended(bench: Bench) -> None:
    bench.search(trials=6)
    (result,) = bench.search(trials=12)
    assert (result.done, result.new, result.resumed) == (12, 6, 6)
    assert len({row["config"] for row in bench.rows()}) == len(bench.rows()) == 12


def test_rows_that_the_table_lacks_are_stored_again(bench: Bench) -> None:
    bench.search(trials=10)
    rows = bench.rows()
    table = bench.root / "results" / "results.csv"
    with table.open(newline="") as file:
        lines = list(csv.reader(file))
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(lines[:4])
    bench.search(trials=10)
    assert sorted(row["row_id"] for row in bench.rows()) == sorted(row["row_id"] for row in rows)


def test_time_ends_the_search(bench: Bench) -> None:
    (result,) = bench.search(trials=15, timeout=0.0)
    assert (result.stopped, result.done) == (Stop.TIMEOUT, 0)
    assert "nothing was tried" in result.why_nothing
    assert not bench.yaml.exists()


def test_failures_are_told_so_that_the_sampler_learns(bench: Bench) -> None:
    faulty = replace(bench, script=Script({NAMES[0]: "half_unwritten", NAMES[1]: "does_not_compile"}))
    (result,) = faulty.search(trials=15)
    pruned = [trial for trial in faulty.trials() if trial.state.name == "PRUNED"]
    assert len(pruned) == 2
    assert all(trial.constraints == {"valid": 1.0} for trial in pruned)
    assert states(faulty).count("COMPLETE") == 13
    assert {status: f.count for status, f in result.failures.items()} == {Status.WRONG: 1, Status.COMPILE: 1}
    assert "never written" in result.failures[Status.WRONG].example
    assert NAMES[0] in result.failures[Status.WRONG].example


def test_what_crashed_the_device_is_not_tried_again(bench: Bench) -> None:
    faulty = replace(bench, script=replace(bench.script, faults={NAMES[3]: "illegal_access"}))
    faulty.search(trials=15)
    faulty.search(trials=15)
    assert [kernel for what, kernel in faulty.log() if what == "gpu"].count(NAMES[3]) == 1


def test_where_everything_fails_the_reasons_are_said_and_the_old_best_stays(bench: Bench) -> None:
    bench.search(trials=15)
    old = bench.yaml.read_bytes()
    other = replace(bench, stages=("smem_tile",))
    faults = {str(kernel): "half_unwritten" for kernel in kernels_of("smem_tile")}
    stale = {str(FASTEST): "half_unwritten"}  # the stored best takes part in the last round
    broken = replace(other, script=Script(faults | stale))
    (result,) = broken.search(trials=15)
    assert result.verdict.kernel is None
    assert result.path is None
    assert (
        "none of 2 candidates at 2048x2048x2048 is healthy: 2 wrong (such as smem_tile" in result.why_nothing
    )
    assert bench.yaml.read_bytes() == old
    assert len(bench.rows()) == 17


def test_each_problem_has_its_own_study_and_entry(bench: Bench) -> None:
    both = replace(bench, problems=(Problem(2048, 2048, 2048), Problem(1024, 2048, 512)))
    first, second = both.search(trials=5)
    assert first.study != second.study
    assert (first.done, second.done) == (5, 5)
    entries = yaml.safe_load(bench.yaml.read_text())["entries"]
    assert {(entry["m"], entry["n"], entry["k"]) for entry in entries} == {
        (2048, 2048, 2048),
        (1024, 2048, 512),
    }


def test_each_problem_is_searched_in_the_stages_that_suit_it(bench: Bench) -> None:
    few_rows, cube = Problem(16, 2048, 512), Problem(2048, 2048, 2048)
    both = replace(bench, stages=("coalesced", "skinny"), problems=(few_rows, cube))
    first, second = both.search(trials=40)
    stages = {shape: {row["stage"] for row in both.rows() if row["m"] == shape} for shape in ("16", "2048")}
    assert stages == {"16": {"coalesced", "skinny"}, "2048": {"coalesced"}}
    assert (first.stopped, second.stopped, second.done) == (Stop.TRIALS, Stop.EXHAUSTED, len(KERNELS))
    (alone,) = bench.search(trials=40)
    assert alone.study == second.study, "a stage that does not suit the shape is no part of its study"


def test_a_shape_knows_what_was_compiled_before_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgemm_tune.search.samplers import make_sampler

    known: list[int] = []

    def listening(*given: Any) -> Any:
        *_, builds = given
        known.append(int(builds.done.sum()))
        return make_sampler(*given)

    monkeypatch.setattr("sgemm_tune.search.search.make_sampler", listening)
    cached = replace(bench, cache=set(), problems=(Problem.parse_size(2048), Problem.parse_size(1024)))
    first, _ = cached.search(trials=6)
    cached.search(trials=6)
    assert first.compiled == 6
    assert known[:2] == [0, 6]
    assert known[2:] == [len(cached.cache or ())] * 2, "and so does the next command"
    bench.search(trials=6)
    assert known[4:] == [0], "another pool, without a cache"


def test_the_less_waits_for_the_gpu_the_more_is_asked_for_that_needs_no_compiling(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgemm_tune.search.study import Candidate, TuningStudy

    wanted: list[int] = []
    ask = TuningStudy.ask

    def listening(self: TuningStudy, budget: int, count: int, ready_wanted: int) -> list[Candidate]:
        wanted.append(ready_wanted)
        return ask(self, budget, count, ready_wanted)

    monkeypatch.setattr(TuningStudy, "ask", listening)
    slow = replace(bench, script=Script(pause=0.05))
    slow.search(trials=len(KERNELS), jobs=2)
    assert wanted[0] > 0, "the GPU has nothing to do"
    assert 0 in wanted[1:], "the compilers are ahead of it"


def test_a_shape_starts_from_the_best_of_its_neighbours(bench: Bench) -> None:
    bench.search(trials=len(KERNELS))
    before = len(tried(bench))
    replace(bench, problems=(Problem.parse_size(512),)).search(trials=3)
    assert tried(bench)[before] == str(FASTEST)
    assert len(set(tried(bench)[before : before + 3])) == 3, "and goes on with others"


def test_what_was_fastest_elsewhere_and_the_samplers_proposals_come_by_turns(tmp_path: Path) -> None:
    def timed(shapes: Sequence[int]) -> list[str]:
        root = tmp_path / str(len(shapes))
        script = Script(log=tmp_path / f"log of {len(shapes)}")
        made = Bench(root, script, problems=tuple(Problem.parse_size(size) for size in shapes))
        made.search(trials=len(KERNELS), sampler="exhaustive")
        last_round = 5
        return [kernel for what, kernel in made.log() if what == "gpu"][
            -len(KERNELS) - last_round : -last_round
        ]

    fastest = [str(kernel) for kernel in sorted(KERNELS, key=default_ms)]
    proposed = timed([1024])
    expected: list[str] = []
    for turn in range(len(KERNELS)):
        order = proposed if turn % 2 else fastest
        expected.append(next(name for name in order if name not in expected))
    assert timed([512, 1024]) == expected != proposed


def test_what_was_tried_is_not_tried_again_because_a_neighbour_had_it(bench: Bench) -> None:
    bench.search(trials=len(KERNELS))
    (again,) = bench.search(trials=2 * len(KERNELS))
    assert (again.new, again.resumed, again.stopped) == (0, len(KERNELS), Stop.EXHAUSTED)


@pytest.mark.parametrize(
    "change",
    [
        {"stages": ("coalesced", "smem_tile")},
        {"info": replace(InlineWorker(Script()).info, name="NVIDIA H100 80GB HBM3")},
        {"info": replace(InlineWorker(Script()).info, sms=114)},
    ],
    ids=["space", "device", "SMs"],
)
def test_another_space_or_device_is_another_study_and_leaves_the_first_alone(
    bench: Bench, change: dict[str, object]
) -> None:
    (first,) = bench.search(trials=5)
    (other,) = replace(bench, **change).search(trials=3)  # type: ignore[arg-type]
    assert other.study != first.study
    assert (other.resumed, other.new) == (0, 3)
    (again,) = bench.search(trials=5)
    assert (again.study, again.resumed, again.new) == (first.study, 5, 0)


def test_an_edited_kernel_is_another_study(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgemm_tune.compiler import sources
    from sgemm_tune.search import study

    (first,) = bench.search(trials=5)
    edited = replace(sources.source_text("02_coalesced.cu"), digest="0" * 16)
    monkeypatch.setattr(study, "source_text", lambda name: edited)
    (second,) = bench.search(trials=5)
    assert second.study != first.study
    assert second.resumed == 0


def test_warm_and_cold_times_are_not_mixed(bench: Bench) -> None:
    (cold,) = bench.search(trials=3)
    (warm,) = bench.search(trials=3, policy=Policy(cold=False))
    assert cold.study != warm.study


def interrupt_at(done: int, times: int = 1) -> Callable[[Progress], None]:
    def on_event(event: Progress) -> None:
        if event.new == done and event.last is not None:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    return on_event


def test_ctrl_c_ends_it_with_what_it_has_and_the_same_command_goes_on(bench: Bench) -> None:
    on_event = interrupt_at(4)
    (result,) = bench.search(trials=15, on_event=on_event)
    assert result.stopped is Stop.INTERRUPTED
    assert 4 <= result.done < 15
    assert result.verdict.kernel is not None
    assert len(bench.rows()) == result.done
    assert "RUNNING" not in states(bench)
    (rest,) = bench.search(trials=15)
    assert (rest.done, rest.resumed) == (15, result.done)
    assert len({row["config"] for row in bench.rows()}) == len(bench.rows()) == 15


def test_ctrl_c_leaves_out_the_problems_that_are_left(bench: Bench) -> None:
    both = replace(bench, problems=(Problem(2048, 2048, 2048), Problem(1024, 2048, 512)))
    on_event = interrupt_at(4)
    assert len(both.search(trials=15, on_event=on_event)) == 1


def test_a_second_ctrl_c_ends_it_at_once_and_loses_nothing(bench: Bench) -> None:
    on_event = interrupt_at(4, times=2)
    with pytest.raises(KeyboardInterrupt):
        bench.search(trials=15, on_event=on_event)
    assert "RUNNING" not in states(bench)
    (rest,) = bench.search(trials=15)
    assert rest.resumed >= 4
    assert len({row["config"] for row in bench.rows()}) == len(bench.rows()) == 15


def test_ctrl_c_is_handled_as_before_afterwards(bench: Bench) -> None:
    before = signal.getsignal(signal.SIGINT)
    bench.search(trials=2)
    assert signal.getsignal(signal.SIGINT) is before


def test_events_tell_where_it_stands(bench: Bench) -> None:
    events: list[Progress] = []
    faulty = replace(bench, script=Script({NAMES[0]: "half_unwritten"}))
    faulty.search(trials=15, on_event=events.append)
    told = [event for event in events if event.last is not None]
    assert [event.done for event in told] == list(range(1, 16))
    assert all(event.total == 15 for event in events)
    best = [event.best[1].ms for event in told if event.best]
    assert best == sorted(best, reverse=True)
    assert told[-1].failures[Status.WRONG].count == 1
    assert told[-1].eta == 0.0
    assert told[-1].rate > 0
    assert events[-1].last_round


def test_nothing_is_printed(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.search(trials=3)
    assert capfd.readouterr() == ("", "")


def test_a_damaged_configuration_file_is_found_before_the_work(bench: Bench) -> None:
    bench.yaml.parent.mkdir()
    bench.yaml.write_text("schema: 1\narch: sm_90\nentrys: []\n")
    with pytest.raises(ConfigFileError, match="entrys"):
        bench.search(trials=15)
    assert bench.log() == []
    assert bench.yaml.read_text().endswith("entrys: []\n")


def test_an_untrustworthy_baseline_stops_the_search(bench: Bench) -> None:
    broken = replace(bench, script=Script(baseline=Check(1e-7, 3e-4)))
    with pytest.raises(SgemmTuneError, match="not strict fp32"):
        broken.search(trials=15)
    assert "RUNNING" not in states(broken)
    (result,) = bench.search(trials=15)
    assert result.done == 15


def test_a_lost_gpu_says_what_is_stored_and_the_same_command_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[Request] = []
    sound = InlineWorker.evaluate

    def lost(self: InlineWorker, request: Request) -> Outcome:
        evaluated.append(request)
        if len(evaluated) > 6:
            raise DeviceUnavailable("the GPU has fallen off the bus")
        return sound(self, request)

    monkeypatch.setattr(InlineWorker, "evaluate", lost)
    with pytest.raises(DeviceUnavailable, match=r"fallen off the bus \(6 trials are stored"):
        bench.search(trials=15)
    assert len(bench.rows()) == 6
    assert "RUNNING" not in states(bench)
    monkeypatch.setattr(InlineWorker, "evaluate", sound)
    (result,) = bench.search(trials=15)
    assert (result.done, result.resumed) == (15, 6)


@pytest.mark.parametrize("end", [None, DeviceUnavailable, SgemmTuneError])
def test_whatever_ends_a_search_trials_that_the_disk_did_not_take_are_not_said_to_be_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, end: type[SgemmTuneError] | None
) -> None:
    sound = InlineWorker.evaluate

    def ended(self: InlineWorker, request: Request) -> Outcome:
        if end is not None:
            raise end("the GPU has fallen off the bus")
        return sound(self, request)

    def broken(self: Journal) -> None:
        raise FileWriteError("cannot write my.journal: Input/output error")

    monkeypatch.setattr(InlineWorker, "evaluate", ended)
    monkeypatch.setattr(Journal, "wait_for_disk", broken)
    with pytest.raises(FileWriteError, match=r"my\.journal"):
        bench.search(trials=15)


@pytest.mark.parametrize("stages", [(), ("coalesced", "tf32_mma")])
def test_stages_that_do_not_compete_are_refused(bench: Bench, stages: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="one precision"):
        replace(bench, stages=stages).search(trials=3)
    assert not (bench.root / "results").exists()


def test_a_slow_candidate_is_cut_early_and_is_no_finalist(bench: Bench) -> None:
    slow = dict.fromkeys(NAMES[2:], 50.0) | {NAMES[0]: 1.0, NAMES[1]: 1.5}
    (result,) = replace(bench, script=Script(ms=slow)).search(trials=15, sampler="exhaustive")
    cut = {row["config"] for row in bench.rows() if row["early_cut"] == "true"}
    assert 0 < len(cut) < 15
    assert result.verdict.kernel == KERNELS[0]
    assert not cut & {json.dumps(f.kernel.params, sort_keys=True) for f in result.verdict.finalists}


def test_the_default_sampler_is_that_of_the_samplers() -> None:
    from sgemm_tune.search.samplers import DEFAULT_SAMPLER

    assert SearchSettings().sampler == DEFAULT_SAMPLER
