"""The agent's arena, registered with CUDA in the background, slice by slice.

Registration takes seconds for tens of GiB. Until a slice is registered, CUDA copies it as pageable
memory: slower, and the copy has ended when its call returns.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Iterator, List, Optional, Tuple

from hearth_client.errors import HearthError

logger = logging.getLogger("vllm.hearth")

#: A registration of this size delays other calls of CUDA by some tens of milliseconds.
SLICE_BYTES = 128 << 20
_PORTABLE = 1
_CLOSE_S = 2.0


class _Arena:
    def __init__(self, address: int, size: int, owner: object) -> None:
        self.address = address
        self.size = size
        #: Keeps the arena mapped. CUDA would copy its pages if another one had its address.
        self.owner = owner
        #: Bytes from the start on that are registered.
        self.registered = 0
        self.is_refused = False
        #: Copies in progress.
        self.users = 0

    def has(self, address: int) -> bool:
        return 0 <= address - self.address < self.size


class ArenaUse:
    """Keeps an arena registered during a copy."""

    def __init__(self, changed: threading.Condition, arena: Optional[_Arena], step: int) -> None:
        self._changed, self._arena, self._step = changed, arena, step

    def pieces(self, address: int, length: int) -> Iterator[Tuple[int, int]]:
        """Address and bytes of the range's parts: CUDA refuses copies across registrations."""
        end = address + length
        while address < end and self._arena is not None:
            start = self._arena.address
            stop = start + ((address - start) // self._step + 1) * self._step
            yield address, min(stop, end) - address
            address = stop
        if address < end:
            yield address, end - address

    def end(self) -> None:
        """The copy has ended. May be called again."""
        arena, self._arena = self._arena, None
        if arena is not None:
            with self._changed:
                arena.users -= 1
                self._changed.notify_all()


class Registration:
    """Registers the arena that was announced last. A thread of its own makes all calls of CUDA."""

    def __init__(self, runtime: Callable[[], Any], slice_bytes: int = SLICE_BYTES) -> None:
        """``runtime``: called once by the thread; answers CUDA's runtime for the right device."""
        self._runtime = runtime
        self._slice_bytes = slice_bytes
        self._changed = threading.Condition()
        self._arena: Optional[_Arena] = None
        #: Arenas that are still registered; no copy begins from or to them.
        self._retired: List[_Arena] = []
        self._is_closed = False
        self._thread: Optional[threading.Thread] = None

    def announce(self, mapped: Tuple[int, int, object]) -> None:
        """Address, size and owner of the arena of a new connection. Returns at once."""
        with self._changed:
            if self._is_closed:
                return
            self._retire()
            self._arena = _Arena(*mapped)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hearth-register", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _retire(self) -> None:
        if self._arena is not None:
            self._retired.append(self._arena)
        self._arena = None

    def use(self, address: int) -> ArenaUse:
        """Before a copy from or to a slot. HearthError: it lies in the arena of an old connection.

        The caller ends the use when the copy has ended.
        """
        with self._changed:
            arena = self._arena
            if arena is not None and arena.has(address):
                arena.users += 1
                return ArenaUse(self._changed, arena, self._slice_bytes)
            if any(old.has(address) for old in self._retired):
                raise HearthError("the connection of this slot was replaced")
        return ArenaUse(self._changed, None, self._slice_bytes)

    @property
    def registered_bytes(self) -> int:
        """Registered bytes of the arena in use."""
        arena = self._arena
        return 0 if arena is None else arena.registered

    def close(self) -> None:
        """Unregisters everything; waits for that for a short time."""
        with self._changed:
            self._is_closed = True
            self._retire()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            runtime = self._runtime()
            more = True
            while more:
                more = self._step(runtime)
        except Exception:
            logger.exception("arena not registered with CUDA, copies are slower")
            with self._changed:
                self._is_closed = True

    def _step(self, runtime: Any) -> bool:
        """Waits for work and does one part of it. False: the end. Keeps no arena after that."""
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._is_closed and not self._retired:
                return False
            old = next((one for one in self._retired if one.users == 0), None)
            arena = self._arena
        # A lost agent's memory is freed first: the next agent may need it.
        if old is not None:
            self._unregister(runtime, old)
        elif arena is not None:
            self._register(runtime, arena)
        return True

    def _has_work(self) -> bool:
        if any(one.users == 0 for one in self._retired):
            return True
        if self._is_closed and not self._retired:
            return True
        arena = self._arena
        return arena is not None and not arena.is_refused and arena.registered < arena.size

    def _register(self, runtime: Any, arena: _Arena) -> None:
        """The next slice. An error stays with this thread: others would see it at their calls."""
        at = arena.registered
        size = min(self._slice_bytes, arena.size - at)
        code = int(runtime.cudaHostRegister(arena.address + at, size, _PORTABLE))
        if code == 0:
            arena.registered += size
            return
        arena.is_refused = True
        logger.warning(
            "arena not registered with CUDA, copies are slower: error %d at %d of %d bytes",
            *(code, at, arena.size),
        )

    def _unregister(self, runtime: Any, arena: _Arena) -> None:
        while arena.registered > 0:
            arena.registered = (arena.registered - 1) // self._slice_bytes * self._slice_bytes
            runtime.cudaHostUnregister(arena.address + arena.registered)
        with self._changed:
            self._retired.remove(arena)
