"""Device memory that kernels write for themselves, such as partial sums that other blocks read."""

from __future__ import annotations

from typing import Any


class Workspace:
    """One piece of device memory that all kernels of a process share, as none of them run side by side.

    It only grows, so that a graph that was recorded with it stays valid: a kernel is always launched once
    before it is recorded.
    """

    def __init__(self) -> None:
        self._memory: Any = None
        self._outgrown: list[Any] = []

    def reserve(self, size: int) -> int:
        """The device address of at least `size` bytes, on a boundary of 256."""
        import cupy

        if self._memory is None or self._memory.nbytes < size:
            if self._memory is not None:
                self._outgrown.append(self._memory)
            self._memory = cupy.empty(max(size, 1), dtype=cupy.uint8)
        return int(self._memory.data.ptr)

    def release(self) -> None:
        """Give back what was outgrown, once nothing that was launched with it is still running."""
        self._outgrown.clear()
