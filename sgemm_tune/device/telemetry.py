"""Clocks, power and throttle reasons through NVML.

The device is matched by its PCI bus id: NVML's index 0 need not be CUDA's device 0 under
CUDA_VISIBLE_DEVICES, and CuPy cuts a UUID off at its first zero byte.
"""

from __future__ import annotations

from typing import Any

from sgemm_tune.measure.outcome import Telemetry

_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
}


class Nvml:
    """Readings of one GPU; all of them zero where NVML is not to be had.

    Args:
        pci_bus_id: `0000:04:00.0` as CUDA reports it.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        except Exception:  # not installed, no driver, or a MIG slice: the numbers are optional
            self._handle = None

    def driver_version(self) -> str:
        """`580.159.04`, empty where unknown."""
        return str(self._read("nvmlSystemGetDriverVersion", "", handle=False))

    def uuid(self) -> str:
        """`GPU-...`, empty where unknown."""
        return str(self._read("nvmlDeviceGetUUID", ""))

    def max_sm_mhz(self) -> int:
        """Highest SM clock in MHz, 0 where unknown."""
        return int(self._read("nvmlDeviceGetMaxClockInfo", 0, 1))

    def read(self) -> Telemetry:
        """What the GPU does now."""
        if self._handle is None:
            return Telemetry()
        mask = int(self._read("nvmlDeviceGetCurrentClocksThrottleReasons", 0))
        processes = self._read("nvmlDeviceGetComputeRunningProcesses", [])
        return Telemetry(
            sm_mhz=int(self._read("nvmlDeviceGetClockInfo", 0, 1)),
            watts=round(self._read("nvmlDeviceGetPowerUsage", 0) / 1000, 1),
            throttle=tuple(name for bit, name in _REASONS.items() if mask & bit),
            # this process is one of them, though a container may show it under another number
            other_processes=max(0, len(processes) - 1),
        )

    def _read(self, function: str, otherwise: Any, *args: int, handle: bool = True) -> Any:
        if self._handle is None:
            return otherwise
        try:
            return getattr(self._nvml, function)(*((self._handle, *args) if handle else args))
        except Exception:  # a reading that this board does not give
            return otherwise
