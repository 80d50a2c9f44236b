"""What is asked of NVRTC, and what happens where it does not answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler import nvrtc
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.errors import CompileError
from sgemm_tune.kernel import stage_named, tune
from sgemm_tune.stages.naive import Naive

HOPPER = parse_arch("sm_90")


def test_a_compilation_says_what_ptxas_said_also_when_it_is_repeated() -> None:
    kernel = stage_named("naive")()
    for _ in range(2):
        found = nvrtc.compile_source(source_text(kernel.source), HOPPER, kernel.defines, "naive")
        assert found.registers > 0
        assert "ptxas" in found.log


def test_nvrtcs_own_cache_is_off() -> None:
    major, minor = (int(part) for part in nvrtc.nvrtc_version().split("."))
    assert ("--no-cache" in nvrtc.options("sm_90a", ())) == ((major, minor) >= (12, 9))


@dataclass(frozen=True)
class Launched(Naive):
    """With a tunable that is a launch argument."""

    LATE: int = tune(0, 1, at_launch=True)


def test_configurations_that_differ_at_launch_share_a_cubin_in_the_cache(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    first = nvrtc.compile_kernel(Launched(LATE=0), HOPPER, cache)
    second = nvrtc.compile_kernel(Launched(LATE=1), HOPPER, cache)
    assert not first.cached
    assert second == replace(first, cached=True)
    assert not nvrtc.compile_kernel(Launched(BLOCK=16, LATE=1), HOPPER, cache).cached


def test_a_binary_of_unknown_registers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit in NVRTC's own cache has no log, so spills would pass for none."""
    monkeypatch.setattr(nvrtc, "_compile", lambda *_, **__: (b"\x7fELF", ""))
    kernel = stage_named("naive")()
    with pytest.raises(CompileError, match="without saying how many registers"):
        nvrtc.compile_source(source_text(kernel.source), HOPPER, kernel.defines, "naive")
