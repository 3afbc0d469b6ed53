"""Memory of a GPU as engines have it: allocated at once, or mapped from pieces."""

from __future__ import annotations

import ctypes
from typing import Any, List

_DEVICE = 0
_PINNED, _POSIX_DESCRIPTOR, _ON_DEVICE, _READ_WRITE = 1, 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class CudaMemory:
    """Memory of the first device, with copies from and to this process."""

    def __init__(self, library: str) -> None:
        self._cuda: Any = ctypes.CDLL(library)
        self._context = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        device = ctypes.c_int(_DEVICE)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, length: int) -> int:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(length))
        return pointer.value

    def mapped(self, segments: int, hole: int = -1) -> "tuple[int, int]":
        """So many segments next to each other; where they begin, and the length of one.

        Nothing is mapped where the hole is.
        """
        location = _Location(_ON_DEVICE, _DEVICE)
        properties = _Properties(_PINNED, _POSIX_DESCRIPTOR, location, None, 0)
        length = ctypes.c_size_t()
        how = ctypes.c_int(0)
        what = ctypes.byref(properties)
        self._call("cuMemGetAllocationGranularity", ctypes.byref(length), what, how)
        size, zero = length.value, ctypes.c_size_t(0)
        start, all_of_it = ctypes.c_uint64(), ctypes.c_size_t(segments * size)
        nothing = (zero, ctypes.c_uint64(0), ctypes.c_ulonglong(0))
        self._call("cuMemAddressReserve", ctypes.byref(start), all_of_it, *nothing)
        access = _Access(location, _READ_WRITE)
        for segment in range(segments):
            if segment == hole:
                continue
            handle, at = ctypes.c_uint64(), ctypes.c_uint64(start.value + segment * size)
            self._call("cuMemCreate", ctypes.byref(handle), length, what, nothing[2])
            self._call("cuMemMap", at, length, zero, handle, nothing[2])
            self._call("cuMemSetAccess", at, length, ctypes.byref(access), ctypes.c_size_t(1))
        return start.value, size

    def write(self, pointer: int, data: bytes) -> None:
        size = ctypes.c_size_t(len(data))
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_char_p(data), size)
        # It returns when the bytes are on their way.
        self._call("cuCtxSynchronize")

    def read(self, pointer: int, length: int) -> bytes:
        data = ctypes.create_string_buffer(length)
        size = ctypes.c_size_t(length)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), size)
        return data.raw

    def _call(self, name: str, *arguments: Any) -> None:
        code: int = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answers CUDA error {code}")


class Tensor:
    """The part of PyTorch's tensor that register_gpu_memory uses."""

    def __init__(self, pointer: int, shape: List[int], contiguous: bool = True) -> None:
        self._pointer = pointer
        self._shape = shape
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return self._pointer

    def numel(self) -> int:
        count = 1
        for length in self._shape:
            count *= length
        return count

    def element_size(self) -> int:
        return 2

    def is_contiguous(self) -> bool:
        return self._contiguous
