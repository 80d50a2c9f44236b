"""Best configurations <-> configs/<name>.yaml: read strictly, merged under a lock, replaced atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sgemm_tune.arch import Arch
from sgemm_tune.compiler.sources import shipped_configs_dir
from sgemm_tune.errors import ConfigFileError
from sgemm_tune.kernel import Kernel
from sgemm_tune.measure.outcome import DeviceInfo, Measurement
from sgemm_tune.problem import Precision, Problem
from sgemm_tune.store.config_schema import (
    SCHEMA,
    ConfigFile,
    Entry,
    PredictedEntry,
    kernel_of,
    parse_config,
)
from sgemm_tune.store.files import locked, replace_atomically
from sgemm_tune.store.provenance import gather, gather_plan
from sgemm_tune.store.strict_yaml import dump_yaml, read_yaml

__all__ = [
    "SCHEMA",
    "ConfigFile",
    "Entry",
    "PredictedEntry",
    "config_path",
    "find_entry",
    "kernel_of",
    "load_best",
    "load_config",
    "measured_entry",
    "merge_entries",
    "merge_predicted",
    "nearest_entries",
    "predicted_entry",
    "promote",
]

Keep = Callable[[Entry, Entry], bool]
"""keep(stored, found): whether the stored entry stays where both are of one key."""

_HEADER = """\
# sgemm-tune: the best configurations for {arch}, one entry per device, precision and shape.
# `entries` were validated and measured on the device they name; `predicted` were compiled and ranked by a
# model, and never run. `sgemm-tune search` and `sgemm-tune bench` rewrite this file, comments included.
"""


def config_path(directory: Path, arch: Arch) -> Path:
    """Where the configurations of `arch` stand below `directory`: `h100.yaml` for sm_90."""
    return directory / f"{arch.config}.yaml"


def load_config(path: Path) -> ConfigFile:
    """Read one file. Stages and their tunables are checked where `kernel_of` makes a kernel of an entry.

    Raises:
        ConfigFileError: the file cannot be read or breaks the schema; one line with file, line and key.
    """
    return parse_config(read_yaml(path), str(path))


def load_best(directory: Path, arch: Arch) -> ConfigFile:
    """The file of `arch` below `directory` if it is there, else the one shipped with this package.

    Without either the result has no entries.

    Raises:
        ConfigFileError: the file cannot be read or breaks the schema.
    """
    for place in (directory, shipped_configs_dir()):
        path = config_path(place, arch)
        if path.exists():
            return load_config(path)
    return ConfigFile(schema=SCHEMA, arch=arch.name)


def find_entry(
    config: ConfigFile, device: str, sms: int, precision: Precision, problem: Problem
) -> Entry | None:
    """The measured entry of exactly this device, SM count, precision and shape."""
    wanted = (device, sms, precision.value, problem.m, problem.n, problem.k)
    return next((entry for entry in config.entries if entry.key == wanted), None)


def nearest_entries(
    config: ConfigFile, device: str, sms: int, precision: Precision, problem: Problem
) -> list[Entry]:
    """The measured entries of a device and precision, those of the nearest shapes first.

    Shapes are as far apart as the logarithms of their sides; an entry of the very shape comes first.
    """
    own = [
        entry
        for entry in config.entries
        if (entry.device, entry.sms, entry.precision) == (device, sms, precision)
    ]
    return sorted(own, key=lambda entry: problem.distance(entry.problem))


def measured_entry(
    problem: Problem, kernel: Kernel, measurement: Measurement, info: DeviceInfo, seed: int
) -> Entry:
    """An entry for what was just measured.

    Raises:
        ConfigFileError: the measurement cannot be a best one: it was cut early or has no baseline.
    """
    if measurement.early_cut:
        raise ConfigFileError(f"{kernel} at {problem.shape} was cut early: measure it in full to store it")
    return _build(
        Entry,
        device=info.name,
        sms=info.sms,
        precision=kernel.precision,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        stage=kernel.name(),
        params=kernel.params,
        ms=measurement.ms,
        tflops=problem.tflops(measurement.ms),
        cublas_ms=measurement.cublas_ms,
        vs_cublas=measurement.vs_cublas,
        error=measurement.accuracy.error,
        error_bound=measurement.accuracy.bound,
        provenance=gather(info, kernel, measurement, seed),
    )


def predicted_entry(
    problem: Problem,
    kernel: Kernel,
    arch: Arch,
    *,
    rank: int,
    predicted_ms: float,
    registers: int,
    nvrtc: str,
) -> PredictedEntry:
    """A prediction for the board that `arch` assumes, made just now.

    Raises:
        ConfigFileError: a rank below 1 or a time that is not positive and finite.
    """
    return _build(
        PredictedEntry,
        board=arch.board.name,
        sms=arch.board.sms,
        precision=kernel.precision,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        rank=rank,
        stage=kernel.name(),
        params=kernel.params,
        predicted_ms=predicted_ms,
        registers=registers,
        provenance=gather_plan(kernel, nvrtc),
    )


def merge_entries(path: Path, arch: Arch, entries: Iterable[Entry], keep: Keep | None = None) -> ConfigFile:
    """Put `entries` into the file, each in place of the one of its key; all others stay.

    Args:
        path: the file; made if missing.
        arch: its architecture.
        entries: what was found.
        keep: whether a stored entry stays against the found one; by default the found one replaces it.

    Returns:
        What the file now holds.

    Raises:
        ConfigFileError: the file breaks the schema or is another architecture's; it is left alone.
        FileWriteError: it cannot be written; it is left alone.
    """
    return promote(path, arch, entries, (), keep)


def merge_predicted(path: Path, arch: Arch, predictions: Iterable[PredictedEntry]) -> ConfigFile:
    """Put shortlists into the file: those of the same boards, precisions and shapes are replaced whole.

    Returns:
        What the file now holds.

    Raises:
        ConfigFileError: the file breaks the schema or is another architecture's; it is left alone.
        FileWriteError: it cannot be written; it is left alone.
    """
    found = {prediction.key: prediction for prediction in predictions}
    groups = {prediction.group for prediction in found.values()}

    def change(current: ConfigFile) -> ConfigFile:
        stay = [prediction for prediction in current.predicted if prediction.group not in groups]
        return current.model_copy(update={"predicted": _sorted([*stay, *found.values()])})

    return _update(path, arch, change)


def promote(
    path: Path,
    arch: Arch,
    entries: Iterable[Entry],
    measured: Iterable[PredictedEntry],
    keep: Keep | None = None,
) -> ConfigFile:
    """Merge `entries` and, in the same step, drop the predictions that were `measured` to get them.

    Returns:
        What the file now holds.

    Raises:
        ConfigFileError: the file breaks the schema or is another architecture's; it is left alone.
        FileWriteError: it cannot be written; it is left alone.
    """
    found = list(entries)
    done = list(measured)

    def change(current: ConfigFile) -> ConfigFile:
        merged = {entry.key: entry for entry in current.entries}
        for entry in found:
            stored = merged.get(entry.key)
            if stored is None or keep is None or not keep(stored, entry):
                merged[entry.key] = entry
        return current.model_copy(
            update={
                "entries": _sorted(merged.values()),
                "predicted": [prediction for prediction in current.predicted if prediction not in done],
            }
        )

    return _update(path, arch, change)


def _update(path: Path, arch: Arch, change: Callable[[ConfigFile], ConfigFile]) -> ConfigFile:
    with locked(path):
        exists = path.exists()
        current = load_config(path) if exists else ConfigFile(schema=SCHEMA, arch=arch.name)
        if current.arch != arch.name:
            raise ConfigFileError(
                f"{path}: arch: is {current.arch}, not {arch.name}: give another directory for configurations"
            )
        changed = change(current)
        if changed != current or not exists:
            replace_atomically(path, _HEADER.format(arch=arch.name) + _dump(changed))
    return changed


Model = TypeVar("Model", Entry, PredictedEntry)


def _build(model: type[Model], **values: Any) -> Model:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigFileError(
            f"cannot store {values['stage']} at {values['m']}x{values['n']}x{values['k']}: {key}: "
            f"{first['msg']} (found {first['input']!r}): measure it again"
        ) from None


def _sorted(entries: Iterable[Model]) -> list[Model]:
    return sorted(entries, key=lambda entry: entry.key)


def _dump(config: ConfigFile) -> str:
    data = config.model_dump(mode="json", by_alias=True)
    for section, order in (("entries", Entry), ("predicted", PredictedEntry)):
        data[section] = [{key: entry[key] for key in _order(order)} for entry in data[section]]
    return dump_yaml(data, flow={"params"})


def _order(model: type[Entry] | type[PredictedEntry]) -> list[str]:
    """The keys as people read them: what it is for, then the configuration, then the figures."""
    first = ["device", "board", "sms", "precision", "m", "n", "k", "rank", "stage", "params"]
    names = list(model.model_fields)
    return [name for name in first if name in names] + [name for name in names if name not in first]
