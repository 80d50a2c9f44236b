"""What is asked of NVRTC, and what happens where it does not answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sgemm_tune.arch import parse_arch
from sgemm_tune.compiler import nvrtc
from sgemm_tune.compiler.cache import BinaryCache
from sgemm_tune.compiler.sources import source_text
from sgemm_tune.errors import CompileError
from sgemm_tune.kernel import Kernel, ladder, stage_named, tune
from sgemm_tune.stages.naive import Naive

HOPPER = parse_arch("sm_90")


def test_a_compilation_says_what_ptxas_said_also_when_it_is_repeated() -> None:
    kernel = stage_named("naive")()
    for _ in range(2):
        found = nvrtc.compile_source(source_text(kernel.source), HOPPER, kernel.defines, "naive")
        assert found.registers > 0
        assert "ptxas" in found.log


def test_nvrtcs_own_cache_is_off_and_what_no_kernel_needs_left_out() -> None:
    major, minor = (int(part) for part in nvrtc.nvrtc_version().split("."))
    for option in ("--no-cache", "--minimal"):
        assert (option in nvrtc.options("sm_90a", ())) == ((major, minor) >= (12, 9))


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


def test_a_key_is_the_digest_of_all_that_a_cubin_is_made_of() -> None:
    """Another one would make every cache that users have worthless."""
    for stage in ladder():
        source = source_text(stage.source)
        for kernel in (stage(), *stage.legal(HOPPER)[:: len(stage.legal(HOPPER)) // 2]):
            for name in ("sm_90", "sm_120"):
                arch = parse_arch(name)
                flags = nvrtc.options(arch.target, kernel.defines)
                parts = [source.digest, source.text, *flags, nvrtc.nvrtc_version()]
                expected = hashlib.sha256("\0".join(parts).encode()).hexdigest()
                assert nvrtc.cache_key(kernel, arch) == expected, kernel


def stored(cache: BinaryCache, *kernels: Kernel) -> None:
    """As if they had been compiled for `HOPPER`."""
    said = {"registers": 9, "spill_bytes": 0, "static_smem": 0, "nvrtc": "12.9", "seconds": 1.5, "log": ""}
    for kernel in kernels:
        assert cache.write(nvrtc.cache_key(kernel, HOPPER), said, b"ELF")


def test_nothing_is_found_in_an_empty_cache(tmp_path: Path) -> None:
    legal = stage_named("vectorized").legal(HOPPER)
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        cache = BinaryCache(place)
        assert cache.keys() == set()
        assert nvrtc.cached_code(legal, HOPPER, cache) == set()


def test_exactly_the_code_is_found_that_was_stored(tmp_path: Path) -> None:
    cache, legal = BinaryCache(tmp_path), stage_named("vectorized").legal(HOPPER)
    stored(cache, *legal[::5])
    assert nvrtc.cached_code(legal, HOPPER, cache) == {kernel.code for kernel in legal[::5]}
    assert nvrtc.cached_code(legal[1:5], HOPPER, cache) == set()
    assert len(cache.keys()) == len(legal[::5])
    for kernel in legal[:10]:
        assert (nvrtc.cached_binary(kernel, HOPPER, cache) is not None) == (kernel in legal[::5])


def test_code_is_found_whatever_it_was_launched_with(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    stored(cache, Launched(LATE=0))
    assert nvrtc.cached_code([Launched(LATE=1)], HOPPER, cache) == {Launched(LATE=0).code}
    assert nvrtc.cached_code([Launched(BLOCK=16, LATE=0)], HOPPER, cache) == set()
    tma = stage_named("tma").legal(HOPPER)
    stored(cache, tma[0])
    twins = [kernel for kernel in tma if kernel.code == tma[0].code]
    assert len(twins) > 1
    for twin in twins:
        assert nvrtc.cached_code([twin], HOPPER, cache) == {twin.code}


def test_code_of_another_architecture_is_not_found(tmp_path: Path) -> None:
    cache, naive = BinaryCache(tmp_path), stage_named("naive")
    stored(cache, naive())
    assert nvrtc.cached_code([naive()], parse_arch("sm_120"), cache) == set()
    assert nvrtc.cached_code([naive()], HOPPER, cache) == {naive().code}


def test_foreign_files_in_the_cache_are_no_code(tmp_path: Path) -> None:
    cache, naive = BinaryCache(tmp_path), stage_named("naive")
    key = nvrtc.cache_key(naive(), HOPPER)
    for name in (f"{key}.bin", f"{key[:2]}/.writing-{key}", f"{key[:2]}/{key}", f"{key[:2]}/{key}.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"ELF")
    (tmp_path / "ab").touch()
    assert nvrtc.cached_code([naive()], HOPPER, cache) == set()
    (tmp_path / key[:2] / "notes.bin").touch()
    assert nvrtc.cached_code([naive()], HOPPER, cache) == set()
    stored(cache, naive())
    assert nvrtc.cached_code(naive.legal(HOPPER), HOPPER, cache) == {naive().code}


def test_a_binary_of_unknown_registers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit in NVRTC's own cache has no log, so spills would pass for none."""
    monkeypatch.setattr(nvrtc, "_compile", lambda *_, **__: (b"\x7fELF", ""))
    kernel = stage_named("naive")()
    with pytest.raises(CompileError, match="without saying how many registers"):
        nvrtc.compile_source(source_text(kernel.source), HOPPER, kernel.defines, "naive")
