"""Configuration files: what is written is read back, what is wrong is told by file, line and key."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sgemm_tune.arch import ARCHS
from sgemm_tune.errors import ConfigFileError, SgemmTuneError
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store import configs
from sgemm_tune.store.configs import (
    ConfigFile,
    Entry,
    PredictedEntry,
    config_path,
    find_entry,
    kernel_of,
    load_best,
    load_config,
    measured_entry,
    merge_entries,
    merge_predicted,
    predicted_entry,
    promote,
)
from sgemm_tune.store.strict_yaml import dump_yaml, parse_yaml
from tests.stored import ARCH, H200, PROBLEM, STAGES, Lower, Upper, entry, measurement, own_stages, prediction


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    with own_stages():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two entries and two predictions."""
    stored = config_path(tmp_path, ARCH)
    merge_entries(stored, ARCH, [entry(), entry(8192)])
    merge_predicted(stored, ARCH, [prediction(1), prediction(2)])
    return stored


def check(path: Path) -> ConfigFile:
    """Everything that is checked before an entry is compiled."""
    config = load_config(path)
    stored: list[Entry | PredictedEntry] = [*config.entries, *config.predicted]
    for one in stored:
        kernel_of(one)
    return config


def test_what_is_written_is_read(path: Path) -> None:
    config = check(path)
    assert path.name == "h100.yaml"
    assert (config.schema_version, config.arch) == (1, "sm_90")
    assert config.entries == [entry(), entry(8192)]
    assert [kernel_of(p) for p in config.predicted] == [Upper(), Upper()]
    assert kernel_of(config.entries[0]) == Lower(BM=16, BN=64)
    provenance = config.entries[0].provenance
    assert (provenance.uuid, provenance.watts, provenance.throttle) == ("GPU-5c0ffee5", 650.2, "sw_power_cap")
    assert (provenance.driver, provenance.seed, provenance.source_hash) == ("575.57", 7, f"{11:016x}")


def test_people_can_read_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# sgemm-tune: the best configurations for sm_90")
    assert "params: {BM: 16, BN: 64}" in text
    assert re.search(r"- device: NVIDIA H200\n  sms: 132\n  precision: fp32\n  m: 4096\n  n: 4096\n", text)
    assert "tflops: 54.9756\n" in text, "six significant digits"


@pytest.mark.parametrize(
    "text",
    [
        *("1e5", "1234567e12345678", "0x10", "017", "true", "Yes", "no", "null", "~", "", ".inf", "1_000"),
        *("2025-11-29", "a: b", "- a", "# x", "&a", "*a", "!t", "'", '"', "a\nb", " a", "\x07", "\x85"),
        *("%", "=", "<<", "×ü", "12:30", "a, b", "x]", "a ", "-", "abc-", "NVIDIA H200 (MIG 1g.18gb)"),
    ],
)
def test_text_stays_text(text: str) -> None:
    root = parse_yaml(dump_yaml({"key": text, text: ["x"]}), "f")
    assert root.plain == {"key": text, text: ["x"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-5", 1e-5), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), ("-3", -3), ("0123", 123), ("yes", "yes")),
        *(("2025-11-29", "2025-11-29"), ("0x10", "0x10"), ("'1'", "1"), ("True", True), ("null", None)),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(f"key: {text}", "f").plain["key"]
    assert found == value
    assert type(found) is type(value)


def change(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


BROKEN = {
    "misspelt key": (change("    seed:", "    sede:"), 34, "entries[0].provenance", "did you mean 'seed'"),
    "unknown key": (change("  ms: 2.5", "  zzz: 2.5"), 15, "entries[0].zzz", "is no known key: use"),
    "missing key": (change("  tflops: 54.9756\n", ""), 7, "entries[0].tflops", "is missing"),
    "number as text": (change("  m: 4096", '  m: "4096"'), 10, "entries[0].m", 'whole number (found "4096")'),
    "truth as number": (change("  m: 4096", "  m: true"), 10, "entries[0].m", "whole number (found true)"),
    "point": (change("  m: 4096", "  m: 4096.0"), 10, "entries[0].m", "whole number (found 4096.0)"),
    "zero": (change("  m: 4096", "  m: 0"), 10, "entries[0].m", "at least 1 (found 0)"),
    "negative": (change("ms: 2.5", "ms: -2.5"), 15, "entries[0].ms", "greater than 0.0 (found -2.5)"),
    "nan": (change("ms: 2.5", "ms: .nan"), 15, "entries[0].ms", "finite number (found .nan)"),
    "infinity": (change("ms: 2.5", "ms: -.inf"), 15, "entries[0].ms", "finite number (found -.inf)"),
    "overflow": (change("ms: 2.5", "ms: 1e999"), 15, "entries[0].ms", "finite number (found 1e999)"),
    "huge": (change("  m: 4096", "  m: 1" + "0" * 5000), 10, "entries[0].m", "whole number (found"),
    "text as number": (change("ms: 2.5", "ms: fast"), 15, "entries[0].ms", 'must be a number (found "fast")'),
    "number for text": (change('driver: "575.57"', "driver: 575.57"), 26, "entries[0].prov", "in quotes"),
    "null": (change("stage: lower", "stage:"), 13, "entries[0].stage", "must be text (found null)"),
    "list for mapping": (change("{BM: 16, BN: 64}", "[16]"), 14, "entries[0].params", "must be a mapping"),
    "mapping for list": (lambda _: "schema: 1\narch: sm_90\nentries: {}", 3, "entries", "must be a list"),
    "precision": (change("precision: fp32", "precision: fp16"), 9, "entries[0].precision", "or 'tf32'"),
    "wrong precision": (change("precision: fp32", "precision: tf32"), 9, "entries[0].precision", "in fp32"),
    "unknown stage": (change("stage: lower", "stage: lowr"), 13, "entries[0].stage", "lower, upper, tensor"),
    "no tunable": (change("BM: 16", "BX: 16"), 14, "entries[0].params.BX", "its tunables are BM, BN"),
    "missing tunable": (change("BM: 16, ", ""), 14, "entries[0].params", "needs a value for BM"),
    "no choice": (change("BM: 16", "BM: 17"), 14, "entries[0].params.BM", "choose one of 16, 32"),
    "tunable as text": (change("BM: 16", "BM: '16'"), 14, "entries[0].params.BM", "whole number"),
    "rules": (change("BM: 16, BN: 64", "BM: 32, BN: 16"), 14, "entries[0].params", "taller than wide"),
    "newer": (change("schema: 1", "schema: 2"), 4, "schema", "(found 2): update sgemm-tune"),
    "older": (change("schema: 1", "schema: 0"), 4, "schema", "(found 0, known 1)"),
    "schema as text": (change("schema: 1", "schema: '1'"), 4, "schema", 'no schema version (found "1"'),
    "no schema": (change("schema: 1\n", ""), 4, "schema", "is missing: write `schema: 1`"),
    "unknown arch": (change("arch: sm_90", "arch: sm_999"), 5, "arch", "choose one of sm_80 (a100)"),
    "alias of arch": (change("arch: sm_90", "arch: h100"), 5, "arch", "write sm_90"),
    "anchor": (change("stage: lower", "stage: &a lower"), 13, "entries[0].stage", "anchors and aliases"),
    "alias": (change("stage: lower", "stage: *a"), 13, "entries[0].stage", "anchors and aliases"),
    "tag": (change("stage: lower", "stage: !!python/name:a x"), 13, "entries[0].stage", "tags are not"),
    "harmless tag": (change("stage: lower", "stage: !!str lower"), 13, "entries[0].stage", "tags are not"),
    "repeated key": (change("  ms: 2.5\n", "  ms: 2.5\n  ms: 2.5\n"), 16, "entries[0].ms", "on line 15"),
    "repeated entry": (change("  m: 8192", "  m: 4096"), 38, "entries[1]", "repeats the entry on line 7"),
    "repeated rank": (change("rank: 2", "rank: 1"), 87, "predicted[1]", "repeats the entry on line 70"),
    "mixed": (change("  predicted_ms:", "  ms: 1\n  predicted_ms:"), 79, "predicted[0].ms", "no"),
    "second document": (lambda text: text + "---\nschema: 1\n", 104, "", "a second document starts here"),
    "syntax": (change("  ms: 2.5", "  ms: [2.5"), 16, "", "is not YAML"),
    "tab": (change("  ms: 2.5", "\tms: 2.5"), 15, "", "is not YAML"),
    "control character": (change("lower", "lo\x07wer"), 13, "", "a character that YAML forbids"),
    "key that is a list": (change("  ms: 2.5", "  ? [a]\n  : 1"), 15, "entries[0]", "a key must be"),
    "text alone": (lambda _: "just text", 1, "file", "must be a mapping"),
    "empty": (lambda _: "", 1, "", "is empty"),
    "only comments": (lambda _: "# nothing\n", 1, "", "is empty"),
    "deep": (change("stage: lower", "stage: " + "[" * 40), 13, "entries[0].stage", "more than 32 deep"),
    "deeper": (change("stage: lower", "stage: " + "[" * 5000), 13, "", ""),
    "half a surrogate pair": (change("lower", '"\\ud800"'), 13, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_told_in_one_line(path: Path, name: str) -> None:
    edit, line, key, words = BROKEN[name]
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(ConfigFileError) as caught:
        check(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: {key}")
    assert words in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 260
    assert path.read_bytes() == before


def test_other_encodings_and_sizes(path: Path) -> None:
    good = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + good)
    check(path)
    path.write_bytes(good.replace(b"lower", b"l\xf6wer", 1))
    with pytest.raises(ConfigFileError, match=r"h100\.yaml:13: is not UTF-8 \(found byte 0xf6\)"):
        check(path)
    path.write_bytes(good + b"#" * (8 << 20))
    with pytest.raises(ConfigFileError, match="is larger than 8 MiB"):
        check(path)
    path.unlink()
    with pytest.raises(ConfigFileError, match=r"h100\.yaml: cannot be read: No such file or directory"):
        check(path)


def test_an_explosion_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    bomb = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    (tmp_path / "bomb.yaml").write_text("\n".join(bomb))
    with pytest.raises(ConfigFileError, match=r"bomb\.yaml:1: a0: anchors and aliases are not allowed"):
        load_config(tmp_path / "bomb.yaml")


def test_merging_keeps_what_is_not_its_own(path: Path) -> None:
    other = dataclasses.replace(H200, name="NVIDIA H100 PCIe", sms=114)
    merge_entries(path, ARCH, [entry(ms=2.0), entry(info=other), entry(512)])
    config = check(path)
    assert [(e.device, e.m, e.ms) for e in config.entries] == [
        ("NVIDIA H100 PCIe", 4096, 2.5),
        ("NVIDIA H200", 512, 2.5),
        ("NVIDIA H200", 4096, 2.0),
        ("NVIDIA H200", 8192, 2.5),
    ]
    assert [p.rank for p in config.predicted] == [1, 2]


def test_the_stored_entry_stays_where_keep_says_so(path: Path) -> None:
    asked = []

    def keep(stored: Entry, found: Entry) -> bool:
        asked.append((stored.ms, found.ms))
        return found.ms > stored.ms

    merge_entries(path, ARCH, [entry(ms=3.0), entry(8192, ms=2.0), entry(64)], keep)
    assert asked == [(2.5, 3.0), (2.5, 2.0)]
    assert [(e.m, e.ms) for e in load_config(path).entries] == [(64, 2.5), (4096, 2.5), (8192, 2.0)]


def test_a_file_that_would_not_change_is_not_written(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    merge_entries(path, ARCH, [entry()])
    assert path.read_text(encoding="utf-8").endswith("# mine\n")


def test_a_shortlist_replaces_its_own_shape_only(path: Path) -> None:
    merge_predicted(path, ARCH, [prediction(1, m=64), prediction(2, m=64)])
    merge_predicted(path, ARCH, [prediction(3)])
    assert [(p.m, p.rank) for p in load_config(path).predicted] == [(64, 1), (64, 2), (4096, 3)]
    assert len(load_config(path).entries) == 2


def test_measuring_a_prediction_moves_it(path: Path) -> None:
    first = load_config(path).predicted[0]
    promote(path, ARCH, [entry(64)], [first])
    config = check(path)
    assert [p.rank for p in config.predicted] == [2]
    assert [e.m for e in config.entries] == [64, 4096, 8192]


@pytest.mark.parametrize("text", ["schema: 1\narch: sm_90\nentrys: []\n", "schema: 99\narch: sm_90\n", "{"])
def test_a_broken_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h100.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError, match=r"h100\.yaml:\d: "):
        merge_entries(path, ARCH, [entry()])
    assert path.read_text() == text


def test_another_architecture_is_refused(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ConfigFileError, match="arch: is sm_90, not sm_100"):
        merge_entries(path, ARCHS["sm_100"], [entry()])
    assert path.read_bytes() == before


def test_a_full_disk_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SgemmTuneError, match=r"cannot write .*h100\.yaml: No space left on device"):
        merge_entries(path, ARCH, [entry(64)])
    assert path.read_bytes() == before


def test_an_entry_is_found_by_device_and_shape(path: Path) -> None:
    config = load_config(path)
    assert find_entry(config, "NVIDIA H200", 132, Precision.FP32, PROBLEM) == entry()
    assert find_entry(config, "NVIDIA H200", 114, Precision.FP32, PROBLEM) is None
    assert find_entry(config, "NVIDIA H100", 132, Precision.FP32, PROBLEM) is None
    assert find_entry(config, "NVIDIA H200", 132, Precision.TF32, PROBLEM) is None
    assert find_entry(config, "NVIDIA H200", 132, Precision.FP32, Problem(4096, 4096, 64)) is None


def test_the_best_is_local_then_shipped_and_shipped_is_not_written(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(configs, "shipped_configs_dir", lambda: shipped)
    assert load_best(tmp_path / "none", ARCH) == ConfigFile(schema=1, arch="sm_90")
    merge_entries(config_path(shipped, ARCH), ARCH, [entry(32)])
    before = sorted(shipped.iterdir())
    assert [e.m for e in load_best(tmp_path / "none", ARCH).entries] == [32]
    assert [e.m for e in load_best(path.parent, ARCH).entries] == [4096, 8192]
    assert sorted(shipped.iterdir()) == before


def test_what_is_no_best_is_not_made_an_entry() -> None:
    with pytest.raises(ConfigFileError, match="was cut early"):
        measured_entry(PROBLEM, Lower(), measurement(early_cut=True), H200, seed=1)
    with pytest.raises(ConfigFileError, match=r"cannot store lower at 4096x4096x4096: cublas_ms: .*than 0"):
        measured_entry(PROBLEM, Lower(), measurement(cublas_ms=0.0), H200, seed=1)
    with pytest.raises(ConfigFileError, match=r"predicted_ms: .*finite"):
        predicted_entry(PROBLEM, Upper(), ARCH, rank=1, predicted_ms=float("inf"), registers=1, nvrtc="12.9")


def test_the_stages_of_the_tests_are_the_ladder() -> None:
    from sgemm_tune.kernel import ladder

    assert {stage.name() for stage in ladder()} == set(STAGES)
