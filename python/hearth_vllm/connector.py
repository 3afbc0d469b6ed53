"""HearthConnector: the adapter between vLLM's KV connector interface and Hearth."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
import vllm

from . import versions

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorWorkerMetadata,
    )
except ImportError as error:
    raise ImportError(
        f"vLLM {vllm.__version__} lacks a part of the connector interface ({error}): "
        f"{versions.NEEDED}"
    ) from error

from hearth_client.agent_stores import AgentStores
from hearth_client.kv_store import KvStore, PagedMemory, Region, Role
from hearth_client.namespace_key import NamespaceKey

from .checks import check, set_failure_policy, spec_kinds
from .geometry import Geometry, describe
from .manifest import build_manifest, of_family, seed_of, to_plain
from .plan import StepPlan, StepReport
from .prometheus import HearthPromMetrics, HearthStats
from .recorder import recorder
from .registration import Registration
from .scheduler import EngineScheduler
from .settings import read_settings
from .verify import Difference, difference_of, tensor_norms
from .worker import EngineWorker

logger = logging.getLogger("vllm.hearth")


class HearthMetadata(KVConnectorMetadata):
    """The plan of one step, from the scheduler to the workers."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class HearthHandshake(KVConnectorHandshakeMetadata):
    """The manifest of one worker, as built-in types."""

    def __init__(self, manifest: Dict[str, Any]) -> None:
        self.manifest = manifest


class HearthReport(KVConnectorWorkerMetadata):
    """Transfers that a worker finished since the last step."""

    def __init__(self, report: StepReport) -> None:
        self.report = report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, HearthReport)
        return HearthReport(self.report.merge(other.report))


class HearthConnector(KVConnectorBase_V1):
    """vLLM's KV cache in Hearth: loads are asynchronous, stores leave the forward path.

    The class does not inherit SupportsHMA on purpose: vLLM then gives models with sliding windows
    one group of full attention, which Hearth can keep.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        self._settings = read_settings(transfer.kv_connector_extra_config)
        self._key = NamespaceKey.from_settings(self._settings.key_file, None, False)
        check(vllm_config, kv_cache_config)
        scheduler_role = role == KVConnectorRole.SCHEDULER
        if set_failure_policy(transfer) and scheduler_role:
            logger.info("set kv_load_failure_policy to recompute")
        remark = versions.remark(vllm.__version__)
        if remark is not None and scheduler_role:
            logger.warning("%s", remark)
        self._seed = _hash_seed(vllm_config.cache_config.prefix_caching_hash_algo)
        self._engine_id = hashlib.sha256(str(transfer.engine_id).encode()).digest()[:16]
        self._spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        self._worker: Optional[EngineWorker] = None
        self._registration: Optional[Registration] = None
        self._manifest: Optional[Dict[str, Any]] = None
        self._scheduler: Optional[EngineScheduler] = None
        if scheduler_role:
            self._scheduler = recorder(self._make_scheduler())

    def _make_scheduler(self) -> EngineScheduler:
        config, transfer = self._vllm_config, self._kv_transfer_config
        parallel = config.parallel_config
        mla = bool(getattr(config.model_config, "use_mla", False))
        return EngineScheduler(
            self._settings,
            block_tokens=self._spec.block_size,
            ranks=parallel.world_size,
            readers=parallel.tensor_parallel_size if mla else 1,
            blocks=self._kv_cache_config.num_blocks,
            may_load=transfer.is_kv_consumer,
            may_store=transfer.is_kv_producer,
        )

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # Worker

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        geometry = describe(kv_caches, self._kv_cache_config.num_blocks)
        tensor = next(iter(kv_caches.values()))
        tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
        tp_rank, pp_rank = _ranks()
        mla = bool(getattr(self._vllm_config.model_config, "use_mla", False))
        manifest = build_manifest(
            self._settings,
            self._vllm_config,
            version=vllm.__version__,
            layout=geometry.layout,
            cache_dtype=str(tensor.dtype).replace("torch.", ""),
            block_tokens=self._spec.block_size,
            kind="+".join(sorted(set(spec_kinds(self._spec)))),
            seed=self._seed,
            backend=_backend(self._vllm_config, next(iter(kv_caches))),
            tp_rank=tp_rank,
            pp_rank=pp_rank,
        )
        self._manifest = to_plain(manifest)
        if tensor.device.type != "cpu":
            self._registration = _registration(tensor.device)
        store = KvStore(
            manifest,
            socket=self._settings.socket or None,
            engine_id=self._engine_id,
            role=Role.WORKER,
            name=f"{self._settings.name}-{pp_rank}-{tp_rank}",
            stall_ms=self._settings.stall_ms,
            logger=logger,
            key=self._key,
            on_arena=self._registration.announce if self._registration is not None else None,
        )
        if tensor.device.type == "cpu":
            regions = [Region(*span) for span in geometry.spans]
            blocks = self._kv_cache_config.num_blocks
            memory: Any = PagedMemory(regions, kv_caches, blocks=blocks)
            marker = None
        else:
            memory = self._device_memory(geometry, kv_caches)
            marker = memory.mark
        self._worker = EngineWorker(
            self._settings,
            store,
            memory,
            blocks=self._kv_cache_config.num_blocks,
            stores=not mla or tp_rank == 0,
            marker=marker,
            difference=self._difference(geometry, tensor) if self._settings.verify_one_in else None,
            logger=logger,
        )
        logger.info(
            "Hearth keeps blocks of %d tokens and %d bytes, layout %s",
            self._spec.block_size,
            geometry.block_bytes,
            manifest.layout,
        )

    def _difference(self, geometry: Geometry, tensor: torch.Tensor) -> Optional[Difference]:
        kind = str(tensor.dtype).replace("torch.", "")
        norms = tensor_norms(kind, str(self._vllm_config.cache_config.cache_dtype))
        if norms is None:
            logger.warning("hearth.verify_one_in has no effect: elements of %s", kind)
            return None
        return difference_of(norms, [size for _, _, size in geometry.spans])

    def _device_memory(self, geometry: Geometry, kv_caches: Dict[str, Any]) -> Any:
        from .device_memory import DeviceMemory, allocations_of, tensors_of

        owners = tensors_of(kv_caches)
        by_agent = None
        if self._settings.agent_stores:
            regions = [Region(*span) for span in geometry.spans]
            by_agent = AgentStores(regions, allocations_of(owners), logger=logger)
        assert self._registration is not None
        return DeviceMemory(geometry.spans, owners, self._registration, by_agent)

    def get_handshake_metadata(self) -> Optional[KVConnectorHandshakeMetadata]:
        return HearthHandshake(self._manifest) if self._manifest is not None else None

    def _plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, HearthMetadata)
        return metadata.plan

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, HearthMetadata)
        if self._worker is not None:
            self._worker.preempt(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start_loads(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: vLLM schedules a request after its load ended."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are stored whole, after the forward pass."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.start_stores(self._plan())

    def get_finished(
        self, finished_req_ids: Set[str]
    ) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        if self._worker is None:
            return None, None
        sent, received = self._worker.finished(self._plan())
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._worker.errors() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> Optional[KVConnectorWorkerMetadata]:
        report = self._worker.report() if self._worker is not None else None
        return HearthReport(report) if report is not None else None

    # Scheduler

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Dict[Tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self._connect([one for _, one in sorted(metadata.items())])

    def set_xfer_handshake_metadata(
        self, metadata: Dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        self._connect([one for _, one in sorted(metadata.items())])

    def _connect(self, handshakes: List[Any]) -> None:
        manifest = of_family([one.manifest for one in handshakes])
        store = KvStore(
            manifest,
            socket=self._settings.socket or None,
            engine_id=self._engine_id,
            role=Role.SCHEDULER,
            name=self._settings.name,
            stall_ms=self._settings.stall_ms,
            logger=logger,
            key=self._key,
        )
        assert self._scheduler is not None
        self._scheduler.attach(store)

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.added(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> Tuple[Optional[int], bool]:
        assert self._scheduler is not None
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        assert self._scheduler is not None
        if num_external_tokens > 0:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        return HearthMetadata(self._scheduler.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        meta = connector_output.kv_connector_worker_meta
        self._scheduler.reported(
            meta.report if isinstance(meta, HearthReport) else None,
            connector_output.finished_recving or set(),
            connector_output.invalid_block_ids or set(),
        )

    def request_finished(
        self, request: Any, block_ids: List[int]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        assert self._scheduler is not None
        return self._scheduler.finished(request)

    def reset_cache(self) -> Optional[bool]:
        assert self._scheduler is not None
        return self._scheduler.reset()

    # Both

    def get_kv_connector_stats(self) -> Optional[HearthStats]:
        side = self._worker if self._worker is not None else self._scheduler
        data = side.stats.take() if side is not None else None
        return HearthStats(data=data) if data is not None else None

    @classmethod
    def build_kv_connector_stats(
        cls, data: Optional[Dict[str, Any]] = None
    ) -> Optional[HearthStats]:
        return HearthStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Dict[Any, Any],
        labelnames: List[str],
        per_engine_labelvalues: Dict[int, List[object]],
    ) -> HearthPromMetrics:
        return HearthPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()
        if self._registration is not None:
            self._registration.close()


def _registration(device: torch.device) -> Registration:
    from .device_memory import open_runtime

    return Registration(lambda: open_runtime(device))


def _ranks() -> Tuple[int, int]:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return get_tp_group().rank_in_group, get_pp_group().rank_in_group


def _hash_seed(algorithm: str) -> str:
    from vllm.v1.core import kv_cache_utils

    fixed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    return seed_of(str(algorithm), os.environ, fixed)


def _backend(config: Any, layer: str) -> str:
    """Name of the attention backend, with the instruction set where it arranges bytes."""
    module = config.compilation_config.static_forward_context.get(layer)
    backend = module.get_attn_backend() if hasattr(module, "get_attn_backend") else None
    name = backend.get_name() if backend is not None else "unknown"
    isa = getattr(module, "isa", None) or getattr(getattr(module, "impl", None), "isa", None)
    return f"{name}:{isa}" if isa else name
