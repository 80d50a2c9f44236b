"""Which GPU this is, and why there is none."""

from __future__ import annotations

import sys
from typing import Any

from sgemm_tune.arch import arch_of_capability
from sgemm_tune.compiler.nvrtc import nvrtc_version
from sgemm_tune.device.telemetry import Nvml
from sgemm_tune.errors import DeviceUnavailable
from sgemm_tune.measure.outcome import DeviceInfo

_NO_DEVICE, _NO_DRIVER = 100, 35


def select(ordinal: int) -> None:
    """Make device `ordinal` (CUDA's numbering) current in this process.

    Raises:
        DeviceUnavailable: CuPy or the driver is missing or too old, or there is no such device.
    """
    try:
        import cupy
        from cupy.cuda.runtime import CUDARuntimeError
    except Exception as error:
        raise DeviceUnavailable(
            f"CuPy cannot be imported ({error}): pip install cupy-cuda12x"
            + ("" if sys.platform in ("linux", "win32") else "; CUDA needs Linux or Windows")
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except CUDARuntimeError as error:
        raise DeviceUnavailable(_why_none(error)) from error
    if not 0 <= ordinal < count:
        raise DeviceUnavailable(f"there is no GPU {ordinal}: this machine shows {count}, numbered from 0")
    try:
        cupy.cuda.Device(ordinal).use()
        cupy.cuda.runtime.deviceSynchronize()
    except CUDARuntimeError as error:
        raise DeviceUnavailable(f"GPU {ordinal} cannot be used: {error}") from error


def pci_bus_id(ordinal: int) -> str:
    """Where the device sits: the name that CUDA and NVML share."""
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(ordinal))


def describe(ordinal: int) -> DeviceInfo:
    """The selected device in our words.

    Raises:
        UnknownName: a compute capability that the architecture table lacks.
    """
    import cupy
    from cupy_backends.cuda.libs import cublas

    runtime: Any = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(ordinal)
    nvml = Nvml(pci_bus_id(ordinal))
    driver = nvml.driver_version() or _version(runtime.driverGetVersion())
    # memoryClockRate is kHz of a double-data-rate bus; newer runtimes no longer fill it in
    bandwidth = 2e-6 * properties.get("memoryClockRate", 0) * properties.get("memoryBusWidth", 0) / 8
    return DeviceInfo(
        name=properties["name"].decode(),
        uuid=nvml.uuid(),
        arch=arch_of_capability(properties["major"], properties["minor"]).name,
        sms=properties["multiProcessorCount"],
        l2_bytes=properties["l2CacheSize"],
        memory_bytes=properties["totalGlobalMem"],
        clock_mhz=nvml.max_sm_mhz() or properties.get("clockRate", 0) // 1000,
        gbytes_per_s=round(bandwidth, 1),
        driver=driver,
        runtime=_version(runtime.runtimeGetVersion()),
        nvrtc=nvrtc_version(),
        cublas=_cublas_version(cublas.getVersion(cupy.cuda.device.get_cublas_handle())),
    )


def _why_none(error: Any) -> str:
    if error.status == _NO_DEVICE:
        return "the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)"
    if error.status == _NO_DRIVER:
        try:
            import pynvml

            pynvml.nvmlInit()
            version = pynvml.nvmlSystemGetDriverVersion()
        except Exception:  # any failure of NVML means the same here
            return "no NVIDIA driver was found on this machine"
        return f"NVIDIA driver {version} is older than the CUDA runtime needs: update the driver"
    return f"the CUDA runtime cannot start: {error}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cublas_version(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
