"""The only package that touches the CUDA runtime: load, launch, time, cuBLAS reference, clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgemm_tune.measure.protocol import Device


def open_gpu(ordinal: int) -> Device:
    """Open CUDA device `ordinal` in this process, which from then on has a CUDA context.

    Raises:
        DeviceUnavailable: no driver, no such device, or libraries that are missing.
    """
    from sgemm_tune.device.gpu import GpuDevice

    return GpuDevice(ordinal)
