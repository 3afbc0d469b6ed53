"""CUDA's driver by ctypes, as far as memory is handed to another process with it."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Generator, NamedTuple, Optional, Tuple

from .errors import HearthError

_SUCCESS = 0
_DEVICE_ORDINAL = 9
_POSIX_DESCRIPTOR = 1
_UUID_BYTES = 16
HANDLE_BYTES = 64


class CudaError(HearthError):
    """A driver call failed. ``code`` is its CUresult, 0 if no driver is loaded."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.code = code
        super().__init__(f"{call}: {text}" if code == 0 else f"{call}: CUDA error {code} ({text})")


class Shared(NamedTuple):
    """A part of one allocation, as another process can open it. One of the last two is None."""

    uuid: bytes
    #: As this process knows it.
    pointer: int
    length: int
    #: Where the part begins in its allocation, and how long that is.
    offset: int
    allocation_bytes: int
    handle: Optional[bytes]
    #: The caller's, to be closed.
    descriptor: Optional[int]


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class _Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * _UUID_BYTES)]


class Cuda:
    """One driver library. Each call names its context, because contexts belong to threads."""

    def __init__(self, library: Optional[str] = None) -> None:
        name = library or "libcuda.so.1"
        #: By ordinal. Kept for the process's life, as PyTorch keeps its own.
        self._contexts: Dict[int, ctypes.c_void_p] = {}
        try:
            self._library: Any = ctypes.CDLL(name)
        except OSError as error:
            raise CudaError("dlopen", 0, str(error)) from error
        self._call("cuInit", ctypes.c_uint(0))

    def share(self, pointer: int, length: int) -> Generator[Shared, None, None]:
        """The memory at ``pointer``, allocation by allocation."""
        if pointer <= 0 or length <= 0:
            raise ValueError("memory on a GPU has an address and a length")
        before = self._current()
        try:
            # A thread without a context may be answered nothing; whose it is does not matter.
            if not before.value:
                self._enter(0)
            device = self._device_of(pointer)
            self._enter(device)
            uuid = self._uuid(device)
            at, end = pointer, pointer + length
            while at < end:
                base, size = self._range(at)
                part = min(end, base + size) - at
                handle, descriptor = self._export(base, at)
                yield Shared(uuid, at, part, at - base, size, handle, descriptor)
                at += part
        finally:
            self._call("cuCtxSetCurrent", before)

    def _device_of(self, pointer: int) -> int:
        ordinal = ctypes.c_int(-1)
        attribute = ctypes.c_int(_DEVICE_ORDINAL)
        out = ctypes.byref(ordinal)
        self._call("cuPointerGetAttribute", out, attribute, ctypes.c_uint64(pointer))
        return ordinal.value

    def _current(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return context

    def _enter(self, ordinal: int) -> None:
        """Makes the device's context this thread's."""
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        if ordinal not in self._contexts:
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[ordinal] = context
        self._call("cuCtxSetCurrent", self._contexts[ordinal])

    def _uuid(self, ordinal: int) -> bytes:
        uuid, device = _Uuid(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        name = "cuDeviceGetUuid_v2" if self._has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self._call(name, ctypes.byref(uuid), device)
        return ctypes.string_at(ctypes.byref(uuid), _UUID_BYTES)

    def _range(self, pointer: int) -> Tuple[int, int]:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        at = ctypes.c_uint64(pointer)
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), at)
        return base.value, size.value

    def _export(self, base: int, pointer: int) -> Tuple[Optional[bytes], Optional[int]]:
        """A handle, or a descriptor where the memory is mapped and has no handle."""
        handle = _IpcHandle()
        # Some drivers refuse any other place than its beginning.
        refused = self._try("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        if refused == _SUCCESS:
            return ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES), None
        allocation, at = ctypes.c_uint64(), ctypes.c_uint64(pointer)
        retained = self._try("cuMemRetainAllocationHandle", ctypes.byref(allocation), at)
        if retained != _SUCCESS:
            raise self._error("cuIpcGetMemHandle", refused)
        descriptor = ctypes.c_int(-1)
        kind, flags = ctypes.c_int(_POSIX_DESCRIPTOR), ctypes.c_ulonglong(0)
        try:
            out = ctypes.byref(descriptor)
            self._call("cuMemExportToShareableHandle", out, allocation, kind, flags)
        finally:
            self._call("cuMemRelease", allocation)
        return None, descriptor.value

    # --- how --------------------------------------------------------------------------------------

    def _has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def _try(self, name: str, *arguments: Any) -> int:
        if not self._has(name):
            raise CudaError(name, 0, "this driver does not have it")
        code: int = getattr(self._library, name)(*arguments)
        return code

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._try(name, *arguments)
        if code != _SUCCESS:
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> CudaError:
        text = ctypes.c_char_p()
        self._try("cuGetErrorString", ctypes.c_int(code), ctypes.byref(text))
        return CudaError(name, code, (text.value or b"unknown").decode("utf-8", "replace"))


_opened: Dict[Optional[str], Cuda] = {}


def open_cuda(library: Optional[str] = None) -> Cuda:
    """The driver, opened once. CudaError where there is none."""
    if library not in _opened:
        _opened[library] = Cuda(library)
    return _opened[library]
