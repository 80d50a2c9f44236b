"""The contract of a stage: what a declaration gives, and what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest

from sgemm_tune import registry
from sgemm_tune.arch import ARCHS, Arch, Feature
from sgemm_tune.compiler.sources import kernels_dir
from sgemm_tune.errors import IllegalConfiguration, UnknownName
from sgemm_tune.kernel import Rules, TiledKernel, ceil_div, ladder, register, stage_named, tune
from sgemm_tune.problem import Problem


@dataclass(frozen=True)
class Toy(TiledKernel):
    """A stage for this test.

    More about it.
    """

    source: ClassVar[str] = "77_toy_stage.cu"
    SIDE: int = tune(16, 32, 64, 256, default=32)
    PAD: int = tune(0, 4)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.SIDE, 2 * self.SIDE, 8

    @property
    def thread_tile(self) -> tuple[int, int]:
        return 1, 1

    @property
    def threads(self) -> int:
        return self.SIDE * 8

    @property
    def smem_bytes(self) -> int:
        return self.SIDE * 2048

    def rules(self) -> Rules:
        yield self.SIDE != 16 or self.PAD == 0, "the smallest tile has no padding"


def test_a_declaration_says_its_name_rung_and_summary() -> None:
    assert (Toy.name(), Toy.rung(), Toy.summary()) == ("toy_stage", 77, "A stage for this test.")
    assert Toy.tunables() == {"SIDE": (16, 32, 64, 256), "PAD": (0, 4)}


def test_an_instance_is_a_frozen_hashable_printable_value() -> None:
    toy = Toy(SIDE=64, PAD=4)
    assert toy == Toy(64, 4)
    assert len({toy, Toy(64, 4), Toy()}) == 2
    assert str(toy) == "toy_stage(SIDE=64, PAD=4)"
    assert pickle.loads(pickle.dumps(toy)) == toy
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy.SIDE = 16  # type: ignore[misc]


def test_defaults_are_those_declared() -> None:
    assert Toy().params == {"SIDE": 32, "PAD": 0}
    assert Toy().defines == ("-DTUNE_PAD=0", "-DTUNE_SIDE=32")


def test_the_grid_covers_ragged_shapes_and_is_empty_where_c_is() -> None:
    toy = Toy(SIDE=32)
    assert toy.grid(Problem(32, 64, 1)) == 1
    assert toy.grid(Problem(33, 65, 1)) == 4
    assert toy.grid(Problem(0, 64, 1)) == 0
    assert (ceil_div(7, 4), ceil_div(8, 4), ceil_div(0, 4)) == (2, 2, 0)


def test_legal_configurations_keep_rules_and_limits() -> None:
    sm_90, sm_86 = ARCHS["sm_90"], ARCHS["sm_86"]
    assert [(toy.SIDE, toy.PAD) for toy in Toy.legal(sm_90)] == [(16, 0), (32, 0), (32, 4), (64, 0), (64, 4)]
    # 128 KiB of shared memory fit on sm_90 only
    assert {toy.SIDE for toy in Toy.legal(sm_86)} == {16, 32}
    for toy in Toy.legal(sm_90):
        assert toy.violations(sm_90) == []


def test_violations_name_what_is_broken() -> None:
    assert Toy(SIDE=256).violations() == ["a block has at most 1024 threads"]
    assert Toy(SIDE=16, PAD=4).violations() == ["the smallest tile has no padding"]
    assert Toy(SIDE=64).violations(ARCHS["sm_86"]) == [
        "sm_86 gives a block 101376 bytes of shared memory, not 131072"
    ]
    assert Toy(SIDE=64).violations(ARCHS["sm_90"]) == []


def test_an_architecture_older_than_the_stage_is_refused() -> None:
    @dataclass(frozen=True)
    class Newer(Toy):
        """Needs Hopper."""

        min_arch: ClassVar[tuple[int, int]] = (9, 0)

    assert Newer.legal(ARCHS["sm_89"]) == ()
    assert Newer().violations(ARCHS["sm_89"]) == ["toy_stage needs sm_90 or newer"]
    assert len(Newer.legal(ARCHS["sm_90"])) == len(Toy.legal(ARCHS["sm_90"]))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"SIDE": 32}, "needs a value for PAD"),
        ({"SIDE": 32, "PAD": 0, "BM": 1}, "no tunable 'BM': its tunables are SIDE, PAD"),
        ({"SIDE": 33, "PAD": 0}, "SIDE is 33: choose one of 16, 32, 64, 256"),
        ({"SIDE": "32", "PAD": 0}, "SIDE is '32'"),
        ({"SIDE": 32.0, "PAD": 0}, "SIDE is 32.0"),
        ({"SIDE": 32, "PAD": False}, "PAD is False"),
        ({"SIDE": 16, "PAD": 4}, "the smallest tile has no padding"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(params: dict[str, object], words: str) -> None:
    with pytest.raises(IllegalConfiguration) as caught:
        Toy.from_params(params)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_params_lead_back_to_the_configuration() -> None:
    for toy in Toy.legal(ARCHS["sm_90"]):
        assert Toy.from_params(toy.params) == toy


def test_a_tunable_that_came_later_need_not_be_named() -> None:
    @dataclass(frozen=True)
    class Later(Toy):
        """With one tunable more."""

        NEW: int = tune(1, 2, before=2)

    assert Later().NEW == 1
    assert Later.from_params({"SIDE": 32, "PAD": 0}) == Later(SIDE=32, NEW=2)
    assert Later.from_params({"SIDE": 32, "PAD": 0, "NEW": 1}) == Later(SIDE=32)
    with pytest.raises(IllegalConfiguration, match="needs a value for PAD"):
        Later.from_params({"SIDE": 32, "NEW": 1})
    with pytest.raises(ValueError, match="older configurations"):
        tune(0, 1, before=2)


def test_a_tunable_may_be_for_some_architectures_only() -> None:
    wide = Feature(lambda arch: arch.name == "sm_90", "has no wide loads")
    other = Feature(lambda arch: True, "")

    @dataclass(frozen=True)
    class Wide(Toy):
        """With a tunable that needs something."""

        LOADS: int = tune(1, 2, 4, only=wide)
        MORE: int = tune(0, 1, only=other)

    sm_90, sm_86 = ARCHS["sm_90"], ARCHS["sm_86"]
    assert len(Wide.legal(sm_90)) == 6 * len(Toy.legal(sm_90))
    elsewhere = Wide.legal(sm_86)
    assert [(toy.SIDE, toy.PAD, toy.LOADS) for toy in elsewhere if toy.MORE] == [
        (toy.SIDE, toy.PAD, 1) for toy in Toy.legal(sm_86)
    ]
    assert Wide(LOADS=4).violations(sm_86) == ["sm_86 has no wide loads: LOADS must be 1"]
    assert Wide(LOADS=4).violations() == Wide(LOADS=4).violations(sm_90) == []
    assert [Wide(LOADS=loads).uses(wide) for loads in (1, 2)] == [False, True]
    assert not Wide(LOADS=2).uses(other)
    assert not Toy().uses(wide)


@dataclass(frozen=True)
class AtLaunch(Toy):
    """With two tunables that are launch arguments, around one that is not."""

    RING: int = tune(2, 3, 8, default=3, at_launch=True)
    WIDE: int = tune(0, 1)
    SHARE: int = tune(0, 1, at_launch=True, before=1)

    @property
    def smem_bytes(self) -> int:
        return self.SIDE * 512 * self.RING

    def launch_rules(self) -> Rules:
        yield self.RING > 2 or not self.SHARE, "who shares needs a longer ring"


def test_what_is_given_at_launch_is_no_define() -> None:
    kernel = AtLaunch(RING=8, SHARE=0)
    assert kernel.params == {"SIDE": 32, "PAD": 0, "RING": 8, "WIDE": 0, "SHARE": 0}
    assert kernel.defines == ("-DTUNE_PAD=0", "-DTUNE_SIDE=32", "-DTUNE_WIDE=0")
    assert kernel.launch_values == (8, 0), "in the order of declaration"
    assert AtLaunch().launch_values == (3, 0)
    assert Toy().launch_values == ()
    assert str(kernel) == "toy_stage(SIDE=32, PAD=0, RING=8, WIDE=0, SHARE=0)"


def test_the_code_is_the_same_where_only_launch_values_differ() -> None:
    assert AtLaunch(RING=8).code == AtLaunch(RING=2, SHARE=1).code
    assert len({AtLaunch().code, AtLaunch(WIDE=1).code, AtLaunch(SIDE=64).code, Toy().code}) == 4
    assert AtLaunch(RING=8) != AtLaunch(RING=2)


def test_launch_rules_are_heeded_after_the_stages_own_and_before_limits() -> None:
    sm_90 = ARCHS["sm_90"]
    why = "who shares needs a longer ring"
    assert AtLaunch(RING=2, SHARE=1).violations() == AtLaunch(RING=2, SHARE=1).violations(sm_90) == [why]
    assert AtLaunch(RING=2).violations() == AtLaunch(RING=3, SHARE=1).violations() == []
    assert AtLaunch(SIDE=16, PAD=4, RING=2, SHARE=1).violations() == [
        "the smallest tile has no padding", why
    ]  # fmt: skip
    assert AtLaunch(SIDE=64, RING=8).violations(sm_90) == [
        "sm_90 gives a block 232448 bytes of shared memory, not 262144"
    ]
    assert not AtLaunch(RING=2, SHARE=1).is_legal(sm_90)
    assert AtLaunch(RING=2).is_legal(sm_90)
    with pytest.raises(IllegalConfiguration, match=why):
        AtLaunch.from_params({**AtLaunch().params, "RING": 2, "SHARE": 1})
    with pytest.raises(IllegalConfiguration, match="RING is 4: choose one of 2, 3, 8"):
        AtLaunch.from_params({**AtLaunch().params, "RING": 4})
    assert AtLaunch.from_params({"SIDE": 32, "PAD": 0, "RING": 8, "WIDE": 1}) == AtLaunch(32, 0, 8, 1, 1)


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_legal_ones_that_share_a_cubin_follow_one_another(arch: Arch) -> None:
    legal = AtLaunch.legal(arch)
    choices = AtLaunch.tunables()
    every = [AtLaunch(*values) for values in itertools.product(*choices.values())]
    assert set(legal) == {kernel for kernel in every if not kernel.violations(arch)}
    assert len(set(legal)) == len(legal) > len({kernel.code for kernel in legal})
    codes = [code for code, _ in itertools.groupby(kernel.code for kernel in legal)]
    assert len(codes) == len(set(codes))
    by_launch = sorted(legal, key=lambda kernel: (kernel.SIDE, kernel.PAD, kernel.WIDE, kernel.launch_values))
    assert list(legal) == by_launch, "in the order of the choices"


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_legal_means_no_violations(arch: Arch) -> None:
    every = [Toy(SIDE=side, PAD=pad) for side in Toy.tunables()["SIDE"] for pad in Toy.tunables()["PAD"]]
    assert [toy.is_legal(arch) for toy in every] == [not toy.violations(arch) for toy in every]
    assert Toy.legal(arch) == tuple(toy for toy in every if toy.is_legal(arch))


@pytest.mark.parametrize(("choices", "default"), [((), None), ((1, 1), None), ((1, 2), 3)])
def test_a_tunable_needs_distinct_choices_with_its_default(
    choices: tuple[int, ...], default: int | None
) -> None:
    with pytest.raises(ValueError, match="distinct choices"):
        tune(*choices, default=default)


def test_a_rung_is_declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", {})
    register(Toy)

    @dataclass(frozen=True)
    class SameNumber(Toy):
        source: ClassVar[str] = "77_other.cu"

    @dataclass(frozen=True)
    class SameName(Toy):
        source: ClassVar[str] = "78_toy_stage.cu"

    for again in (SameNumber, SameName):
        with pytest.raises(ValueError, match="repeats Toy"):
            register(again)


def test_sources_and_declarations_match_one_to_one() -> None:
    declared = [stage.source for stage in ladder()]
    assert declared == sorted(path.name for path in kernels_dir().glob("*.cu"))
    assert [stage.rung() for stage in ladder()] == list(range(1, len(declared) + 1))


def test_every_stage_is_found_by_name_and_has_something_to_say() -> None:
    for stage in ladder():
        assert stage_named(stage.name()) is stage
        assert stage_named(f" {stage.name().upper()} ") is stage
        assert stage.summary().endswith(".")
        assert stage().violations() == [], "a stage's default must be legal"


def test_an_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        stage_named("vectorised")
    assert all(stage.name() in str(caught.value) for stage in ladder())


def test_every_stage_has_legal_configurations_from_ampere_on() -> None:
    for stage in ladder():
        for arch in ARCHS.values():
            if arch.capability >= stage.min_arch:
                assert stage.legal(arch), f"{stage.name()} has none on {arch.name}"
