"""vLLM's two sides of HearthConnector, as vLLM calls them, without vLLM.

One object is the scheduler's connector, another the worker's; everything between them is pickled.
"""

from __future__ import annotations

import ctypes
import pickle
from types import SimpleNamespace
from typing import Any, List, Set, Tuple

from . import vllm_stand_ins as stand_ins
from .vllm_engine import BLOCK_BYTES, BLOCK_TOKENS, BLOCKS, content

LAYERS = 2
_LAYER_BYTES = BLOCK_BYTES // LAYERS


class ConnectorEngine:
    """`module` is hearth_vllm.connector on the stand-ins."""

    def __init__(self, module: Any, path: str) -> None:
        extra = {
            "hearth.socket": path,
            # A host under load answers late; no test of this engine is about that.
            "hearth.stall_ms": 30_000,
            "hearth.recompute_tokens_per_second": 1.0,
        }
        config = stand_ins.vllm_config(extra)
        caches = stand_ins.cache_config(BLOCKS, BLOCK_TOKENS)
        roles = module.KVConnectorRole
        self.scheduler = module.HearthConnector(config, roles.SCHEDULER, caches)
        self.worker = module.HearthConnector(config, roles.WORKER, caches)
        self.layers = [(ctypes.c_char * (BLOCKS * _LAYER_BYTES))() for _ in range(LAYERS)]
        tensors = {
            f"layers.{index}": stand_ins.Tensor(ctypes.addressof(one), BLOCKS, _LAYER_BYTES)
            for index, one in enumerate(self.layers)
        }
        self.worker.register_kv_caches(tensors)
        handshake = _sent(self.worker.get_handshake_metadata())
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        self._invalid: Set[int] = set()
        self._received: Set[str] = set()
        self._report: Any = None

    def close(self) -> None:
        for side in (self.worker, self.scheduler):
            side.shutdown()

    def write(self, block: int, key: bytes) -> None:
        data, at = content(key), block * _LAYER_BYTES
        for index, layer in enumerate(self.layers):
            part = data[index * _LAYER_BYTES : (index + 1) * _LAYER_BYTES]
            layer[at : at + _LAYER_BYTES] = part  # type: ignore[assignment]

    def read(self, block: int) -> bytes:
        at = block * _LAYER_BYTES
        return b"".join(bytes(layer[at : at + _LAYER_BYTES]) for layer in self.layers)

    def step(self, output: Any, forward: Any = lambda: None) -> Tuple[Any, Set[str]]:
        """One step: the plan, and the requests whose stores ended. `forward` computes."""
        metadata = _sent(self.scheduler.build_connector_meta(output))
        worker = self.worker
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv(None)
        forward()
        worker.wait_for_save()
        sent, received = worker.get_finished(set())
        self._received |= received or set()
        self._invalid |= worker.get_block_ids_with_load_errors()
        report = worker.build_connector_worker_meta()
        if report is not None:
            self._report = _sent(report) if self._report is None else self._report.aggregate(report)
        worker.clear_connector_metadata()
        return metadata.plan, sent or set()

    def received(self) -> Set[str]:
        """Requests whose loads ended since the last report."""
        return set(self._received)

    def stored_jobs(self) -> int:
        return len(self._report.report.stored) if self._report is not None else 0

    def report(self) -> Set[str]:
        """Hands the workers' results of all steps since the last call to the scheduler."""
        received, self._received = self._received, set()
        invalid, self._invalid = self._invalid, set()
        report, self._report = self._report, None
        self.scheduler.update_connector_output(
            SimpleNamespace(
                kv_connector_worker_meta=report,
                finished_recving=received or None,
                invalid_block_ids=invalid,
            )
        )
        return received

    def open_work(self) -> Tuple[int, int, int]:
        side = self.scheduler._scheduler
        assert side is not None
        return side.open_work()

    def stats(self) -> List[Any]:
        """The figures of both sides, as vLLM carries them to its front end."""
        found = [side.get_kv_connector_stats() for side in (self.scheduler, self.worker)]
        return [_sent(one.to_dict()) for one in found if one is not None]


def _sent(value: Any) -> Any:
    """The value as another process gets it."""
    return pickle.loads(pickle.dumps(value))
