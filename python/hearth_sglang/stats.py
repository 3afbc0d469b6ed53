"""Counters for SGLang's own metrics, and the versions that are tested."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from importlib import metadata
from logging import Logger
from typing import Any, Iterator, List, Tuple

TESTED_VERSIONS = ("0.5.23",)

_Samples = List[Tuple[int, float]]


class PageStats:
    """Pages and seconds of each transfer since the last ``drain``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: _Samples = []
        self._written: _Samples = []

    @contextmanager
    def reading(self, pages: int) -> Iterator[None]:
        with self._measured(self._read, pages):
            yield

    @contextmanager
    def writing(self, pages: int) -> Iterator[None]:
        with self._measured(self._written, pages):
            yield

    @contextmanager
    def _measured(self, samples: _Samples, pages: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        with self._lock:
            samples.append((pages, time.perf_counter() - started))
            del samples[:-1000]

    def drain(self, page_bytes: int) -> Any:
        """SGLang's StorageMetrics; bandwidths in GB/s."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            read, written = self._read[:], self._written[:]
            self._read.clear()
            self._written.clear()
        return StorageMetrics(
            prefetch_pgs=[pages for pages, _ in read],
            backup_pgs=[pages for pages, _ in written],
            prefetch_bandwidth=_bandwidths(read, page_bytes),
            backup_bandwidth=_bandwidths(written, page_bytes),
        )


def _bandwidths(samples: _Samples, page_bytes: int) -> List[float]:
    return [pages * page_bytes / max(seconds, 1e-9) / 1e9 for pages, seconds in samples]


def warn_of_untested_version(logger: Logger) -> None:
    """Logs once a process if this SGLang was not tested with this package."""
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return
    if version not in TESTED_VERSIONS:
        logger.warning(
            "SGLang %s is not tested with hearth_sglang (tested: %s)",
            version,
            ", ".join(TESTED_VERSIONS),
        )
