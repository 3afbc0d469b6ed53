"""Stand-ins for the classes of SGLang and LMCache that the connectors extend.

Only for tests on a Python without these packages: the base classes and records, with the fields and
names of SGLang 0.5.23 and LMCache 0.5.6. The lanes of ``./dev test:engines`` run the real ones.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List, Optional


def _module(name: str, **names: Any) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            module = ModuleType(path)
            module.__path__ = []  # type: ignore[attr-defined]
            sys.modules[path] = module
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
    for key, value in names.items():
        setattr(sys.modules[name], key, value)


class Indices(List[int]):
    """The members of an index tensor that the connectors use."""

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return Indices(value) if isinstance(key, slice) else value

    def tolist(self) -> List[int]:
        return list(self)


class PoolName(str, Enum):
    KV = "kv"
    MAMBA = "mamba"
    INDEXER = "indexer"

    def __str__(self) -> str:
        return self.value


class PoolHitPolicy(str, Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    keys: Optional[List[str]] = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: Dict[str, int]
    restorable_prefix_pages: Optional[List[int]] = None

    @classmethod
    def empty(cls) -> "PoolTransferResult":
        return cls(0, {})


@dataclass
class StorageMetrics:
    prefetch_pgs: List[int] = field(default_factory=list)
    backup_pgs: List[int] = field(default_factory=list)
    prefetch_bandwidth: List[float] = field(default_factory=list)
    backup_bandwidth: List[float] = field(default_factory=list)


class HostMemoryPool:
    """A host pool of SGLang: ``layer_first`` or ``page_first``, pages at equal distances."""

    head_dim, dtype = 4, "torch.float32"

    def __init__(
        self,
        pages: int = 8,
        page_size: int = 4,
        layers: int = 3,
        layout: str = "layer_first",
        heads: int = 2,
    ) -> None:
        self.page_size, self.layer_num, self.layout = page_size, layers, layout
        self.head_num = heads
        self.size = pages * page_size
        self.row = self.head_num * self.head_dim * 4
        self.bytes = bytearray(2 * layers * self.size * self.row)
        self._base = ctypes.addressof((ctypes.c_char * len(self.bytes)).from_buffer(self.bytes))

    def get_page_buffer_meta(self, indices: Any) -> Any:
        half = self.layer_num * self.size * self.row
        pointers, sizes = [], []
        for first in indices.tolist()[:: self.page_size]:
            if self.layout == "page_first":
                start = self._base + first * self.layer_num * self.row
                pointers += [start, start + half]
                sizes += [self.page_size * self.layer_num * self.row] * 2
                continue
            for layer in range(self.layer_num):
                start = self._base + (first + layer * self.size) * self.row
                pointers += [start, start + half]
                sizes += [self.page_size * self.row] * 2
        return pointers, sizes

    def page(self, number: int) -> bytes:
        """The stored bytes of a page."""
        first = Indices(range(number * self.page_size, (number + 1) * self.page_size))
        pointers, sizes = self.get_page_buffer_meta(first)
        starts = [pointer - self._base for pointer in pointers]
        return b"".join(bytes(self.bytes[at : at + size]) for at, size in zip(starts, sizes))

    def fill(self, number: int, data: bytes) -> None:
        first = Indices(range(number * self.page_size, (number + 1) * self.page_size))
        pointers, sizes = self.get_page_buffer_meta(first)
        for pointer, size in zip(pointers, sizes):
            at = pointer - self._base
            self.bytes[at : at + size], data = data[:size], data[size:]


def indices_of(pool: Any, pages: Any) -> Indices:
    size = pool.page_size
    return Indices(index for page in pages for index in range(page * size, (page + 1) * size))


def storage_config(**changes: Any) -> Any:
    fields = dict(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        is_page_first_layout=False,
        model_name="tiny",
        extra_config={"interface_v1": 1},
    )
    return SimpleNamespace(**{**fields, **changes})


class EventNotifier:
    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def notify(self) -> None:
        os.write(self._write, b"1")

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Bitmap:
    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, index: int) -> None:
        self.bits[index] = True


class L2StoreResult(int):
    def __new__(cls, success: bool, size: int) -> "L2StoreResult":
        return super().__new__(cls, size if success else -1)

    def is_successful(self) -> bool:
        return int(self) >= 0


class L2AdapterInterface:
    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self.stored: Dict[Any, int] = {}

    def _notify_keys_stored(self, keys: List[Any], sizes: List[int]) -> None:
        self.stored.update(zip(keys, sizes))

    def _notify_keys_accessed(self, keys: List[Any]) -> None:
        pass

    def _notify_keys_deleted(self, keys: List[Any], sizes: List[int]) -> None:
        for key in keys:
            del self.stored[key]

    def get_usage(self) -> Any:
        return SimpleNamespace(total_bytes_used=sum(self.stored.values()))


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""

    def to_encoded_object_key(self) -> Any:
        return self


@dataclass(frozen=True)
class KeyEntry:
    key: Any
    size_bytes: int


@dataclass(frozen=True)
class KeyListPage:
    entries: Any
    next_page_token: Optional[str]


class MemoryObject:
    def __init__(self, data: bytes) -> None:
        self.bytes = bytearray(data)
        self._array = (ctypes.c_char * len(data)).from_buffer(self.bytes)

    @property
    def data_ptr(self) -> int:
        return ctypes.addressof(self._array)

    def get_size(self) -> int:
        return len(self.bytes)


class Counter:
    """Stand-in for prometheus_client's Counter."""

    def __init__(self, name: str, _text: str, labels: List[str]) -> None:
        self.name, self._labels = name, len(labels)
        self.values: Dict[Any, float] = {}

    def labels(self, *values: str) -> Any:
        assert len(values) == self._labels
        return SimpleNamespace(inc=lambda amount: self._add(values, amount))

    def _add(self, values: Any, amount: float) -> None:
        assert amount >= 0
        self.values[values] = self.values.get(values, 0) + amount


@dataclass(frozen=True)
class Observation:
    """Stand-in for opentelemetry's Observation; its Meter is below."""

    value: float
    attributes: Dict[str, str]


class Meter:
    def __init__(self) -> None:
        self.callbacks: Dict[str, Any] = {}

    def create_observable_counter(self, name: str, callbacks: Any, description: str) -> None:
        assert name not in self.callbacks and description
        self.callbacks[name] = callbacks

    def observed(self, name: str) -> List[Observation]:
        return [one for callback in self.callbacks[name] for one in callback(None)]


METER = Meter()


def _absent(name: str) -> bool:
    return name not in sys.modules and importlib.util.find_spec(name) is None


def install() -> None:
    """Puts the stand-ins in place of packages that are not installed."""
    if _absent("sglang"):
        names = (PoolName, PoolHitPolicy, PoolTransfer, PoolTransferResult)
        _module(
            "sglang.srt.mem_cache.hicache_storage",
            HiCacheStorage=type("HiCacheStorage", (), {}),
            **{one.__name__: one for one in names},
        )
        _module("sglang.srt.observability.metrics_collector", StorageMetrics=StorageMetrics)
        _module("prometheus_client", Counter=Counter)
    if _absent("lmcache"):
        metrics = SimpleNamespace(get_meter=lambda _name: METER, Observation=Observation)
        _module("opentelemetry", metrics=metrics)
        v1 = "lmcache.v1"
        _module("lmcache.lmcache_native", Bitmap=Bitmap)
        _module(f"{v1}.distributed.api", KeyEntry=KeyEntry, KeyListPage=KeyListPage)
        _module(f"{v1}.distributed.internal_api", L2StoreResult=L2StoreResult)
        _module(f"{v1}.distributed.l2_adapters.base", L2AdapterInterface=L2AdapterInterface)
        _module(f"{v1}.platform", create_event_notifier=EventNotifier)
