"""Memory of a device: PyTorch's on a GPU, or the stand-in's with a mirror that a host can read."""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import Any, List, Optional, Protocol

_RATE_BYTES = 1 << 28
_RATE_RUNS = 5
_NAN = 0xFF


class Memory(Protocol):
    """The paged cache that the agent copies from and to."""

    #: As the driver knows it.
    pointer: int
    bytes: int

    def written(self) -> None:
        """Waits until all computed values are in the memory."""

    def arrived(self, offset: int, length: int) -> None:
        """The agent has written these bytes."""

    def wipe(self) -> None:
        """Fills the memory with NaN, so that a block that is not restored is detected."""

    def bare_gbps(self) -> float:
        """A plain copy of pinned memory to the device, 10^9 bytes a second."""


class CudaMemory:
    """PyTorch's memory on a GPU."""

    def __init__(self, torch: Any, device: str, length: int) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self.tensor = torch.empty(length, dtype=torch.uint8, device=self._device)
        self.pointer: int = self.tensor.data_ptr()
        self.bytes = length

    def written(self) -> None:
        self._torch.cuda.synchronize(self._device)

    def arrived(self, offset: int, length: int) -> None:
        pass  # The copy was over before the agent answered.

    def wipe(self) -> None:
        self.tensor.fill_(_NAN)
        self.written()

    def bare_gbps(self) -> float:
        torch = self._torch
        source = torch.empty(_RATE_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(_RATE_BYTES, dtype=torch.uint8, device=self._device)
        rates: List[float] = []
        for _ in range(_RATE_RUNS):
            self.written()
            start = perf_counter()
            target.copy_(source, non_blocking=True)
            self.written()
            rates.append(_RATE_BYTES / (perf_counter() - start) / 1e9)
        return sorted(rates)[_RATE_RUNS // 2]


class MirroredMemory:
    """Memory of a driver's first device, and the same bytes where the host can compute on them."""

    def __init__(self, library: Optional[str], length: int) -> None:
        self._cuda = ctypes.CDLL(library or "libcuda.so.1")
        self.mirror = bytearray(length)
        self._host = ctypes.addressof(ctypes.c_char.from_buffer(self.mirror))
        self.bytes = length
        context = ctypes.c_void_p()
        pointer = ctypes.c_uint64()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self._context = context
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(length))
        self.pointer = pointer.value

    def written(self) -> None:
        self._copy("cuMemcpyHtoD_v2", self.pointer, self._host, self.bytes)
        # From memory that is not pinned the call may come back before the last bytes are there.
        self._call("cuCtxSynchronize")

    def arrived(self, offset: int, length: int) -> None:
        # CUDA contexts are per thread.
        self._call("cuCtxSetCurrent", self._context)
        self._copy("cuMemcpyDtoH_v2", self._host + offset, self.pointer + offset, length)

    def wipe(self) -> None:
        ctypes.memset(self._host, _NAN, self.bytes)
        self.written()

    def bare_gbps(self) -> float:
        start = perf_counter()
        self.written()
        return self.bytes / (perf_counter() - start) / 1e9

    def _copy(self, name: str, target: int, source: int, length: int) -> None:
        arguments = (ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(length))
        self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answers CUDA error {code}")
