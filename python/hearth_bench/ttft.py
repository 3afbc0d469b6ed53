"""Time to the first token with a prompt computed, and with its keys and values restored.

Its argument is what computes, "torch" or "hash". When that is there, it says so, reads the plan
from the first line of standard input and measures with everything in RAM; each further line
``ssd`` says that the agent began anew and has all of it on SSD alone. Writes events to standard
output, one line of JSON each. Ends with standard input.
"""

from __future__ import annotations

import json
import random
import sys
from time import perf_counter
from typing import Any, Callable, Dict, List

from .computing import Computing
from .hashing import Hashing
from .plan import Plan
from .restoring import Agent

_SEED = 11


class Prompt:
    """Tokens, their pages, and the logits computed from them."""

    def __init__(self, plan: Plan, count: int) -> None:
        chance = random.Random(f"{_SEED} {count}")
        self.tokens = [chance.randrange(plan.shape.vocabulary) for _ in range(count)]
        self.blocks = plan.restored_blocks(count)
        # Pages of an engine's cache follow each other by chance.
        self.table = list(range(plan.pages))
        chance.shuffle(self.table)
        self.table = self.table[: count // plan.block_tokens]
        #: Logits of the last tokens, computed from a cache that never left the device.
        self.logits: Any = None


class Bench:
    def __init__(self, plan: Plan, computing: Computing) -> None:
        self._plan = plan
        self._computing = computing
        self._agent = Agent(plan, self._computing.memory)
        self._prompts: List[Prompt] = []

    def ram(self) -> None:
        """Each prompt computed, stored, and restored from RAM."""
        for count in self._plan.prompts:
            prompt = Prompt(self._plan, count)
            prefill_ms = [self._prefill(prompt) for _ in range(self._plan.rounds + 1)]
            self._keep(prompt)
            self._agent.store(self._agent.identify(prompt.tokens)[: prompt.blocks], prompt.table)
            restored = [self._restore(prompt) for _ in range(self._plan.rounds + 1)]
            self._tell("ram", prompt, restored[1:], prefill_ms=prefill_ms[1:])
            self._prompts.append(prompt)

    def ssd(self) -> None:
        """Each prompt restored once by an agent that has it on SSD alone."""
        self._agent = Agent(self._plan, self._computing.memory)
        for prompt in self._prompts:
            self._tell("ssd", prompt, [self._restore(prompt)])

    def leave(self) -> None:
        self._agent.close()

    def _prefill(self, prompt: Prompt) -> float:
        start = perf_counter()
        self._computing.prefill(prompt.tokens, prompt.table)
        return (perf_counter() - start) * 1e3

    def _keep(self, prompt: Prompt) -> None:
        memory = self._computing.memory
        memory.written()
        prompt.logits = self._computing.finish(
            prompt.tokens, prompt.blocks, prompt.table, lambda layer: None
        )

    def _restore(self, prompt: Prompt) -> Dict[str, Any]:
        memory = self._computing.memory
        memory.wipe()
        start = perf_counter()
        digests = self._agent.identify(prompt.tokens)[: prompt.blocks]
        restoring = self._agent.start(digests, prompt.table)
        logits = self._computing.finish(
            prompt.tokens, prompt.blocks, prompt.table, restoring.arrived
        )
        whole = perf_counter() - start
        load = restoring.finish()
        same = self._computing.same(logits, prompt.logits)
        return {"ms": whole * 1e3, "load_ms": load * 1e3, "identical": same}

    def _tell(
        self, event: str, prompt: Prompt, restored: List[Dict[str, Any]], **more: Any
    ) -> None:
        plan = self._plan
        length = prompt.blocks * plan.shape.layers * plan.page_bytes
        tokens = prompt.blocks * plan.block_tokens
        emit(
            event=event,
            prompt_tokens=len(prompt.tokens),
            restored_tokens=tokens,
            bytes=length,
            restore_ms=[one["ms"] for one in restored],
            load_ms=[one["load_ms"] for one in restored],
            identical=all(one["identical"] for one in restored),
            bare_gbps=self._computing.memory.bare_gbps(),
            **more,
        )


def _find(compute: str) -> Callable[[Plan], Computing]:
    """The class that computes. ImportError: PyTorch is required and not installed."""
    if compute == "hash":
        return Hashing
    from .transformer import Transformer

    return Transformer


def emit(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    make = _find(sys.argv[1])
    emit(event="started")
    line = sys.stdin.readline()
    if not line:
        return
    plan = Plan.read(line)
    bench = Bench(plan, make(plan))
    bench.ram()
    bench.leave()
    emit(event="stored")
    for line in sys.stdin:
        if line.strip() != "ssd":
            raise ValueError(f"not a command: {line!r}")
        bench.ssd()
        bench.leave()
        emit(event="done")


if __name__ == "__main__":
    main()
