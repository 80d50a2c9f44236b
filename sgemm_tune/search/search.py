"""One search, in the order in which it happens.

    for each problem:
        open its study, whose finished trials are kept           (study)
        until the budget, the time or the space is spent:
            propose a configuration that nobody has tried          (study, samplers)
            compile it, ahead of the GPU                           (compiler.pool)
            validate and time it in the GPU's own process          (pipeline, worker, evaluate)
            store the outcome: first in the study, then in the table of results
        time the best few again, together, and store the winner  (finalists, configs)

Nothing here prints: whoever wants to see progress passes `on_event`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.nvrtc import Binary
from sgemm_tune.errors import DeviceUnavailable, SgemmTuneError, UsageError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import Origin
from sgemm_tune.measure.protocol import Request
from sgemm_tune.measure.worker import GpuWorker
from sgemm_tune.problem import Problem
from sgemm_tune.search.builds import builds_of
from sgemm_tune.search.finalists import LastRound
from sgemm_tune.search.interrupts import Interrupts
from sgemm_tune.search.neighbours import neighbours_best, siblings_best
from sgemm_tune.search.pipeline import GPU_QUEUE, Compiles, Done, Pipeline, responsive
from sgemm_tune.search.points import point_of, space_of
from sgemm_tune.search.prior import priors
from sgemm_tune.search.samplers import make_sampler
from sgemm_tune.search.storage import Storage, default_journal, open_storage
from sgemm_tune.search.study import Candidate, TuningStudy, study_name
from sgemm_tune.search.tally import Tally
from sgemm_tune.search.types import OnEvent, SearchResult, SearchSettings, Stop
from sgemm_tune.store.results import ResultsFile, Row, row

_POLL_SECONDS = 0.2
_FLUSH_SECONDS = 1.0
_AT_ONCE = 5
"""Proposals that are made in one go, for one turn at the storage and one look at the results; outcomes that
are stored in one go, for one wait for the disk; compiled candidates that should be there for the GPU."""
_GRACE_SECONDS = 5.0
"""How long a stopped search waits for the trial that the GPU is at."""


def search(
    asked: Mapping[Problem, Sequence[type[Kernel]]],
    arch: Arch,
    worker: GpuWorker,
    pool: Compiles,
    *,
    settings: SearchSettings,
    on_event: OnEvent = lambda _: None,
) -> list[SearchResult]:
    """Search every problem in turn. Ctrl-C ends it early with what it has; a second one at once.

    Args:
        asked: problems, each with the stages whose configurations compete for it (`kernel.suited`), all of
            one precision. Each problem has its own study.
        arch: what `pool` compiles for.
        worker: owns the GPU.
        pool: compiles ahead.
        settings: how to search, and where the files are.
        on_event: told of every trial, and of the time passing between them.

    Raises:
        UsageError: stages of several precisions, or none with a legal configuration.
        StorageError: the studies' storage cannot be used.
        ConfigFileError, ResultsFileError, FileWriteError: a file is damaged or cannot be written.
        DeviceUnavailable: the GPU is lost; finished trials are stored.
        SgemmTuneError: the baseline cannot be trusted.
    """
    if not all(asked.values()) or len({stage.precision for each in asked.values() for stage in each}) > 1:
        raise UsageError("stages of one precision compete: give at least one, and none of another")
    for problem, stages in asked.items():
        if not any(stage.legal(arch) for stage in stages):
            raise UsageError(
                f"no stage for {problem.shape} has a legal configuration on {arch.name}: "
                "see `sgemm-tune stages`"
            )
    pool.start()  # and then prepare proposals meanwhile
    journal = default_journal(settings.results_dir, arch.name)
    storage = open_storage(settings.storage or journal, settings.results_dir)
    found: list[SearchResult] = []
    fast: dict[Problem, list[Kernel]] = {}
    with Interrupts() as interrupts, responsive():
        means = _Means(arch, worker, pool, settings, storage, interrupts, on_event)
        for problem, expected in priors(asked, arch, worker.info):
            search_of_it = _ProblemSearch(problem, asked[problem], means, fast, expected)
            found.append(search_of_it.run())
            fast[problem] = search_of_it.fastest()
            if interrupts.asked:
                break
    return found


@dataclass(frozen=True)
class _Means:
    """What the searches of one command share."""

    arch: Arch
    worker: GpuWorker
    pool: Compiles
    settings: SearchSettings
    storage: Storage
    interrupts: Interrupts
    on_event: OnEvent


class _ProblemSearch:
    """The search of one problem; `run` says what happens in which order."""

    def __init__(
        self,
        problem: Problem,
        stages: Sequence[type[Kernel]],
        means: _Means,
        siblings: Mapping[Problem, Sequence[Kernel]],
        expected: Sequence[float],
    ) -> None:
        arch, worker, pool, settings = means.arch, means.worker, means.pool, means.settings
        self._tally = Tally(problem, settings.timeout)
        self._problem, self._worker, self._pool, self._settings = problem, worker, pool, settings
        self._interrupts, self._on_event, self._storage = means.interrupts, means.on_event, means.storage
        self._precision = stages[0].precision
        self._table = ResultsFile(settings.results_dir / "results.csv")
        self._last_round = LastRound(
            problem=problem,
            precision=self._precision,
            arch=arch,
            configs_dir=settings.configs_dir,
            policy=settings.policy,
            places=settings.finalists,
            worker=worker,
            pool=pool,
        )
        space = space_of(tuple(stages), arch)
        sampler = make_sampler(
            settings.sampler,
            space,
            settings.seed,
            expected,
            builds_of(tuple(stages), arch, pool.compiled),
        )
        name = study_name(stages, space, worker.info, problem, settings.policy.cache)
        best_elsewhere = neighbours_best(settings.configs_dir, arch, worker.info, stages, problem)
        best_before = siblings_best(siblings, stages, problem)
        first = [point_of(kernel) for kernel in dict.fromkeys([*best_elsewhere, *best_before])]
        self._study = TuningStudy(means.storage, name, space, sampler, first)
        self._total = min(settings.trials, len(space))
        self._compiled = 0
        self._bookkeeping = 0.0  # seconds
        self._rows: list[Row] = []
        self._flushed = self._tally.started
        self._busy_before = worker.busy_seconds

    def run(self) -> SearchResult:
        self._last_round.stored_kernel()  # a damaged file is found before the work, not after it
        resumed = self._take_up()
        stopped = self._try_candidates()
        self._take_up()
        seconds = self._tally.seconds
        busy = self._worker.busy_seconds - self._busy_before
        self._on_event(self._tally.progress(self._total, last_round=True))
        verdict = self._last_round.play(self._tally.healthy)
        return SearchResult(
            problem=self._problem,
            study=self._study.name,
            stopped=stopped,
            verdict=verdict,
            failures=dict(self._tally.failures),
            done=self._tally.done,
            new=self._tally.new,
            resumed=resumed,
            path=self._last_round.path if verdict.measurement is not None else None,
            seconds=self._tally.seconds,
            search_seconds=seconds,
            gpu_busy=busy / max(seconds, 1e-9),
            bookkeeping=self._bookkeeping / max(seconds, 1e-9),
            compiled=self._compiled,
        )

    def fastest(self) -> list[Kernel]:
        """The healthy configurations, the fastest first."""
        return self._tally.fastest()

    def _take_up(self) -> int:
        """Take over what the study knows, from whichever process; the number of its trials that ended.

        The table gets the rows that a crash kept from it.
        """
        finished = self._study.finished()
        self._tally.recount((trial.kernel, trial.outcome) for trial in finished)
        self._table.reconcile(trial.row for trial in finished)
        return len(finished)

    def _try_candidates(self) -> Stop:
        try:
            with ExitStack() as ending:
                ending.callback(self._storage.wait_for_disk)  # last, whatever ends it
                pipeline = ending.enter_context(Pipeline[Candidate](self._pool, self._worker, self._request))
                jobs = self._settings.jobs
                # proposals that know more results are better ones: as few ahead as keep all compilers busy
                # until the next ones are made, and the GPU
                ahead = jobs + max(_AT_ONCE, jobs // 4) + _AT_ONCE + GPU_QUEUE
                return self._feed(pipeline, ahead)
        except DeviceUnavailable as error:
            kept = f"{self._tally.done} trials are stored, and the same command goes on from there"
            raise DeviceUnavailable(f"{error} ({kept})") from error
        finally:
            with suppress(SgemmTuneError):  # whoever opens the study next settles it
                self._study.release()
            self._flush_rows()

    def _feed(self, pipeline: Pipeline[Candidate], ahead: int) -> Stop:
        more = True
        while (stop := self._asked_to_stop()) is None:
            more = (more or not len(pipeline)) and self._propose(pipeline, ahead)
            if not len(pipeline):
                return Stop.TRIALS if self._total == self._settings.trials else Stop.EXHAUSTED
            self._store(pipeline.collect(_POLL_SECONDS, _AT_ONCE), pipeline.compiling)
        self._store(pipeline.finish_running(_GRACE_SECONDS), 0)
        return stop

    def _asked_to_stop(self) -> Stop | None:
        if self._interrupts.asked:
            return Stop.INTERRUPTED
        timeout = self._settings.timeout
        if timeout is not None and self._tally.seconds >= timeout:
            return Stop.TIMEOUT
        return None

    def _propose(self, pipeline: Pipeline[Candidate], ahead: int) -> bool:
        """Fill up with candidates where there is room for several; False where there are no more."""
        while (room := _room(pipeline, ahead)) >= _AT_ONCE:
            with self._keeping_books():
                ready_wanted = max(0, _AT_ONCE - pipeline.waiting)
                candidates = self._study.ask(self._settings.trials, room, ready_wanted)
            for candidate in candidates:
                pipeline.add(candidate, candidate.kernel)
            if len(candidates) < room:
                return False
        return True

    def _request(self, kernel: Kernel, binary: Binary) -> Request:
        best = self._tally.best
        return Request(kernel, binary, self._problem, self._settings.policy, best[1].ms if best else None)

    def _store(self, ended: Sequence[Done[Candidate]], compiling: int) -> None:
        """Make outcomes durable: the study's word counts, and the table follows it."""
        if not ended:
            self._on_event(self._tally.progress(self._total, compiling=compiling))
            return
        told = [(done.ticket, done.outcome, self._row(done)) for done in ended]
        with self._keeping_books():
            self._study.tell(told)
            self._rows += [found for _, _, found in told]
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush_rows(durably=False)
        for done in ended:
            last = (done.ticket.kernel, done.outcome)
            self._compiled += done.binary is None or not done.binary.cached
            self._tally.add(*last)
            self._on_event(self._tally.progress(self._total, compiling=compiling, last=last))

    def _row(self, done: Done[Candidate]) -> Row:
        return row(
            self._problem,
            self._precision,
            done.ticket.kernel,
            done.outcome,
            self._worker.info,
            origin=Origin.SEARCH,
            seed=self._settings.policy.seed,
            binary=done.binary,
        )

    def _flush_rows(self, durably: bool = True) -> None:
        """Write the rows to the table that it lacks; while they are not on the disk, the study has them."""
        self._table.append(self._rows, durably=durably)
        self._rows.clear()
        self._flushed = time.monotonic()

    @contextmanager
    def _keeping_books(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._bookkeeping += time.monotonic() - began


def _room(pipeline: Pipeline[Candidate], ahead: int) -> int:
    """How many more candidates the pipeline should have.

    Whoever waits for a compilation that another one asked for keeps no compiler busy, and is not counted
    among those ahead; but there are no more than twice as many, lest proposals get stale.
    """
    return min(ahead - pipeline.occupied, 2 * ahead - len(pipeline))
