"""Stands for the CUDA runtime: the ranges that are registered."""

from __future__ import annotations

import threading
from typing import Dict, List

from .real_agent import HANG_SECONDS


class Runtime:
    def __init__(self) -> None:
        self.registered: Dict[int, int] = {}
        #: Registrations wait while it is not set.
        self.open = threading.Event()
        self.open.set()
        self.waiting = 0
        #: Return codes of the next registrations, 0 afterwards.
        self.codes: List[int] = []
        self.threads: set = set()

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:
        self.threads.add(threading.current_thread())
        self.waiting += 1
        assert self.open.wait(HANG_SECONDS)
        self.waiting -= 1
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            assert address not in self.registered, "registered already"
            self.registered[address] = size
        return code

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0
