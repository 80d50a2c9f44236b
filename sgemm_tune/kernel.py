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
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import ClassVar, Self

from sgemm_tune.arch import PACKED_FFMA, THREADS_PER_BLOCK, WARP, Arch, Feature
from sgemm_tune.declare import Traits as Traits  # noqa: PLC0414  (stages find all of it here)
from sgemm_tune.declare import at_launch, checked, choices_of, compiled_in, needs
from sgemm_tune.declare import tune as tune  # noqa: PLC0414
from sgemm_tune.errors import IllegalConfiguration
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.reads import legal_combinations
from sgemm_tune.registry import ladder as ladder  # noqa: PLC0414
from sgemm_tune.registry import register as register  # noqa: PLC0414
from sgemm_tune.registry import stage_named as stage_named  # noqa: PLC0414
from sgemm_tune.registry import suited as suited  # noqa: PLC0414

Rules = Iterator[tuple[bool, str]]
"""What `Kernel.rules` yields: (holds, message), the message word for word that of the static_assert."""

Code = tuple[str, tuple[str, ...]]
"""What a cubin is compiled from: the source and the defines."""

DEFINE_PREFIX = "TUNE_"
ENTRY_POINT = "sgemm"


def ceil_div(a: int, b: int) -> int:
    """The smallest whole number of b's that covers a."""
    return -(-a // b)


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
    def box_of_a(self) -> tuple[int, int] | None:
        """(rows, columns) of the boxes in which the copy engine fetches A transposed: then the source's
        `sgemm_pack` runs first, which transposes it. None: A is taken as it is."""
        return None

    @property
    def box_of_b(self) -> tuple[int, int] | None:
        """(rows, columns) of the boxes in which the copy engine fetches B; None: the kernel takes no maps."""
        return None

    @property
    def takes_workspace(self) -> bool:
        """Whether the kernel takes a pointer to device memory of its own."""
        return False

    def workspace_bytes(self, problem: Problem, sms: int) -> int:
        """Bytes of it that a launch on a device of `sms` multiprocessors may write; they begin as garbage."""
        return 0

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
    def b_shared_by(self) -> int:
        """Blocks of a cluster whose tiles lie below one another and who fetch B's tile together."""
        return 1

    @property
    def cluster(self) -> int:
        """Blocks that start and end together and can reach each other's shared memory."""
        return self.split_k * self.b_shared_by

    @property
    def packed(self) -> bool:
        """Whether each instruction makes two FFMAs."""
        return self.uses(PACKED_FFMA)

    @property
    def k_parts(self) -> int:
        """Parts of a tile's depth that a block's threads divide among them, and add up in the end."""
        return 1

    def splits(self, problem: Problem, sms: int) -> int:
        """Blocks that share a tile of this shape on a device of `sms` multiprocessors."""
        return self.split_k

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

    def launch_rules(self) -> Rules:
        """What must hold of tunables that are launch arguments; no static_assert can say it."""
        yield from ()

    def grid(self, problem: Problem) -> int:
        """Blocks of the one-dimensional grid, were there an SM for each; 0 where C is empty."""
        bm, bn, _ = self.tile
        return ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * self.split_k

    def blocks(self, problem: Problem, sms: int) -> int:
        """Blocks to launch on a device of `sms` multiprocessors; 0: nothing is launched."""
        return self.grid(problem)

    def uses(self, feature: Feature) -> bool:
        """Whether a tunable has a value that is legal only where an architecture has the feature."""
        return any(
            needed is feature and getattr(self, name) != elsewhere
            for name, (needed, elsewhere) in needs(type(self)).items()
        )

    @property
    def params(self) -> dict[str, int]:
        """The tunables by name, in the order of their declaration."""
        return {name: getattr(self, name) for name in self.tunables()}

    @property
    def defines(self) -> tuple[str, ...]:
        """What the compiler is given, sorted: `-DTUNE_BM=128`."""
        return tuple(
            sorted(f"-D{DEFINE_PREFIX}{name}={getattr(self, name)}" for name in compiled_in(type(self)))
        )

    @property
    def code(self) -> Code:
        """What is compiled: configurations of the same code share a cubin."""
        return self.source, self.defines

    @property
    def launch_values(self) -> tuple[int, ...]:
        """What the kernel is given as its last arguments: the tunables that no define sets."""
        return tuple(getattr(self, name) for name in at_launch(type(self)))

    def __str__(self) -> str:
        return f"{self.name()}({', '.join(f'{name}={value}' for name, value in self.params.items())})"

    def violations(self, arch: Arch | None = None) -> list[str]:
        """Every rule this configuration breaks: the stage's own and, given `arch`, its limits."""
        rules = itertools.chain(self._all_rules(), self.launch_rules())
        broken = [message for holds, message in rules if not holds]
        if not broken and arch is not None:
            broken = [message for holds, message in self._limits(arch) if not holds]
        return broken

    def is_legal(self, arch: Arch) -> bool:
        """Whether there are no `violations(arch)`; the first one decides."""
        every = (self._all_rules(), self.launch_rules(), self._limits(arch))
        return all(holds for rules in every for holds, _ in rules)

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
        for name, (feature, elsewhere) in needs(type(self)).items():
            yield (
                getattr(self, name) == elsewhere or feature.on(arch),
                f"{arch.name} {feature.lacking}: {name} must be {elsewhere}",
            )

    @classmethod
    def name(cls) -> str:
        """The stage's name: the source's stem without its number."""
        return _place_and_name(cls.source)[1]

    @classmethod
    def rung(cls) -> int:
        """The source's number: the stage's place on the ladder."""
        return _place_and_name(cls.source)[0]

    @classmethod
    def summary(cls) -> str:
        """The docstring's first line."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    @classmethod
    def tunables(cls) -> dict[str, tuple[int, ...]]:
        """Each tunable's choices by name."""
        return choices_of(cls)

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Whether a search should try the stage for such a shape. It is right for every shape either way."""
        return True

    @classmethod
    def legal(cls, arch: Arch) -> tuple[Self, ...]:
        """Every configuration that keeps all rules on `arch`, in the order of the declared choices; those
        that share a cubin follow one another."""
        return _legal(cls, arch)  # type: ignore[return-value,arg-type]

    @classmethod
    def from_params(cls, params: Mapping[str, object]) -> Self:
        """The configuration with these values; every tunable must be given, but for those that came later.

        Raises:
            IllegalConfiguration: a name that is no tunable or is missing, a value that is no choice, or a
                combination that the rules forbid.
        """
        kernel = cls(**checked(cls, cls.name(), params))
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


@cache
def _place_and_name(source: str) -> tuple[int, str]:
    number, name = PurePath(source).stem.split("_", 1)
    return int(number), name


@cache
def _legal(stage: type[Kernel], arch: Arch) -> tuple[Kernel, ...]:
    if arch.capability < stage.min_arch:
        return ()
    choices = stage.tunables()
    for name, (feature, elsewhere) in needs(stage).items():
        if not feature.on(arch):
            choices[name] = (elsewhere,)  # the others are not legal, and need not be looked at: half of all
    for name in at_launch(stage):
        choices[name] = choices.pop(name)  # to the end: those of the same code follow one another
    return tuple(legal_combinations(stage, choices, lambda kernel: kernel.is_legal(arch)))
