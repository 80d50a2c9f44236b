"""Which GPU there is. Only a spawned process ever opens it: this one never makes a CUDA context."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from sgemm_tune.arch import Arch, parse_arch
from sgemm_tune.errors import SgemmTuneError
from sgemm_tune.measure.protocol import Device
from sgemm_tune.measure.worker import GpuWorker

DEFAULT_ARCH = "sm_90"
"""What is planned for where there is neither a GPU nor --arch."""


def open_device(ordinal: int) -> Device:
    """Open CUDA device `ordinal`; runs inside the spawned process, and imports CuPy only there.

    Raises:
        DeviceUnavailable: there is no usable GPU of that number.
    """
    from sgemm_tune.device import open_gpu

    return open_gpu(ordinal)


@dataclass
class Probe:
    """What was found: a worker that owns a GPU of the right architecture, or the reason why there is none.

    Attributes:
        arch: the architecture to work for.
        worker: the process that owns the GPU; None: plan instead.
        reason: why there is no worker.
    """

    arch: Arch
    worker: GpuWorker | None
    reason: str = ""


def open_worker(ordinal: int) -> GpuWorker:
    """A spawned process that owns GPU `ordinal`.

    Raises:
        DeviceUnavailable: there is no usable GPU of that number.
        SgemmTuneError: it is of an unknown architecture, or opening it crashed.
    """
    return GpuWorker(functools.partial(open_device, ordinal))


def probe(asked: Arch | None, ordinal: int) -> Probe:
    """Open GPU `ordinal` if it is there and of the architecture `asked` for (None: whatever it is)."""
    try:
        worker = open_worker(ordinal)
    except SgemmTuneError as error:  # none there, an unknown one, or one that crashes: nothing to measure on
        return Probe(asked or parse_arch(DEFAULT_ARCH), None, str(error))
    found = parse_arch(worker.info.arch)
    if asked is not None and asked != found:
        worker.close()
        reason = f"this GPU ({worker.info.name}) is {found.name}, and {asked.name} was asked for"
        return Probe(asked, None, reason)
    return Probe(found, worker)
