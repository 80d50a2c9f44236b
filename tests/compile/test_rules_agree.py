"""Python and the CUDA sources agree: on files, on tunables, on what is legal and on why not."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass

import pytest

from sgemm_tune import declare
from sgemm_tune.arch import ARCHS
from sgemm_tune.compiler.nvrtc import check_front_end, compile_kernel
from sgemm_tune.compiler.sources import kernels_dir
from sgemm_tune.errors import CompileError, IllegalConfiguration
from sgemm_tune.kernel import Kernel, ladder, tune
from sgemm_tune.stages.naive import Naive

STAGES = ladder()
ARCH = ARCHS["sm_90"]
SEED = 20250702
LEGAL, ILLEGAL = 6, 14
"""Configurations drawn per stage; illegal ones stop in the front end and cost next to nothing."""


def _compiled(stage: type[Kernel]) -> dict[str, tuple[int, ...]]:
    """The choices of the tunables that the compiler is given; no static_assert sees the others."""
    choices = stage.tunables()
    return {name: choices[name] for name in declare.compiled_in(stage)}


def _cross_product(stage: type[Kernel]) -> list[Kernel]:
    choices = _compiled(stage)
    every = itertools.product(*choices.values())
    return [stage(**dict(zip(choices, values, strict=True))) for values in every]


def _broken(kernel: Kernel) -> list[str]:
    """Messages of the static_asserts that should fail: `violations`, but for those of launch arguments."""
    return [message for holds, message in kernel._all_rules() if not holds]


def _parameters(text: str) -> list[str]:
    """What the source's entry point takes, `float alpha` and so on."""
    (listed,) = re.findall(r"^sgemm\(([^)]*)\)", text, re.MULTILINE)
    return [" ".join(parameter.split()) for parameter in listed.split(",")]


def _names(kernel: Kernel) -> list[str]:
    """What the entry point's parameters should be called."""
    mapped = ["maps", "b_mapped"] if kernel.box_of_b else []
    own = ["workspace"] if kernel.takes_workspace else []
    late = [name.lower() for name in declare.at_launch(type(kernel))]
    return ["M", "N", "K", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc", *mapped, *own, *late]


def _takes_launch_values(kernel: Kernel, text: str) -> bool:
    """Whether the last parameters of the source are the tunables that it is given at launch."""
    late = [f"int {name.lower()}" for name in declare.at_launch(type(kernel))]
    taken = _parameters(text)
    return taken[len(taken) - len(late) :] == late


def _sample(stage: type[Kernel]) -> list[Kernel]:
    """Legal and illegal configurations such that each rule that can be broken is broken in one of them."""
    chance = random.Random(SEED)
    every = _cross_product(stage)
    chance.shuffle(every)
    broken = {kernel: _broken(kernel) for kernel in every}
    legal = [kernel for kernel in every if not broken[kernel]][:LEGAL]
    illegal = [kernel for kernel in every if broken[kernel]]
    drawn = illegal[:ILLEGAL]
    for message in sorted({message for messages in broken.values() for message in messages}):
        if not any(message in broken[kernel] for kernel in drawn):
            drawn.append(next(kernel for kernel in illegal if message in broken[kernel]))
    return legal + drawn


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_front_end_accepts_what_python_accepts(stage: type[Kernel]) -> None:
    for kernel in _sample(stage):
        assert check_front_end(kernel, ARCH) == _broken(kernel), kernel


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_every_rule_that_can_be_broken_is_sampled(stage: type[Kernel]) -> None:
    breakable = {message for kernel in _cross_product(stage) for message in _broken(kernel)}
    sampled = {message for kernel in _sample(stage) for message in _broken(kernel)}
    assert sampled == breakable


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_the_messages_are_the_sources_in_its_order(stage: type[Kernel]) -> None:
    text = (kernels_dir() / stage.source).read_text(encoding="utf-8")
    asserted = re.findall(r'static_assert\([^;]*?"([^"]*)"\);', text)
    assert asserted == [message for _, message in stage()._all_rules()]


def test_sources_and_declarations_match_one_to_one() -> None:
    assert sorted(path.name for path in kernels_dir().glob("*.cu")) == [stage.source for stage in STAGES]
    assert [stage.rung() for stage in STAGES] == list(range(1, len(STAGES) + 1))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_tunables_and_defines_match_one_to_one(stage: type[Kernel]) -> None:
    text = (kernels_dir() / stage.source).read_text(encoding="utf-8")
    declared = re.findall(r"^constexpr int (\w+) = TUNE_(\w+);", text, re.MULTILINE)
    assert [(name, name) for name in _compiled(stage)] == declared
    # but for `#if`: an attribute is there or not, and no constexpr decides that
    read = re.findall(r"\bTUNE_\w+", re.sub(r"^#if .*$", "", text, flags=re.MULTILINE))
    assert len(read) == len(declared), "a define is read once, into its constexpr"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_a_source_takes_what_it_is_launched_with(stage: type[Kernel]) -> None:
    text = (kernels_dir() / stage.source).read_text(encoding="utf-8")
    assert [parameter.split()[-1] for parameter in _parameters(text)] == _names(stage())
    assert _takes_launch_values(stage(), text)


@dataclass(frozen=True)
class Launched(Naive):
    """With two tunables that are launch arguments."""

    RING: int = tune(2, 3, at_launch=True)
    STREAM_K: int = tune(0, 1, at_launch=True)


@pytest.mark.parametrize(
    ("last", "right"),
    [
        ("int ldc, int ring, int stream_k", True),
        ("int ldc, int ring,\n      int stream_k", True),
        ("int ldc, int stream_k, int ring", False),
        ("int ldc, int ring", False),
        ("int ldc, int RING, int stream_k", False),
        ("int ldc, long ring, int stream_k", False),
        ("int ldc, int ring, int stream_k, float *__restrict__ workspace", False),
        ("int ldc", False),
    ],
)
def test_launch_values_in_another_order_or_of_another_type_show(last: str, right: bool) -> None:
    text = (kernels_dir() / Launched.source).read_text(encoding="utf-8")
    assert text.count("int ldc)") == 1
    assert _takes_launch_values(Launched(), text.replace("int ldc", last)) == right
    assert _compiled(Launched) == Naive.tunables()


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_default_is_legal_everywhere(stage: type[Kernel]) -> None:
    for arch in ARCHS.values():
        if arch.capability >= stage.min_arch:
            assert stage() in stage.legal(arch)
        else:
            assert not stage.legal(arch)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_a_missing_define_fails(stage: type[Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = stage()
    every = kernel.defines
    for missing in every:
        monkeypatch.setattr(Kernel, "defines", tuple(define for define in every if define != missing))
        with pytest.raises(CompileError) as caught:
            compile_kernel(kernel, ARCH)
        assert missing.removeprefix("-D").split("=")[0] in caught.value.log


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name())
def test_an_unknown_tunable_is_refused(stage: type[Kernel]) -> None:
    with pytest.raises(IllegalConfiguration, match="has no tunable 'CHUNKS'"):
        stage.from_params({**stage().params, "CHUNKS": 2})
