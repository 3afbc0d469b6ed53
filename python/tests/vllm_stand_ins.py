"""Stand-ins for the modules of vLLM that ``hearth_vllm.connector`` imports.

The base classes are made from ``fixtures/vllm-0.32-interface.json``: the methods of the real ones,
their parameters, and which are abstract. ``test/engines/vllm-interface.py`` recorded it. Bodies are
those that the connector relies on.
"""

from __future__ import annotations

import enum
import importlib.util
import inspect
import json
import re
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List

INTERFACE = json.loads(
    (Path(__file__).parent / "fixtures" / "vllm-0.32-interface.json").read_text("utf-8")
)
#: The connector's own modules that import vLLM; they are imported anew for each installation.
_OWN = ("hearth_vllm.connector", "hearth_vllm.prometheus")
_PRESENT = importlib.util.find_spec("vllm") is not None


def signature_of(class_name: str, method: str) -> inspect.Signature:
    """The recorded signature; a default value is None."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(name, getattr(kinds, kind), default=None if optional else kinds.empty)
            for name, kind, optional in INTERFACE["classes"][class_name]["members"][method][
                "parameters"
            ]
        ]
    )


def _body(class_name: str, name: str) -> Callable[..., Any]:
    """A method that takes what the recorded one takes, and answers None."""
    signature = signature_of(class_name, name)

    def body(*args: Any, **named: Any) -> None:
        signature.bind(*args, **named)

    return body


def _class(name: str, **own: Any) -> type:
    recorded = INTERFACE["classes"][name]
    members: Dict[str, Any] = {"__module__": recorded["module"]}
    kinds = {"method": lambda one: one, "property": property, "classmethod": classmethod}
    for key, member in recorded["members"].items():
        body = own.get(key) or _body(name, key)
        body = abstractmethod(body) if key in recorded["abstract"] else body
        members[key] = kinds[member["kind"]](body)
    return type(ABC)(name, (ABC,), members)


def _start(self: Any, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
    self._connector_metadata = None
    self._vllm_config, self._kv_cache_config = vllm_config, kv_cache_config
    self._kv_transfer_config, self._role = vllm_config.kv_transfer_config, role


def _bind(self: Any, connector_metadata: Any) -> None:
    self._connector_metadata = connector_metadata


def _clear(self: Any) -> None:
    self._connector_metadata = None


def _bound(self: Any) -> Any:
    assert self._connector_metadata is not None
    return self._connector_metadata


def _hold(self: Any, data: Any = None) -> None:
    self.data = {} if data is None else data


def _labels(self: Any, vllm_config: Any, metric_types: Any, labelnames: Any, values: Any) -> None:
    self.per_engine_labelvalues = values


class FullAttentionSpec:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


def _modules() -> Dict[str, Dict[str, Any]]:
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    one = SimpleNamespace(rank_in_group=0)
    plain = ("KVConnectorMetadata", "KVConnectorHandshakeMetadata", "KVConnectorWorkerMetadata")
    return {
        "vllm": {"__version__": INTERFACE["version"]},
        base: {
            **{name: _class(name) for name in plain},
            "KVConnectorRole": enum.Enum("KVConnectorRole", INTERFACE["roles"]),
            "KVConnectorBase_V1": _class(
                "KVConnectorBase_V1",
                __init__=_start,
                bind_connector_metadata=_bind,
                clear_connector_metadata=_clear,
                _get_connector_metadata=_bound,
            ),
        },
        "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {
            "KVConnectorStats": _class(
                "KVConnectorStats", __init__=_hold, to_dict=lambda self: self.data
            ),
            "KVConnectorPromMetrics": _class("KVConnectorPromMetrics", __init__=_labels),
        },
        "vllm.distributed.parallel_state": {
            "get_tp_group": lambda: one,
            "get_pp_group": lambda: one,
        },
        "vllm.v1.core.kv_cache_utils": {"DEFAULT_NONE_HASH_SEED": "vllm"},
        "torch": {"Tensor": object},
        "prometheus_client": {name: type(name, (), {}) for name in Metric.KINDS},
    }


@contextmanager
def installed() -> Iterator[Any]:
    """`hearth_vllm.connector` on the stand-ins, which are gone afterwards."""
    before = dict(sys.modules)
    for name, members in _modules().items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            # Installed packages are hidden, so that the test is the same everywhere.
            if path not in sys.modules or sys.modules[path] is before.get(path):
                sys.modules[path] = module = ModuleType(path)
                module.__path__ = []  # type: ignore[attr-defined]
                if end > 1:
                    setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
        vars(sys.modules[name]).update(members)
    for name in _OWN:
        sys.modules.pop(name, None)
    try:
        import hearth_vllm.connector

        yield hearth_vllm.connector
    finally:
        sys.modules.clear()
        sys.modules.update(before)


class Tensor:
    """A layer of the KV cache: the members that the connector uses, contiguous bytes."""

    dtype, device = "torch.float32", SimpleNamespace(type="cpu")

    def __init__(self, address: int, blocks: int, block_bytes: int) -> None:
        self.shape = (blocks, block_bytes // self.element_size())
        self._address = address

    def data_ptr(self) -> int:
        return self._address

    def stride(self) -> Any:
        return (self.shape[1], 1)

    def element_size(self) -> int:
        return 4


def vllm_config(extra: Dict[str, Any]) -> Any:
    """The members of vLLM's configuration that the connector reads; one rank, a dummy model."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config=extra,
            kv_load_failure_policy="fail",
            engine_id="engine-1",
            is_kv_consumer=True,
            is_kv_producer=True,
        ),
        parallel_config=SimpleNamespace(
            world_size=1, tensor_parallel_size=1, pipeline_parallel_size=1
        ),
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo="sha256", cache_dtype="auto", calculate_kv_scales=False
        ),
        model_config=SimpleNamespace(
            use_mla=False,
            model="tiny",
            dtype="torch.float32",
            quantization=None,
            seed=0,
            hf_config=SimpleNamespace(to_json_string=lambda use_diff: "{}"),
        ),
        load_config=SimpleNamespace(load_format="dummy"),
        compilation_config=SimpleNamespace(static_forward_context={}),
        speculative_config=None,
    )


def cache_config(blocks: int, block_tokens: int) -> Any:
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec(block_tokens))
    return SimpleNamespace(num_blocks=blocks, kv_cache_groups=[group])


class Metric:
    """Checks and behaviour of prometheus_client's metrics; values by label values."""

    KINDS = ("Counter", "Gauge", "Histogram")

    def __init__(
        self, name: str, documentation: str, labelnames: List[str], buckets: Any = ()
    ) -> None:
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) or not documentation:
            raise ValueError(f"invalid metric {name!r}")
        if list(buckets) != sorted(set(buckets)):
            raise ValueError(f"buckets of {name} are not in order")
        self.names = list(labelnames)
        self.values: Dict[Any, List[float]] = {}

    def labels(self, *values: Any) -> Any:
        if len(values) != len(self.names):
            raise ValueError(f"{len(values)} values for the labels {self.names}")
        kept = self.values.setdefault(tuple(str(one) for one in values), [])

        def replace(value: float) -> None:
            kept[:] = [value]

        return SimpleNamespace(inc=kept.append, observe=kept.append, set=replace)
