"""Device memory that kernels write for themselves, such as partial sums that other blocks read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sgemm_tune.errors import LaunchError, OutOfDeviceMemory

MIB = 1 << 20

T = TypeVar("T")


class Workspace:
    """One piece of device memory that all kernels of a process share, as none of them run side by side.

    Between two calls of `release` it only grows, so that a graph that was recorded with it stays valid: a
    kernel is always launched once before it is recorded.

    Args:
        allocate: makes an array of so many bytes on a boundary of 256; raises OutOfDeviceMemory.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._memory: Any = None
        self._outgrown: list[Any] = []
        self._asked = 0  # the most that was asked for since the last release, whether it was there or not

    def reserve(self, size: int) -> int:
        """The device address of at least `size` bytes, on a boundary of 256.

        Raises:
            OutOfDeviceMemory: there is no room; what was reserved before stays.
        """
        self._asked = max(self._asked, size)
        if self._memory is None or self._memory.nbytes < size:
            grown = self._allocate(max(size, 1))
            if self._memory is not None:
                self._outgrown.append(self._memory)
            self._memory = grown
        return int(self._memory.data.ptr)

    def making_room(self, work: Callable[[], T]) -> T:
        """What `work` returns. Where memory runs out, it starts again without what earlier kernels took.

        No graph that was recorded with that memory may be launched again.

        Raises:
            LaunchError: it runs out even so, and the kernels that `work` runs ask for some for themselves.
            OutOfDeviceMemory: it runs out although they ask for none: the product itself is too large.
        """
        try:
            return work()
        except OutOfDeviceMemory:
            if not self._asked:
                raise
        self.release()  # outside the handler, whose traceback keeps alive what was allocated
        try:
            return work()
        except OutOfDeviceMemory as error:
            asked = self._asked
            self.release()
            if not asked:
                raise
            raise LaunchError(
                f"no room for {asked / MIB:.1f} MiB of its own (partial sums, packed operands): {error}"
            ) from error

    def release(self) -> None:
        """Give everything back, once nothing that was launched with it is still running."""
        self._memory = None
        self._outgrown.clear()
        self._asked = 0
