"""Time on the device's own clock: CUDA events around graphs of launches, over rotating input sets.

Hazards guarded against: launch cost (many launches of a short kernel are one graph), a warm L2 (operands
rotate among sets that together exceed it), an idle clock (a warm-up after a pause), drift (runs are
interleaved, their order shuffled every pass), a queue that runs dry between two events (all passes are
enqueued before anything is waited for).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from sgemm_tune.kernel import ceil_div
from sgemm_tune.measure.outcome import Samples, Telemetry
from sgemm_tune.measure.protocol import Policy, Timing
from sgemm_tune.problem import Problem

Launch = Callable[[int], None]
"""Enqueues one launch on input set i of the current stream."""

_WARM_UPS_MS = ((2.0, 300.0), (0.05, 10.0))
"""(seconds since the last use, milliseconds of warm-up): an H200 that idled needs some 0.2 s to reach its
boost clock, and after a moment's pause a few milliseconds do."""
_GRAPH_BELOW_MS = 0.5
_MAX_LAUNCHES = 2048
_L2_FACTOR = 1.5


def input_sets(problem: Problem, l2_bytes: int, free_bytes: int, policy: Policy) -> int:
    """How many copies of the operands are rotated: between two uses of one, 1.5 L2 of others pass by."""
    if not policy.cold:
        return 1
    wanted = ceil_div(int(_L2_FACTOR * l2_bytes), max(1, problem.bytes)) + 1
    affordable = free_bytes // max(1, 2 * problem.bytes)
    return max(1, min(wanted, affordable))


def wait_asleep() -> None:
    """Wait until the current stream is done, without keeping the core busy, which a compiler may need.

    To be woken takes longer than to look all the time, the more so the busier the cores are: this is for
    waits of a millisecond and more.
    """
    import cupy

    done = cupy.cuda.Event(block=True, disable_timing=True)
    done.record()
    done.synchronize()


def launch_ms(launch: Callable[[], None]) -> Callable[[], float]:
    """Enqueue one launch on the current stream; what is returned waits for it and gives its ms, roughly."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    launch()
    end.record()

    def elapsed() -> float:
        end.synchronize()
        return max(1e-4, float(cupy.cuda.get_elapsed_time(start, end)))

    return elapsed


class Timer:
    """Times launches on a stream of its own.

    Args:
        read: reads clocks and power; called while the passes run, when the readings mean something.
    """

    def __init__(self, read: Callable[[], Telemetry]) -> None:
        import cupy

        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.telemetry = Telemetry()
        self._read = read
        self._last_use = -math.inf

    def time(
        self,
        runs: Sequence[Launch],
        known_ms: Sequence[float | None],
        sets: int,
        policy: Policy,
        samples: int,
    ) -> Timing:
        """`samples` interleaved passes over `runs`.

        Args:
            runs: what to time.
            known_ms: of each, what one launch takes, roughly, in ms; None where it was never launched.
            sets: input sets to rotate among.
            policy: how to measure.
            samples: how many of each run.
        """
        import cupy

        with self.stream:
            estimates = [ms or self._estimate(run) for run, ms in zip(runs, known_ms, strict=True)]
            self._warm_up(runs[-1], estimates[-1])
            batches = [self._batch(run, ms, sets, policy) for run, ms in zip(runs, estimates, strict=True)]
            order = random.Random(policy.seed)
            marks: list[list[tuple[Any, Any]]] = [[] for _ in runs]
            turn = 0
            for _ in range(samples):
                for i in order.sample(range(len(runs)), len(runs)):
                    start, end = cupy.cuda.Event(), cupy.cuda.Event()
                    start.record(self.stream)
                    batches[i][0](turn)
                    end.record(self.stream)
                    marks[i].append((start, end))
                    turn += 1
            self.telemetry = self._read()
            wait_asleep()
        self._last_use = time.monotonic()
        return Timing(
            tuple(
                Samples(tuple(cupy.cuda.get_elapsed_time(a, b) / launches for a, b in pairs))
                for pairs, (_, launches) in zip(marks, batches, strict=True)
            )
        )

    def _estimate(self, run: Launch) -> float:
        """Milliseconds of one launch, roughly; the first one loads the code and does not count."""
        run(0)
        return launch_ms(lambda: run(0))()

    def _warm_up(self, run: Launch, ms: float) -> None:
        """Bring the clocks up with whatever comes first; what is enqueued need not be waited for."""
        paused = time.monotonic() - self._last_use
        needed = next((busy for pause, busy in _WARM_UPS_MS if paused > pause), 0.0)
        for _ in range(min(_MAX_LAUNCHES, math.ceil(needed / ms))):
            run(0)

    def _batch(self, run: Launch, ms: float, sets: int, policy: Policy) -> tuple[Launch, int]:
        """(what enqueues one sample, launches it holds)."""
        if ms >= _GRAPH_BELOW_MS:
            return (lambda turn: run(turn % sets)), 1
        launches = min(_MAX_LAUNCHES, ceil_div(max(sets, int(policy.sample_ms / ms) + 1), sets) * sets)
        self.stream.begin_capture()
        try:
            for i in range(launches):
                run(i % sets)
        finally:
            graph = self.stream.end_capture()
        graph.upload(self.stream)
        return (lambda turn: graph.launch(self.stream)), launches
