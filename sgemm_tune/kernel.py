"""A kernel stage: the class is the stage, an instance is one configuration of it.

    @register
    @dataclass(frozen=True)
    class Naive(Kernel):
        \"\"\"One thread per element of C.\"\"\"
        source: ClassVar = "01_naive.cu"
        BLOCK: int = tune(16, 32)

The docstring's first line is what `sgemm-tune stages` shows; the stage's name is the source's stem
without its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import PurePath
from typing import Any, ClassVar, Self, TypeVar

from sgemm_tune.arch import THREADS_PER_BLOCK, WARP, Arch
from sgemm_tune.errors import IllegalConfiguration, UnknownName
from sgemm_tune.problem import Precision, Problem

Rules = Iterator[tuple[bool, str]]
"""What `Kernel.rules` yields: (holds, message), the message word for word that of the static_assert."""

DEFINE_PREFIX = "TUNE_"
ENTRY_POINT = "sgemm"


def tune(*choices: int, default: int | None = None) -> Any:
    """A tunable: its admissible values, and the one that an instance has where none is given.

    Raises:
        ValueError: no choices, repeated ones, or a default that is not among them.
    """
    chosen = choices[0] if choices and default is None else default
    if not choices or len(set(choices)) != len(choices) or chosen not in choices:
        raise ValueError(
            f"a tunable needs distinct choices with the default among them, not {choices}, {default}"
        )
    return field(default=chosen, metadata={"choices": choices})


def ceil_div(a: int, b: int) -> int:
    """The smallest whole number of b's that covers a."""
    return -(-a // b)


@dataclass(frozen=True)
class Traits:
    """What a stage's code does that its geometry does not tell. Only the static model reads it.

    Attributes:
        vector: floats per load, from global and from shared memory.
        shared: the inner loop reads shared memory; False: it reads global memory.
        coalesced: a warp's global loads take consecutive addresses.
        split_fragments: a thread's patch is made of vectors that alternate with those of its neighbours,
            so that neither shared loads nor the stores of C conflict; False: a patch is contiguous.
        buffers: tiles in shared memory or on their way: 1 loads and computes by turns, 2 fetches the next
            tile while this one is computed.
        early_fragments: a pass's fragments are loaded during the pass before.
        async_copy: tiles travel without passing through registers (cp.async, TMA).
        copying_warps: warps of their own copy, B by the copy engine where its rows are aligned.
    """

    vector: int = 4
    shared: bool = True
    coalesced: bool = True
    split_fragments: bool = False
    buffers: int = 1
    early_fragments: bool = False
    async_copy: bool = False
    copying_warps: bool = False


@dataclass(frozen=True)
class Kernel:
    """Base of every stage. Subclasses set `source`, their tunables and the properties below.

    Class attributes:
        source: file under kernels_cu/, `NN_name.cu`.
        precision: what the result's precision is.
        min_arch: oldest architecture it compiles for.
        traits: what the static model should know of the code.
    """

    source: ClassVar[str]
    precision: ClassVar[Precision] = Precision.FP32
    min_arch: ClassVar[tuple[int, int]] = (8, 0)
    traits: ClassVar[Traits] = Traits()

    @property
    def tile(self) -> tuple[int, int, int]:
        """(BM, BN, BK): the part of C a block computes, and the depth it loads at a time."""
        raise NotImplementedError

    @property
    def thread_tile(self) -> tuple[int, int]:
        """(TM, TN): elements of C that one thread accumulates."""
        raise NotImplementedError

    @property
    def threads(self) -> int:
        """Threads per block."""
        raise NotImplementedError

    @property
    def computing_threads(self) -> int:
        """Those of a block's threads that compute; the others copy."""
        return self.threads

    @property
    def launch_registers(self) -> int | None:
        """Registers that every thread is launched with, where that is settled by the geometry."""
        return None

    @property
    def box_of_b(self) -> tuple[int, int] | None:
        """(rows, columns) of the boxes in which the copy engine fetches B; None: the kernel takes no map."""
        return None

    @property
    def warp_tile(self) -> tuple[int, int]:
        """(WM, WN): the part of C a warp computes; by default threads are numbered along N first."""
        (_, bn, _), (tm, tn) = self.tile, self.thread_tile
        lanes_n = min(WARP, max(1, bn // tn))
        return WARP // lanes_n * tm, lanes_n * tn

    @property
    def mma_k(self) -> int:
        """K of the tensor-core instruction m16n8k; 0 where the product is made of FFMAs."""
        return 0

    @property
    def split_k(self) -> int:
        """Blocks that share a tile, each with a part of K."""
        return 1

    @property
    def even_waves(self) -> bool:
        """Whether the last waves of tiles are shared out evenly, so that no SM waits for others."""
        return False

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory per block in bytes."""
        return 0

    def rules(self) -> Rules:
        """What must hold for this configuration, as the source's static_asserts say it."""
        yield from ()

    def grid(self, problem: Problem) -> int:
        """Blocks of the one-dimensional grid, were there an SM for each; 0 where C is empty."""
        bm, bn, _ = self.tile
        return ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * self.split_k

    def blocks(self, problem: Problem, sms: int) -> int:
        """Blocks to launch on a device of `sms` multiprocessors; 0: nothing is launched."""
        return self.grid(problem)

    @property
    def params(self) -> dict[str, int]:
        """The tunables by name, in the order of their declaration."""
        return {name: getattr(self, name) for name in self.tunables()}

    @property
    def defines(self) -> tuple[str, ...]:
        """What the compiler is given, sorted: `-DTUNE_BM=128`."""
        return tuple(sorted(f"-D{DEFINE_PREFIX}{name}={value}" for name, value in self.params.items()))

    def __str__(self) -> str:
        return f"{self.name()}({', '.join(f'{name}={value}' for name, value in self.params.items())})"

    def violations(self, arch: Arch | None = None) -> list[str]:
        """Every rule this configuration breaks: the stage's own and, given `arch`, its limits."""
        broken = [message for holds, message in self._all_rules() if not holds]
        if not broken and arch is not None:
            broken = [message for holds, message in self._limits(arch) if not holds]
        return broken

    def _all_rules(self) -> Rules:
        yield from self.rules()

    def _limits(self, arch: Arch) -> Rules:
        yield (
            arch.capability >= self.min_arch,
            f"{self.name()} needs sm_{self.min_arch[0]}{self.min_arch[1]} or newer",
        )
        yield (
            self.smem_bytes <= arch.smem_per_block,
            f"{arch.name} gives a block {arch.smem_per_block} bytes of shared memory, not {self.smem_bytes}",
        )

    @classmethod
    def name(cls) -> str:
        """The stage's name: the source's stem without its number."""
        return PurePath(cls.source).stem.split("_", 1)[1]

    @classmethod
    def rung(cls) -> int:
        """The source's number: the stage's place on the ladder."""
        return int(PurePath(cls.source).name.split("_", 1)[0])

    @classmethod
    def summary(cls) -> str:
        """The docstring's first line."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    @classmethod
    def tunables(cls) -> dict[str, tuple[int, ...]]:
        """Each tunable's choices by name."""
        return {f.name: f.metadata["choices"] for f in fields(cls) if "choices" in f.metadata}

    @classmethod
    def legal(cls, arch: Arch) -> tuple[Self, ...]:
        """Every configuration that keeps all rules on `arch`, in the order of the declared choices."""
        return _legal(cls, arch)  # type: ignore[return-value,arg-type]

    @classmethod
    def from_params(cls, params: Mapping[str, object]) -> Self:
        """The configuration with these values; every tunable must be given.

        Raises:
            IllegalConfiguration: a name that is no tunable or is missing, a value that is no choice, or a
                combination that the rules forbid.
        """
        tunables = cls.tunables()
        for name in params:
            if name not in tunables:
                raise IllegalConfiguration(
                    f"{cls.name()} has no tunable {name!r}: its tunables are {', '.join(tunables)}"
                )
        for name, choices in tunables.items():
            if name not in params:
                raise IllegalConfiguration(
                    f"{cls.name()} needs a value for {name}: one of {_listed(choices)}"
                )
            value = params[name]
            if isinstance(value, bool) or not isinstance(value, int) or value not in choices:
                raise IllegalConfiguration(
                    f"{cls.name()}.{name} is {value!r}: choose one of {_listed(choices)}"
                )
        kernel = cls(**params)
        broken = kernel.violations()
        if broken:
            raise IllegalConfiguration(f"{kernel} is not legal: {'; '.join(broken)}")
        return kernel


class TiledKernel(Kernel):
    """Rules that every kernel with whole warps shares."""

    def _all_rules(self) -> Rules:
        yield self.threads <= THREADS_PER_BLOCK, "a block has at most 1024 threads"
        yield self.threads % WARP == 0, "a block is made of whole warps"
        yield from self.rules()


def _listed(choices: tuple[int, ...]) -> str:
    return ", ".join(str(choice) for choice in choices)


@cache
def _legal(stage: type[Kernel], arch: Arch) -> tuple[Kernel, ...]:
    names = list(stage.tunables())
    every = (
        stage(**dict(zip(names, values, strict=True)))
        for values in itertools.product(*stage.tunables().values())
    )
    return tuple(kernel for kernel in every if not kernel.violations(arch))


_REGISTRY: dict[str, type[Kernel]] = {}
K = TypeVar("K", bound=type[Kernel])


def register(stage: K) -> K:
    """Class decorator: put a stage on the ladder.

    Raises:
        ValueError: two stages of one name or number.
    """
    taken = [
        other for other in _REGISTRY.values() if other.rung() == stage.rung() or other.name() == stage.name()
    ]
    if taken:
        raise ValueError(
            f"{stage.__name__} repeats {taken[0].__name__}: a rung has one source and one declaration"
        )
    _REGISTRY[stage.name()] = stage
    return stage


def ladder() -> tuple[type[Kernel], ...]:
    """Every stage, lowest rung first."""
    import sgemm_tune.stages  # noqa: F401  (declares them)

    return tuple(sorted(_REGISTRY.values(), key=lambda stage: stage.rung()))


def stage_named(name: str) -> type[Kernel]:
    """The stage of that name.

    Raises:
        UnknownName: there is none; the message lists them.
    """
    stages = {stage.name(): stage for stage in ladder()}
    try:
        return stages[name.strip().lower()]
    except KeyError:
        raise UnknownName("stage", name, stages) from None
