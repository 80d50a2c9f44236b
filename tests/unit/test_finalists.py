"""The last round: who takes part, who wins, and what becomes of the stored best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sgemm_tune.kernel import Kernel, stage_named
from sgemm_tune.measure.outcome import Accuracy, Measurement, Rejected, Status
from sgemm_tune.search.finalists import TIE, Finalist, beats, decide
from tests.fakes import Bench, Script, kernels_of

KERNELS = kernels_of("coalesced")
NAIVE = stage_named("naive")()
WRONG = Rejected(Status.WRONG, "wrong after timing")


def timed(ms: float, spread: float = 0.001, samples: int = 30, drift: float = 0.0) -> Measurement:
    """`spread` is of the pairs; `drift` moves the times of the candidate and of cuBLAS alike."""
    scatter, ratio = spread + drift, 2.0 / ms
    return Measurement(
        ms,
        ms * (1 - scatter),
        ms * (1 + scatter),
        samples,
        2.0,
        ratio,
        Accuracy(1e-7, 1e-5, 1e-7, 1e-7),
        vs_p10=ratio * (1 - spread),
        vs_p90=ratio * (1 + spread),
    )


def test_a_clear_win_is_no_tie() -> None:
    verdict = decide([Finalist(KERNELS[1], timed(1.0)), Finalist(KERNELS[0], timed(1.1))])
    assert (verdict.kernel, verdict.tied, verdict.kept) == (KERNELS[1], (), False)


@pytest.mark.parametrize("order", [1, -1])
def test_a_tie_is_said_and_broken_by_the_lowest_rung_then_the_smallest_values(order: int) -> None:
    pairs = [(KERNELS[5], 1.0), (KERNELS[2], 1.004), (NAIVE, 1.003), (KERNELS[0], 1.2)]
    verdict = decide([Finalist(kernel, timed(ms)) for kernel, ms in pairs][::order])
    assert verdict.kernel == NAIVE
    assert verdict.tied == (KERNELS[5], KERNELS[2])
    verdict = decide([Finalist(kernel, timed(ms)) for kernel, ms in pairs if kernel != NAIVE][::order])
    assert verdict.kernel == min(KERNELS[5], KERNELS[2], key=lambda k: tuple(k.params.values()))


def test_the_same_tie_has_the_same_winner_whoever_happens_to_be_ahead() -> None:
    ahead = decide([Finalist(KERNELS[0], timed(1.0)), Finalist(KERNELS[1], timed(1.002))])
    behind = decide([Finalist(KERNELS[0], timed(1.002)), Finalist(KERNELS[1], timed(1.0))])
    assert ahead.kernel == behind.kernel == KERNELS[0]


@pytest.mark.parametrize(
    ("slow", "spread", "samples", "won"),
    [
        (1 + TIE / 2, 1e-6, 30, False),  # closer than interleaved runs repeat
        (1.02, 1e-6, 30, True),
        (1.02, 0.10, 10, False),  # the samples scatter more than that
        (1.02, 0.10, 3000, True),  # so many samples tell it all the same
    ],
)
def test_beyond_the_noise(slow: float, spread: float, samples: int, won: bool) -> None:
    fast, other = timed(1.0, spread, samples), timed(slow, spread, samples)
    assert beats(fast, other) is won
    assert not beats(other, fast)


def test_what_throttling_does_to_everybody_hides_no_difference() -> None:
    """Seen on an H200 at its power cap: 1.104 and 1.093 of cuBLAS, in times that scattered more than that."""
    fast, slow = timed(2 / 1.104, drift=0.05), timed(2 / 1.093, drift=0.05)
    assert beats(fast, slow)
    verdict = decide([Finalist(KERNELS[9], fast), Finalist(KERNELS[0], slow)])
    assert (verdict.kernel, verdict.tied) == (KERNELS[9], ())


def test_those_that_fail_do_not_win_and_come_last() -> None:
    verdict = decide([Finalist(KERNELS[0], WRONG), Finalist(KERNELS[1], timed(1.0))])
    assert verdict.kernel == KERNELS[1]
    assert [f.kernel for f in verdict.finalists] == [KERNELS[1], KERNELS[0]]
    assert decide([Finalist(KERNELS[0], WRONG)]).kernel is None
    assert decide([]).kernel is None


@pytest.mark.parametrize(("lead", "kept"), [(0.0, True), (0.004, True), (0.02, False)])
def test_the_stored_best_stays_unless_it_is_beaten_beyond_the_noise(lead: float, kept: bool) -> None:
    verdict = decide([Finalist(KERNELS[9], timed(1.0 + lead), stored=True), Finalist(KERNELS[0], timed(1.0))])
    assert verdict.kept is kept
    assert verdict.kernel == (KERNELS[9] if kept else KERNELS[0])


def times(best: Kernel, second: Kernel, lead: float) -> dict[str, float]:
    return {str(k): 1.5 for k in KERNELS} | {str(second): 1.0 + lead, str(best): 1.0}


@pytest.fixture
def stored(tmp_path: Path) -> Bench:
    """A folder whose configuration file holds KERNELS[9]."""
    bench = Bench(tmp_path, Script(ms=times(KERNELS[9], KERNELS[0], 0.1), log=tmp_path / "log"))
    bench.search(trials=15)
    assert entry(bench)["params"] == KERNELS[9].params
    return bench


def entry(bench: Bench) -> dict[str, object]:
    (found,) = yaml.safe_load(bench.yaml.read_text())["entries"]
    assert isinstance(found, dict)
    return found


def test_a_tie_leaves_the_file_as_it_is(stored: Bench) -> None:
    before = stored.yaml.read_bytes()
    again = replace(stored, script=Script(ms=times(KERNELS[0], KERNELS[9], 0.004)))
    (result,) = again.search(trials=15)
    assert result.verdict.kept
    assert result.verdict.tied == (KERNELS[0],)
    assert stored.yaml.read_bytes() == before


def test_a_win_replaces_the_stored_best(stored: Bench) -> None:
    again = replace(stored, script=Script(ms=times(KERNELS[0], KERNELS[9], 0.02)))
    (result,) = again.search(trials=15)
    assert not result.verdict.kept
    assert entry(stored)["params"] == KERNELS[0].params


def test_the_stored_best_takes_part_though_this_study_never_tried_it(stored: Bench) -> None:
    other = replace(stored, stages=("naive",))
    (result,) = other.search(trials=5)
    assert KERNELS[9] in [f.kernel for f in result.verdict.finalists]
    assert result.verdict.kernel == KERNELS[9]
    assert result.verdict.kept


def test_a_stored_best_that_is_wrong_now_is_replaced(stored: Bench) -> None:
    ms = times(KERNELS[9], KERNELS[0], 0.1)
    again = replace(stored, script=Script({str(KERNELS[9]): "half_unwritten"}, ms))
    (result,) = again.search(trials=15)
    assert result.verdict.kernel == KERNELS[0]
    assert entry(stored)["params"] == KERNELS[0].params


def test_a_stored_best_of_an_older_source_is_replaced_without_a_contest(stored: Bench) -> None:
    data = yaml.safe_load(stored.yaml.read_text())
    data["entries"][0]["provenance"]["source_hash"] = "0" * 16
    data["entries"][0]["ms"] = 0.5
    stored.yaml.write_text(yaml.safe_dump(data))
    (result,) = replace(stored, stages=("naive",)).search(trials=5)
    assert KERNELS[9] not in [f.kernel for f in result.verdict.finalists]
    assert entry(stored)["stage"] == "naive"


def test_a_stored_best_of_another_shape_or_device_is_left_alone(stored: Bench) -> None:
    before = entry(stored)
    other = replace(stored, info=replace(stored.info, sms=114), script=Script())
    other.search(trials=15)
    entries = yaml.safe_load(stored.yaml.read_text())["entries"]
    assert len(entries) == 2
    assert before in entries


def test_finalists_are_as_many_as_asked_for(stored: Bench, tmp_path: Path) -> None:
    close = {str(kernel): 1.0 + 0.01 * i for i, kernel in enumerate(KERNELS)}
    fresh = replace(stored, root=tmp_path / "fresh", script=Script(ms=close))
    (result,) = fresh.search(trials=15, finalists=3)
    assert [f.kernel for f in result.verdict.finalists] == KERNELS[:3]


def test_who_is_far_behind_is_no_finalist_even_where_there_is_room(stored: Bench, tmp_path: Path) -> None:
    fresh = replace(stored, root=tmp_path / "fresh")
    (result,) = fresh.search(trials=15, finalists=3)
    assert {f.kernel for f in result.verdict.finalists} == {KERNELS[9], KERNELS[0]}
