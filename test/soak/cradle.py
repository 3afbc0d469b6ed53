"""Forks clients, kills and stops them, and tells how they ended.

    python3 cradle.py SOCKET SEED CYCLES LEASE_MS CLIENTS

A fork costs a tenth of a start of Python. One JSON object a line on the standard output: progress
now and then, whatever a client found wrong, and the totals at the end. Ends early, with all of its
clients, when its standard input does.
"""

from __future__ import annotations

import ctypes
import heapq
import json
import os
import select
import signal
import sys
import time
from random import Random
from typing import Dict, List, Tuple

from life import Life

_PR_SET_PDEATHSIG = 1
_TELL_EVERY = 50
#: Clients that are stopped take no processor: so many more than those that run may be about.
_STOPPED_MAX = 16
#: A kill or stop from outside comes within so many seconds of the birth.
_STRIKE_S = 0.015
#: Beyond this a client that should have ended long ago hangs.
_AGE_MAX_S = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


def tell(**what: object) -> None:
    """One write of a short line: clients that share the pipe do not cut into each other's."""
    os.write(1, (json.dumps(what) + "\n").encode())


class Child:
    def __init__(self, born: float) -> None:
        self.born = born
        self.stopped = False
        self.was_stopped = False


class Cradle:
    def __init__(self, path: str, seed: str, cycles: int, lease_ms: int, clients: int) -> None:
        self._path = path
        self._seed = seed
        self._cycles = cycles
        self._lease_ms = lease_ms
        self._clients = clients
        self._random = Random(seed)
        self._children: Dict[int, Child] = {}
        #: (when, pid, what): a signal to send, if that client is still there.
        self._strikes: List[Tuple[float, int, str]] = []
        self._born = 0
        self.totals = {"killed": 0, "stopped": 0, "exited": 0}

    def run(self) -> None:
        """Until all clients have lived, or nobody listens any more."""
        while self._born < self._cycles or self._children:
            while self._born < self._cycles and self._has_room():
                self._bear()
            self._wait()
            self._strike()
            self._reap()
            if select.select([0], [], [], 0)[0] and not os.read(0, 1):
                break
        for pid in list(self._children):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _has_room(self) -> bool:
        stopped = sum(child.stopped for child in self._children.values())
        return len(self._children) - stopped < self._clients and stopped < _STOPPED_MAX

    def _bear(self) -> None:
        number = self._born
        self._born += 1
        pid = os.fork()
        if pid == 0:
            self._live(number)
        now = time.monotonic()
        self._children[pid] = Child(now)
        fate = self._random.random()
        if fate < 0.6:
            what = "stop" if fate < 0.06 else "kill"
            heapq.heappush(self._strikes, (now + self._random.random() * _STRIKE_S, pid, what))

    def _live(self, number: int) -> None:
        """The client's process; never returns."""
        code = 1
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            life = Life(self._path, self._lease_ms, Random(f"{self._seed}/{number}"))
            try:
                life.run()
            except Exception as error:  # Whatever it is, the run must hear of it.
                tell(client=number, violation=f"{type(error).__name__}: {error}"[:400])
            if life.wrong_bytes:
                tell(client=number, wrong_bytes=life.wrong_bytes)
            code = 0
        finally:
            os._exit(code)

    def _wait(self) -> None:
        """Until a client ends or stops, or the next strike is due."""
        due = self._strikes[0][0] - time.monotonic() if self._strikes else 0.05
        signal.sigtimedwait([signal.SIGCHLD], min(0.05, max(0.0, due)))

    def _strike(self) -> None:
        now = time.monotonic()
        while self._strikes and self._strikes[0][0] <= now:
            _when, pid, what = heapq.heappop(self._strikes)
            if pid not in self._children:
                continue
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "wake": signal.SIGCONT}[what]
            os.kill(pid, number)
            if what == "wake":
                self._children[pid].stopped = False
        for pid, child in self._children.items():
            if now - child.born > _AGE_MAX_S:
                tell(violation=f"a client did not end within {_AGE_MAX_S} s")
                child.born = now
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._note_stopped(pid)
                continue
            child = self._children.pop(pid)
            if child.was_stopped:
                self.totals["stopped"] += 1
            elif os.WIFSIGNALED(status):
                self.totals["killed"] += 1
            else:
                self.totals["exited"] += 1
                if os.WEXITSTATUS(status) != 0:
                    tell(violation=f"a client exited with {os.WEXITSTATUS(status)}")
            done = sum(self.totals.values())
            if done % _TELL_EVERY == 0:
                tell(done=done)

    def _note_stopped(self, pid: int) -> None:
        """Half sleep beyond their lease; then each is killed, or wakes and goes on."""
        child = self._children[pid]
        child.stopped = child.was_stopped = True
        lease_s = self._lease_ms / 1000
        beyond = self._random.random() < 0.5
        asleep = lease_s * (self._random.uniform(1.3, 2.0) if beyond else self._random.random() / 2)
        what = "kill" if self._random.random() < 0.5 else "wake"
        heapq.heappush(self._strikes, (time.monotonic() + asleep, pid, what))


def main() -> None:
    path, seed, cycles, lease_ms, clients = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    cradle = Cradle(path, seed, int(cycles), int(lease_ms), int(clients))
    cradle.run()
    tell(totals=cradle.totals)


main()
