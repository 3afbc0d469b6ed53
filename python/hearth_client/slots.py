"""Which slots of the arena this process has, and when the agent gets them back."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple, TypeVar
from weakref import ref

from . import protocol
from .calls import reader_of_outcomes
from .connection import Connection
from .engine import EngineCalls
from .errors import HearthError
from .held import Held, ReadableBlock, WritableSlot
from .keep_alive import KeepAlive
from .layout import Handle, Op, Outcome

_AnyHeld = TypeVar("_AnyHeld", WritableSlot, ReadableBlock)


class SlotCalls(EngineCalls):
    """Keeps account of slots. Use Client.

    A slot that the caller gives back while an array still refers to its bytes stays reserved or
    acquired until the array is gone: its finalizer queues the handle, and the next call, or the
    thread that renews the lease, sends it.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._arena = connection.arena
        self._held: Dict[int, Held] = {}
        #: Slots given back by the caller that other objects still refer to.
        self._lingering: Dict[int, "ref[Any]"] = {}
        #: Those whose last such object is gone. Finalizers append to it, from any thread.
        self._unused: Deque[Tuple[Op, Handle]] = deque()
        self._keep_alive = KeepAlive(self._renew, self.hello.lease_ms / 3000)

    def _check_place(self, outcome: Outcome, offset: int, length: int) -> None:
        if outcome == Outcome.OK and offset + length > self._arena.size:
            raise self._connection.broken(f"{length} bytes at {offset} are not in the arena")

    def _hold(self, one: _AnyHeld) -> _AnyHeld:
        if one.outcome == Outcome.OK:
            with self._lock:
                self._held[id(one)] = one
            self._keep_alive.start()
        return one

    def _take_unreferenced(self, slots: Sequence[WritableSlot]) -> None:
        """The caller's slots no more. BufferError, and all stay, if another object uses one."""
        with self._lock:
            if any(id(slot) not in self._held for slot in slots):
                raise ValueError("a slot that is not held: refused, or given back already")
            exports = [slot._forget_view() for slot in slots]
            if any(export is not None for export in exports):
                for slot, export in zip(slots, exports):
                    if export is not None:
                        slot._keep_view(export)
                raise BufferError(
                    "an array or another object still refers to a slot's bytes: "
                    "delete it before the commit"
                )
            for slot in slots:
                del self._held[id(slot)]
                slot._close()

    def _let_go(self, held: Sequence[Held]) -> None:
        """Gives back the slots that are still held, each as soon as no object refers to it."""
        with self._lock:
            live = [one for one in held if self._held.pop(id(one), None) is not None]
        self._give_back([one for one in live if not self._lingers(one)])

    def _lingers(self, one: Held) -> bool:
        """Ends the slot's own view. True: another object refers to its bytes."""
        export = one._forget_view()
        if export is None:
            return False
        op, handle, key = self._op_of(one), one.handle, id(export)
        one._close()

        def forget(_gone: object) -> None:
            self._lingering.pop(key, None)
            self._unused.append((op, handle))

        self._lingering[key] = ref(export, forget)
        return True

    def _give_back(self, held: Sequence[Held]) -> None:
        for op in (Op.ABORT, Op.RELEASE):
            self._send_handles(op, [one.handle for one in held if self._op_of(one) == op])
        self._report([one.handle for one in held if self._op_of(one) == Op.REPORT])
        for one in held:
            one._close()

    def _report(self, handles: Sequence[Handle]) -> None:
        """Waits until the agent has looked: a damaged block may be stored again after that."""
        for start in range(0, len(handles), self.hello.items_max):
            part = handles[start : start + self.hello.items_max]
            try:
                self._ask(
                    Op.REPORT,
                    lambda number: protocol.handles_request(Op.REPORT, number, part),
                    reader_of_outcomes(Op.REPORT),
                )
            except HearthError:
                return

    def _op_of(self, held: Held) -> Op:
        if isinstance(held, WritableSlot):
            return Op.ABORT
        is_damaged = isinstance(held, ReadableBlock) and held.is_damaged
        return Op.REPORT if is_damaged and self._connection.takes_reports else Op.RELEASE

    def _send_unused(self) -> None:
        handles: Dict[Op, List[Handle]] = {}
        while self._unused:
            try:
                op, handle = self._unused.popleft()
            except IndexError:
                break  # Another thread was faster.
            handles.setdefault(op, []).append(handle)
        for op, some in handles.items():
            self._send_handles(op, some)

    def _before_call(self) -> None:
        if self._unused:
            self._send_unused()

    def _send_handles(self, op: Op, handles: Sequence[Handle]) -> None:
        """Sends without waiting for replies; a closed connection is ignored."""
        for start in range(0, len(handles), self.hello.items_max):
            part = handles[start : start + self.hello.items_max]
            try:
                self._connection.post(
                    lambda number: protocol.handles_request(op, number, part, no_reply=True)
                )
            except HearthError:
                return

    def _renew(self) -> None:
        """A sign of life while the agent counts slots for this connection."""
        try:
            self._connection.poll()
            self._send_unused()
            if self._held or self._lingering or self._connection.is_owed:
                self._connection.post(lambda n: protocol.ping_request(n, b"", no_reply=True))
        except HearthError:
            self._keep_alive.stop()

    def _end_slots(self) -> None:
        """Gives back all slots that nothing refers to."""
        self._keep_alive.stop()
        with self._lock:
            held: List[Held] = list(self._held.values())
            self._held.clear()
        self._send_unused()
        free: List[Held] = []
        for one in held:
            export: Optional[Any] = one._forget_view()
            if export is None:
                free.append(one)
            one._close()
        self._give_back(free)
