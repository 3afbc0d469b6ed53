"""GPU memory that the agent copies from and to."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from itertools import islice
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import protocol_gpu as frames
from .calls import Calls, reader_of_outcomes
from .connection import Connection
from .cuda import CudaError, Shared, open_cuda
from .errors import HearthError, TimedOut
from .gpu_memory import GpuMemory, Piece, address_of, items_of
from .layout import (
    FEATURE_GPU,
    CopyItem,
    GpuDevice,
    GpuMemoryItem,
    GpuRegistered,
    Op,
    Outcome,
    WarmOffer,
)
from .request import Request

#: Memories of one request; their descriptors wait in a socket that holds a few hundred.
_REGISTER_MAX = 64
#: Requests sent ahead of their replies; the agent takes 64 from a connection.
_AHEAD_MAX = 32


class GpuCalls(Calls):
    """Calls of a Client that uses a GPU. Use Client."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._channel: Optional[socket.socket] = None
        #: One registration at a time: descriptors and requests go out in the same order.
        self._gpu_lock = threading.RLock()

    @property
    def has_gpu(self) -> bool:
        """Whether the agent copies from and to GPUs."""
        return bool(self.hello.features & FEATURE_GPU)

    def gpu_devices(self) -> List[GpuDevice]:
        """The GPUs that the agent copies from and to."""
        return self._ask(
            Op.GPU_DEVICES,
            lambda number: frames.gpu_devices_request(number, False),
            frames.read_gpu_devices,
        )[1]

    # --- memory -----------------------------------------------------------------------------------

    def register_gpu_memory(
        self, memory: Any, length: Optional[int] = None, *, library: Optional[str] = None
    ) -> GpuMemory:
        """Hands memory to the agent: a contiguous tensor, or an address and a length in bytes.

        Memory of any allocator: by its IPC handle, or by a descriptor where it is mapped (PyTorch's
        expandable segments, vLLM's sleep mode). CudaError where neither goes, or the agent's driver
        refuses it; ValueError where the agent does, which a device that it does not have is.
        """
        pointer, size = address_of(memory, length)
        registered = GpuMemory(pointer, size, [])
        with self._gpu_lock:
            with closing(open_cuda(library).share(pointer, size)) as shares:
                try:
                    while self._register_some(shares, registered):
                        pass
                except (HearthError, ValueError):
                    if not self._connection.closed:
                        self._drop([number for _start, _length, number in registered.parts])
                    raise
            return registered

    def _register_some(self, shares: Iterator[Shared], memory: GpuMemory) -> bool:
        """The next parts, as many as fit a request; False when there are none left."""
        some: List[Shared] = []
        try:
            # All exist before the first is sent: a descriptor sent and not named would be taken
            # for a part of the next memory.
            for one in islice(shares, _REGISTER_MAX):
                some.append(one)
            if not some:
                return False
            self._send_descriptors([one.descriptor for one in some if one.descriptor is not None])
        finally:
            for one in some:
                if one.descriptor is not None:
                    os.close(one.descriptor)
        items = [
            GpuMemoryItem(one.uuid, one.offset, one.length, one.allocation_bytes, one.handle)
            for one in some
        ]
        answers = self._ask(
            Op.GPU_REGISTER,
            lambda number: frames.gpu_register_request(number, items),
            frames.read_gpu_register,
            self._unregister_late,
        )
        self._same_length(answers, len(items))
        for one, answer in zip(some, answers):
            if answer.outcome == Outcome.OK:
                memory.parts.append((one.pointer, one.length, answer.memory))
        bad = [answer for answer in answers if answer.outcome != Outcome.OK]
        if bad:
            raise _refused(bad[0])
        return True

    def _unregister_late(self, count: int, body: bytes) -> None:
        """Takes back memory of a registration that nothing waits for any more."""
        answers = frames.read_gpu_register(count, body)
        numbers = [one.memory for one in answers if one.memory != 0]
        self._connection.abandon(
            self._connection.submit(
                Op.GPU_UNREGISTER,
                lambda number: frames.gpu_unregister_request(number, numbers),
            )
        )

    def _send_descriptors(self, descriptors: List[int]) -> None:
        if not descriptors:
            return
        channel = self._open_channel()
        try:
            for descriptor in descriptors:
                socket.send_fds(channel, [b"\0"], [descriptor])
        except OSError as error:
            self._connection.close()
            raise HearthError(f"a descriptor could not be sent: {error}") from error

    def _open_channel(self) -> socket.socket:
        if self._channel is None:
            with self._connection.descriptors() as found:
                came, _devices = self._ask(
                    Op.GPU_DEVICES,
                    lambda number: frames.gpu_devices_request(number, True),
                    frames.read_gpu_devices,
                )
            if not came and not found:
                raise CudaError("GPU_DEVICES", 0, "the agent has no GPU")
            if not came or len(found) != 1:
                for descriptor in found:
                    os.close(descriptor)
                raise self._connection.broken(f"{len(found)} descriptors instead of one")
            self._channel = socket.socket(fileno=found[0])
            self._channel.settimeout(self._connection.timeout)
        return self._channel

    def unregister_gpu_memory(self, memory: GpuMemory) -> None:
        """Takes it back. When this returns nothing is copied from or to it any more."""
        with self._gpu_lock:
            self._drop([number for _start, _length, number in memory.parts])
            memory.parts = []

    def _drop(self, numbers: List[int]) -> List[Outcome]:
        most = self.hello.items_max
        outcomes: List[Outcome] = []
        for first in range(0, len(numbers), most):
            part = numbers[first : first + most]
            outcomes += self._drop_some(part)
        return outcomes

    def _drop_some(self, numbers: List[int]) -> List[Outcome]:
        return self._outcomes(
            Op.GPU_UNREGISTER,
            len(numbers),
            lambda number: frames.gpu_unregister_request(number, numbers),
        )

    def _close_gpu(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # --- copies -----------------------------------------------------------------------------------

    def store_from_gpu(self, memory: GpuMemory, pieces: Sequence[Piece]) -> List[Outcome]:
        """Copies to slots that are reserved; one outcome for each piece.

        What writes the memory must have ended: synchronise its stream or an event before. Commit
        the slots afterwards; one of which a piece was not OK can only be aborted.
        """
        return self._copy(Op.GPU_STORE, memory, pieces, False)

    def submit_stores(
        self, memory: GpuMemory, pieces: Sequence[Piece]
    ) -> List[Tuple[Request, int]]:
        """As ``store_from_gpu``, without waiting: the requests, and the outcomes of each."""
        return [
            (self._connection.submit(Op.GPU_STORE, _frame(Op.GPU_STORE, items)), len(items))
            for _places, items in self._frames_of(memory, pieces)
        ]

    def load_to_gpu(
        self, memory: GpuMemory, pieces: Sequence[Piece], *, verify: bool = False
    ) -> List[Outcome]:
        """Copies from blocks that are acquired; the bytes are there when this returns.

        With ``verify`` the agent hashes them: CORRUPT where they are not what was committed.
        """
        return self._copy(Op.GPU_LOAD, memory, pieces, verify)

    def load_layers_to_gpu(
        self, memory: GpuMemory, layers: Sequence[Sequence[Piece]], *, verify: bool = False
    ) -> "LayerLoads":
        """Asks for all layers at once; they come in this order, while earlier ones are computed.

        Release the blocks when the last layer was waited for.
        """
        cut = [_Layer(self._frames_of(memory, pieces), len(pieces)) for pieces in layers]
        return LayerLoads(self, cut, verify)

    def _copy(
        self, op: Op, memory: GpuMemory, pieces: Sequence[Piece], verify: bool
    ) -> List[Outcome]:
        outcomes = [Outcome.OK] * len(pieces)
        for places, items in self._frames_of(memory, pieces):
            _spread(places, self._copy_frame(op, items, verify), outcomes)
        return outcomes

    def _copy_frame(self, op: Op, items: List[CopyItem], verify: bool) -> List[Outcome]:
        return self._outcomes(op, len(items), _frame(op, items, verify))

    def _frames_of(
        self, memory: GpuMemory, pieces: Sequence[Piece]
    ) -> List[Tuple[List[int], List[CopyItem]]]:
        """Items of a frame each, with the places of the pieces they belong to."""
        with self._gpu_lock:
            self._check_pieces(memory, pieces)
            split = [(at, item) for at, one in enumerate(pieces) for item in items_of(memory, one)]
        most = self.hello.items_max
        parts = [split[start : start + most] for start in range(0, len(split), most)]
        return [([at for at, _ in part], [item for _, item in part]) for part in parts]

    def _check_pieces(self, memory: GpuMemory, pieces: Sequence[Piece]) -> None:
        if not memory.parts:
            raise ValueError("memory that is not registered any more")
        for _block, _offset, memory_offset, length in pieces:
            if memory_offset < 0 or length <= 0 or memory_offset + length > memory.length:
                raise ValueError(f"{length} bytes at {memory_offset} are not in {memory.length}")

    # --- offers -----------------------------------------------------------------------------------

    def gpu_warm(
        self,
        last: Optional[WarmOffer] = None,
        outcomes: Sequence[Outcome] = (),
        *,
        wait_ms: int = 10_000,
    ) -> WarmOffer:
        """Says what became of the blocks of the ``last`` offer, and waits for the next.

        No slot is kept for the caller: acquire the blocks and load them. Other threads use the
        Client meanwhile. ``wait_ms`` is less than the client's timeout.
        """
        offer = 0 if last is None else last.number
        given = list(outcomes) if offer != 0 else []
        self._check_items(len(given))
        return self._ask(
            Op.GPU_WARM,
            lambda number: frames.gpu_warm_request(number, offer, wait_ms, given),
            frames.read_gpu_warm,
        )


class _Layer(NamedTuple):
    frames: List[Tuple[List[int], List[CopyItem]]]
    pieces: int


class LayerLoads:
    """Layers on their way to a GPU, the first one first."""

    def __init__(self, calls: GpuCalls, layers: List[_Layer], verify: bool) -> None:
        self._calls = calls
        self._verify = verify
        self._lock = threading.Lock()
        self._unsent = [(at, part) for at, layer in enumerate(layers) for part in layer.frames]
        #: Request, layer and places of each frame on its way.
        self._sent: List[Tuple[Request, int, List[int]]] = []
        self._outcomes = [[Outcome.OK] * layer.pieces for layer in layers]
        #: Frames of each layer that are not answered.
        self._missing = [len(layer.frames) for layer in layers]
        self._send()

    def __len__(self) -> int:
        return len(self._missing)

    def __iter__(self) -> Iterator[List[Outcome]]:
        for layer in range(len(self)):
            yield self.wait(layer)

    def wait(self, layer: int) -> List[Outcome]:
        """The outcomes of a layer's pieces, when it and all before it are there."""
        with self._lock:
            while any(self._missing[: layer + 1]):
                request, of, places = self._sent.pop(0)
                self._missing[of] -= 1
                try:
                    answers = self._calls._receive(request, reader_of_outcomes(Op.GPU_LOAD))
                except TimedOut:
                    _spread(places, [Outcome.LATE] * len(places), self._outcomes[of])
                    raise
                self._send()
                _spread(places, self._calls._same_length(answers, len(places)), self._outcomes[of])
        return self._outcomes[layer]

    def _send(self) -> None:
        connection = self._calls._connection
        while self._unsent and len(self._sent) < _AHEAD_MAX and not connection.closed:
            layer, (places, items) = self._unsent.pop(0)
            request = connection.submit(
                Op.GPU_LOAD, _frame(Op.GPU_LOAD, items, self._verify)
            )
            self._sent.append((request, layer, places))


def _frame(op: Op, items: List[CopyItem], verify: bool = False) -> Callable[[int], bytes]:
    return lambda number: frames.gpu_copy_request(op, number, items, verify)


def _spread(places: List[int], answers: List[Outcome], outcomes: List[Outcome]) -> None:
    """A piece that was cut is as good as the worst of its parts."""
    for place, answer in zip(places, answers):
        if answer != Outcome.OK:
            outcomes[place] = answer


def _refused(answer: GpuRegistered) -> Union[CudaError, ValueError]:
    if answer.outcome == Outcome.DEVICE:
        return CudaError("the agent's driver", answer.code, "it does not take this memory")
    return ValueError(f"the agent does not take this memory: {answer.outcome.name.lower()}")
