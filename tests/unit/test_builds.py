"""Which points of a space share a cubin, and which have one already. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.kernel import Code, Kernel, stage_named, tune
from sgemm_tune.search.builds import builds_of
from sgemm_tune.search.points import kernel_of, space_of
from sgemm_tune.stages.naive import Naive

SM_90 = parse_arch("sm_90")
LATE = (stage_named("warp_tile"), stage_named("tma"))
"""The stages with arguments of the launch that are tunables."""


def nothing(_: Iterable[Kernel]) -> set[Code]:
    """What a pool without a cache says."""
    return set()


@pytest.mark.parametrize("stages", [LATE, LATE[::-1], LATE[:1]], ids=len)
def test_points_share_a_build_where_their_code_is_the_same_and_nowhere_else(
    stages: tuple[type[Kernel], ...],
) -> None:
    """In the order of the space, whose points are made back into configurations here."""
    points = space_of(stages, SM_90).points
    codes = [kernel_of(point).code for point in points]
    of = builds_of(stages, SM_90, nothing).of
    assert len(of) == len(points)
    pairs = set(zip(of.tolist(), codes, strict=True))
    assert len(pairs) == len(set(codes)) == len(set(of.tolist())) < len(points)
    assert {number for number, _ in pairs} == set(range(len(pairs))), "numbered from 0, without gaps"


def test_the_same_values_of_another_stage_are_another_build() -> None:
    @dataclass(frozen=True)
    class Other(Naive):
        """Of the same tunables as its base."""

    naive = len(Naive.legal(SM_90))
    of = builds_of((Naive, Other), SM_90, nothing).of
    assert of.tolist() == list(range(2 * naive))


def test_a_stage_with_nothing_to_compile_in_is_one_build() -> None:
    @dataclass(frozen=True)
    class Free(Kernel):
        """Whatever it has is given at the launch."""

        source = "99_free.cu"

        FIRST: int = tune(0, 1, at_launch=True)
        SECOND: int = tune(0, 1, 2, at_launch=True)

        smem_bytes = 0

    naive = len(Naive.legal(SM_90))
    assert builds_of((Free, Naive), SM_90, nothing).of.tolist() == [0] * 6 + list(range(1, 1 + naive))


@pytest.mark.parametrize("every", [1, 2, 7])
def test_done_are_the_builds_whose_code_is_compiled(every: int) -> None:
    kernels = [kernel for stage in LATE for kernel in stage.legal(SM_90)]
    there = {kernel.code for kernel in kernels[::every]}
    asked: list[Kernel] = []

    def compiled(some: Iterable[Kernel]) -> set[Code]:
        asked.extend(some)
        return there & {kernel.code for kernel in asked}

    found = builds_of(LATE, SM_90, compiled)
    assert [bool(done) for done in found.done[found.of]] == [kernel.code in there for kernel in kernels]
    assert len(asked) == len(found.done), "one configuration of each build is asked about"


def test_another_searchs_builds_are_asked_about_anew() -> None:
    stage = stage_named("coalesced")
    codes = [kernel.code for kernel in stage.legal(SM_90)]

    def done(there: set[Code]) -> list[bool]:
        found: list[bool] = builds_of((stage,), SM_90, lambda _: there).done.tolist()
        return found

    for count in (0, 3, 5, 0):
        assert done(set(codes[:count])) == [place < count for place in range(len(codes))]


def test_where_nothing_is_compiled_no_code_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of builds that takes longer than all the rest."""
    monkeypatch.setattr(Kernel, "code", property(lambda _: pytest.fail("its code was made")))
    done = builds_of(LATE, SM_90, nothing).done
    assert len(done) > 1000
    assert not done.any()
