"""Frames of GPU memory, copies and offers: requests are written, replies are read."""

from __future__ import annotations

from struct import Struct
from typing import List, Sequence, Tuple

from .layout import (
    DIGEST_BYTES,
    GPU_HANDLE_BYTES,
    GPU_UUID_BYTES,
    CopyItem,
    GpuDevice,
    GpuMemoryItem,
    GpuRegistered,
    Op,
    Outcome,
    Readable,
    WarmOffer,
)
from .protocol import (
    TWO,
    check_length,
    check_u32,
    check_u64,
    read_outcome,
    request,
)

_DEVICE = Struct("<16sQiIII")
_MEMORY = Struct("<16sIIQQQ64s")
_REGISTERED = Struct("<IIII")
_PIECE = Struct("<IIIIQQQ")

_CHANNEL = 1
_DMA_BUF, _BATCHES = 1, 2
_OK, _LOST = 0, 1
_IPC, _DESCRIPTOR = 1, 2
_VERIFY = 1


def gpu_devices_request(request_id: int, wants_channel: bool) -> bytes:
    return request(Op.GPU_DEVICES, request_id, 0, TWO.pack(_CHANNEL if wants_channel else 0, 0))


def read_gpu_devices(count: int, body: Readable) -> Tuple[bool, List[GpuDevice]]:
    """Whether a socket for descriptors came along, and the devices."""
    check_length(Op.GPU_DEVICES, body, TWO.size + count * _DEVICE.size)
    flags, reserved = TWO.unpack_from(body)
    if flags & ~_CHANNEL or reserved != 0:
        raise ValueError("GPU_DEVICES: a reserved field in use")
    items = _DEVICE.iter_unpack(bytes(body[TWO.size :]))
    return flags == _CHANNEL, [_device(*fields) for fields in items]


def _device(
    uuid: bytes, memory_bytes: int, numa: int, flags: int, state: int, reserved: int
) -> GpuDevice:
    if flags & ~(_DMA_BUF | _BATCHES) or reserved != 0:
        raise ValueError("GPU_DEVICES: a reserved field in use")
    if state not in (_OK, _LOST) or numa < -1:
        raise ValueError("GPU_DEVICES: a state or a node out of range")
    node = None if numa == -1 else numa
    dma_buf, batches = bool(flags & _DMA_BUF), bool(flags & _BATCHES)
    return GpuDevice(uuid, memory_bytes, node, dma_buf, batches, state == _LOST)


def gpu_register_request(request_id: int, memories: Sequence[GpuMemoryItem]) -> bytes:
    parts = []
    for one in memories:
        handle = bytes(GPU_HANDLE_BYTES) if one.handle is None else one.handle
        if len(one.uuid) != GPU_UUID_BYTES or len(handle) != GPU_HANDLE_BYTES:
            raise ValueError("a device's uuid is 16 bytes, a handle of memory 64")
        kind = _DESCRIPTOR if one.handle is None else _IPC
        sizes = (
            check_u64(one.offset, "offset"),
            check_u64(one.length, "length"),
            check_u64(one.allocation_bytes, "allocation"),
        )
        parts.append(_MEMORY.pack(one.uuid, kind, 0, *sizes, handle))
    return request(Op.GPU_REGISTER, request_id, len(memories), b"".join(parts))


def read_gpu_register(count: int, body: Readable) -> List[GpuRegistered]:
    check_length(Op.GPU_REGISTER, body, count * _REGISTERED.size)
    answers = []
    for number, memory, code, reserved in _REGISTERED.iter_unpack(body):
        outcome = read_outcome(number)
        is_said = (outcome == Outcome.OK) == (memory != 0)
        if not is_said or (code != 0 and outcome != Outcome.DEVICE) or reserved != 0:
            raise ValueError("GPU_REGISTER: an answer that contradicts itself")
        answers.append(GpuRegistered(outcome, memory, code))
    return answers


def gpu_unregister_request(request_id: int, memories: Sequence[int]) -> bytes:
    body = b"".join(TWO.pack(check_u32(memory, "memory"), 0) for memory in memories)
    return request(Op.GPU_UNREGISTER, request_id, len(memories), body)


def gpu_copy_request(
    op: Op, request_id: int, pieces: Sequence[CopyItem], verify: bool = False
) -> bytes:
    """GPU_STORE and GPU_LOAD, which have one shape."""
    parts = [TWO.pack(_VERIFY if verify and op == Op.GPU_LOAD else 0, 0)]
    for piece in pieces:
        parts.append(
            _PIECE.pack(
                check_u32(piece.slot, "slot"),
                check_u32(piece.generation, "generation"),
                check_u32(piece.memory, "memory"),
                0,
                check_u64(piece.slot_offset, "offset"),
                check_u64(piece.memory_offset, "offset"),
                check_u64(piece.length, "length"),
            )
        )
    return request(op, request_id, len(pieces), b"".join(parts))


def gpu_warm_request(
    request_id: int, offer: int, deadline_ms: int, outcomes: Sequence[Outcome]
) -> bytes:
    head = TWO.pack(check_u32(offer, "offer"), check_u32(deadline_ms, "deadline"))
    items = b"".join(TWO.pack(int(outcome), 0) for outcome in outcomes)
    return request(Op.GPU_WARM, request_id, len(outcomes), head + items)


def read_gpu_warm(count: int, body: Readable) -> WarmOffer:
    check_length(Op.GPU_WARM, body, TWO.size + count * DIGEST_BYTES)
    number, layer = TWO.unpack_from(body)
    if (number == 0) != (count == 0) or (number == 0 and layer != 0):
        raise ValueError("GPU_WARM: an offer has a number and blocks, or neither")
    start = TWO.size
    digests = [bytes(body[at : at + DIGEST_BYTES]) for at in range(start, len(body), DIGEST_BYTES)]
    return WarmOffer(number, layer, digests)
