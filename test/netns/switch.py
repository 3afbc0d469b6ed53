"""Joins network namespaces: each packet passes through here, and is lost, late or cut as told.

    python3 switch.py PREFIX COUNT

Makes devices PREFIX0 to PREFIX<COUNT - 1> and says `ready`; whoever started it moves them into
namespaces and gives number i the address 198.18.0.<i + 1>. Then it reads rules, one JSON object a
line, and answers each with one: `{"from": 0, "to": 1, "loss": 0.01, "delay_ms": 50, "cut": false}`
sets how packets fare in that direction, `{}` changes nothing. The answer counts packets so far. All
devices go when it ends, which it does with its standard input.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import select
import struct
import sys
import time
from random import Random
from typing import Dict, List, Tuple

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_PACKET_BYTES_MAX = 65536
_DESTINATION = slice(16, 20)
_BATCH = 64
_NETWORK = bytes([198, 18, 0])


class Path:
    """How packets fare from one host to another."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.delay_s = 0.0
        self.cut = False


def open_device(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


class Switch:
    def __init__(self, prefix: str, count: int) -> None:
        self._fds = [open_device(f"{prefix}{i}") for i in range(count)]
        self._paths: Dict[Tuple[int, int], Path] = {
            (a, b): Path() for a in range(count) for b in range(count)
        }
        self._random = Random(7)
        self._late: List[Tuple[float, int, int, bytes]] = []
        self._order = 0
        self._counts = {"passed": 0, "lost": 0, "cut": 0, "unwanted": 0}
        self._rest = b""

    def run(self) -> None:
        poll = select.epoll()
        for fd in [0, *self._fds]:
            poll.register(fd, select.EPOLLIN)
        host_of = {fd: host for host, fd in enumerate(self._fds)}
        while True:
            wait = -1.0
            if self._late:
                wait = max(0.0, self._late[0][0] - time.monotonic())
            for fd, _events in poll.poll(wait):
                if fd == 0:
                    if not self._read_rules():
                        return
                else:
                    self._read_packets(host_of[fd], fd)
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _due, _order, host, packet = heapq.heappop(self._late)
                self._send(host, packet)

    def _read_packets(self, host: int, fd: int) -> None:
        for _ in range(_BATCH):
            try:
                packet = os.read(fd, _PACKET_BYTES_MAX)
            except (BlockingIOError, OSError):
                return
            self._carry(host, packet)

    def _carry(self, host: int, packet: bytes) -> None:
        address = packet[_DESTINATION]
        to = address[3] - 1 if address[:3] == _NETWORK else -1
        if packet[0] >> 4 != 4 or not 0 <= to < len(self._fds):
            self._counts["unwanted"] += 1
            return
        path = self._paths[host, to]
        if path.cut:
            self._counts["cut"] += 1
        elif path.loss > 0 and self._random.random() < path.loss:
            self._counts["lost"] += 1
        elif path.delay_s > 0:
            self._order += 1
            due = time.monotonic() + path.delay_s
            heapq.heappush(self._late, (due, self._order, to, packet))
        else:
            self._send(to, packet)

    def _send(self, host: int, packet: bytes) -> None:
        try:
            os.write(self._fds[host], packet)
            self._counts["passed"] += 1
        except OSError:
            # Its device is down or full: a network drops what it cannot carry.
            self._counts["lost"] += 1

    def _read_rules(self) -> bool:
        chunk = os.read(0, 65536)
        if not chunk:
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            rule = json.loads(line)
            if "from" in rule:
                path = self._paths[rule["from"], rule["to"]]
                path.loss = rule.get("loss", 0.0)
                path.delay_s = rule.get("delay_ms", 0) / 1000
                path.cut = rule.get("cut", False)
            tell(self._counts)
        return True


def tell(what: object) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


if __name__ == "__main__":
    SWITCH = Switch(sys.argv[1], int(sys.argv[2]))
    tell("ready")
    SWITCH.run()
