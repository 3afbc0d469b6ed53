"""The way of keys and values to the agent and back."""

from __future__ import annotations

from threading import Event, Thread
from time import perf_counter
from typing import Any, List, Optional, Sequence

from hearth_client import Block, Client, Manifest, Outcome, Piece

from .memory import Memory
from .plan import Plan

#: Nothing is late here.
_PATIENCE_MS = 60_000
_LAYER_SECONDS = 120.0


class Agent:
    """Connections of this process to the agent, each with the memory registered."""

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self._plan = plan
        self._memory = memory
        manifest = Manifest(
            model="hearth/ttft",
            dtype="bfloat16",
            layout="hearth:paged",
            block_tokens=plan.block_tokens,
            extra={"shape": repr(plan.shape)},
        )
        self._clients: List[Client] = []
        self._memories: List[Any] = []
        for number in range(plan.connections):
            client = Client(plan.socket, manifest, name=f"ttft-{number}", timeout=120.0)
            self._clients.append(client)
            self._memories.append(
                client.register_gpu_memory(memory.pointer, memory.bytes, library=plan.library)
            )

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def identify(self, tokens: Sequence[int]) -> List[bytes]:
        return self._clients[0].identify(tokens)

    def _pieces(self, layer: int, slots: Sequence[Any], table: Sequence[int]) -> List[Piece]:
        """A page for each block."""
        length = self._plan.page_bytes
        start = layer * self._plan.layer_bytes
        return [Piece(slot, 0, start + page * length, length) for slot, page in zip(slots, table)]

    def store(self, digests: Sequence[bytes], table: Sequence[int]) -> None:
        """All layers of these blocks, from their pages. RuntimeError where one finds no room."""
        client, memory = self._clients[0], self._memories[0]
        length = self._plan.page_bytes
        parents: List[Optional[bytes]] = [None, *digests[:-1]]
        blocks = [Block(digest, length, parent) for digest, parent in zip(digests, parents)]
        step = client.hello.items_max
        for layer in range(self._plan.shape.layers):
            for first in range(0, len(blocks), step):
                slots = client.reserve(blocks[first : first + step], layer=layer)
                _all_ok("reserve", [slot.outcome for slot in slots])
                pieces = self._pieces(layer, slots, table[first : first + step])
                _all_ok("store", client.store_from_gpu(memory, pieces))
                _all_ok("commit", client.commit(slots))

    def start(self, digests: Sequence[bytes], table: Sequence[int]) -> "Restoring":
        return Restoring(self, digests, table)

    def load(self, number: int, layer: int, digests: Sequence[bytes], table: Sequence[int]) -> None:
        """One layer of these blocks, into their pages."""
        client, memory = self._clients[number], self._memories[number]
        step = client.hello.items_max
        for first in range(0, len(digests), step):
            part = digests[first : first + step]
            with client.acquired(part, layer=layer, deadline_ms=_PATIENCE_MS) as blocks:
                _all_ok("acquire", [block.outcome for block in blocks])
                pieces = self._pieces(layer, blocks, table[first : first + step])
                _all_ok("load", client.load_to_gpu(memory, pieces))
        length = self._plan.layer_bytes
        self._memory.arrived(layer * length, length)

    @property
    def plan(self) -> Plan:
        return self._plan


class Restoring:
    """Layers on their way into the memory, layer 0 first, several connections in turn."""

    def __init__(self, agent: Agent, digests: Sequence[bytes], table: Sequence[int]) -> None:
        self._agent = agent
        self._digests = digests
        self._table = table
        layers = agent.plan.shape.layers
        self._there = [Event() for _ in range(layers)]
        self._error: Optional[BaseException] = None
        self._start = perf_counter()
        self._ends = [0.0] * layers
        count = agent.plan.connections
        self._threads = [Thread(target=self._run, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        try:
            for layer in range(number, len(self._there), self._agent.plan.connections):
                self._agent.load(number, layer, self._digests, self._table)
                self._ends[layer] = perf_counter()
                self._there[layer].set()
        except BaseException as error:  # Raised by the thread that waits for a layer.
            self._error = error
            for event in self._there:
                event.set()

    def arrived(self, layer: int) -> None:
        """Returns when the layer lies in the memory."""
        if not self._there[layer].wait(_LAYER_SECONDS):
            raise RuntimeError(f"layer {layer} did not come")
        if self._error is not None:
            raise RuntimeError(f"layers could not be loaded: {self._error}") from self._error

    def finish(self) -> float:
        """Waits for all; seconds from the first request to the last layer."""
        for thread in self._threads:
            thread.join()
        self.arrived(len(self._there) - 1)
        return max(self._ends) - self._start


def _all_ok(what: str, outcomes: Sequence[Outcome]) -> None:
    bad = [outcome.name for outcome in outcomes if outcome != Outcome.OK]
    if bad:
        raise RuntimeError(f"{what}: {len(bad)} of {len(outcomes)} blocks are {bad[0]}")
