"""10,000 broken configuration files: an error in one line, or a file of which every value was checked."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgemm_tune.errors import ConfigFileError
from sgemm_tune.store.configs import (
    Entry,
    PredictedEntry,
    kernel_of,
    load_config,
    merge_entries,
    merge_predicted,
)
from sgemm_tune.store.strict_yaml import parse_yaml
from tests.stored import ARCH, STAGES, entry, own_stages, prediction

# four strategies of 2,500 examples
fuzzed = settings(
    max_examples=2500,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

SNIPPETS = (
    *("&a ", "*a", "!!python/object/apply:os.system ['x']", "!x ", "---\n", "...\n", "<<: ", "? ", "- "),
    *("{", "}", "[", "]", '"', "'", "|\n", ">\n", "#", ": ", "%YAML 9.9\n", "\t", "\n", "  ", "\x00"),
    *(".nan", ".inf", "1e999", "1e-5", "-1", "0", "true", "null", "~", "9" * 400, "0x10", "1_0", "1:2"),
    *("ms: 1\n", "schema: 2\n", "BM: 17", "stage: upper", "precision: tf32", "extra: 1\n"),
    *("\u2028", "\ufeff", "😀"),
)

Scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 4, 8, 16, 17, 32, 64, 2**31 - 1, 2**31, 2**63, -1]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["lower", "upper", "tensor", "fp32", "tf32", "sm_90", "h100", "16", "1e-5", ""]),
    st.just([]),
    st.just({}),
)


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    with own_stages():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "h100.yaml"


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sound file with both kinds of entries."""
    stored = tmp_path_factory.mktemp("valid") / "h100.yaml"
    with own_stages():
        merge_entries(stored, ARCH, [entry(), entry(8192)])
        merge_predicted(stored, ARCH, [prediction(1), prediction(2)])
    return stored.read_text(encoding="utf-8")


def examine(path: Path, data: bytes) -> bool:
    """Whether the file is sound; whatever it is, no other error and no unchecked value comes of it."""
    path.write_bytes(data)
    try:
        config = load_config(path)
    except ConfigFileError as error:
        check_message(str(error), path)
        return False
    sound = True
    entries: list[Entry | PredictedEntry] = [*config.entries, *config.predicted]
    for stored in entries:
        try:
            kernel = kernel_of(stored)
        except ConfigFileError as error:
            check_message(str(error), path)
            sound = False
            continue
        tunables = STAGES[kernel.name()].tunables()
        assert kernel.params.keys() == tunables.keys()
        for name, value in kernel.params.items():
            assert type(value) is int
            assert value in tunables[name]
        assert not kernel.violations()
        assert kernel.precision is stored.precision
        assert min(stored.m, stored.n, stored.k, stored.sms) >= 1
        time = stored.ms if isinstance(stored, Entry) else stored.predicted_ms
        assert 0 < time < float("inf")
    return sound


def check_message(message: str, path: Path) -> None:
    assert message.startswith(f"{path}:")
    assert message[len(str(path)) + 1 :].split(":", maxsplit=1)[0].isdigit(), "names a line"
    assert message.isprintable(), "one line"
    assert len(message) < len(str(path)) + 400


def test_the_sound_file_is_sound(path: Path, valid: str) -> None:
    assert examine(path, valid.encode())
    assert not examine(path, valid.replace("BM: 16", "BM: 17").encode())


@fuzzed
@given(st.one_of(st.text(), st.text(alphabet=st.sampled_from("[]{}:,-?&*!|>'\"%@` \n\taé0.")), st.binary()))
def test_random_text(path: Path, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode("utf-8", errors="surrogatepass")
    examine(path, data)
    examine(path, b"schema: 1\narch: sm_90\nentries:\n- " + data)


@fuzzed
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_sound_files_with_characters_changed(path: Path, valid: str, dice: random.Random, times: int) -> None:
    text = valid
    for _ in range(times):
        start = dice.randrange(len(text))
        end = min(len(text), start + dice.choice((0, 1, 1, 3, 20)))
        text = text[:start] + dice.choice(("", *SNIPPETS)) + text[end:]
    examine(path, text.encode("utf-8", errors="replace"))


@fuzzed
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_sound_files_with_lines_moved(path: Path, valid: str, dice: random.Random, times: int) -> None:
    lines = valid.splitlines()
    for _ in range(times):
        line = lines.pop(dice.randrange(len(lines)))
        line = dice.choice((line, "  " + line, line.lstrip(), line.replace(": ", ":"), line + line))
        for _ in range(dice.choice((0, 1, 1, 2))):
            lines.insert(dice.randrange(len(lines)), line)
    examine(path, "\n".join(lines).encode())


@fuzzed
@given(st.randoms(use_true_random=False), Scalars, st.text(max_size=6))
def test_sound_files_with_values_changed(
    path: Path, valid: str, dice: random.Random, value: Any, key: str
) -> None:
    data = parse_yaml(valid, "valid").plain
    where: Any = data
    while True:
        names = list(where) if isinstance(where, dict) else list(range(len(where)))
        name = dice.choice(names)
        if not isinstance(where[name], dict | list) or not where[name] or dice.random() < 0.15:
            break
        where = where[name]
    what = dice.random()
    if what < 0.7 or isinstance(where, list):
        where[name] = value
    elif what < 0.8:
        del where[name]
    else:
        where[key if dice.random() < 0.5 else str(name)[:-1]] = where.pop(name)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = json.dumps(data) if dice.random() < 0.5 else yaml.dump(data, Dumper=dumper)
    examine(path, text.encode("utf-8", errors="replace"))
