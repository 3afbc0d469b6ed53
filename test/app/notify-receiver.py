"""Stands in for systemd: prints each datagram that comes to its socket, as one line of JSON.

Words: SOCKET, a path, or ``@name`` for an abstract one. Each line is ``{"us": ..., "text": ...}``,
with the receiver's monotonic clock in microseconds.
"""

import json
import socket
import sys
import time

path = sys.argv[1]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
    receiver.bind("\0" + path[1:] if path.startswith("@") else path)
    print("bound", flush=True)
    while True:
        text = receiver.recv(4096).decode()
        print(json.dumps({"us": time.monotonic_ns() // 1_000, "text": text}), flush=True)
