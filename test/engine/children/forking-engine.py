"""Reserves a slot, then forks: the child keeps the socket and the arena until it is killed.

Says ``holding PID`` with the child's process id. Words: SOCKET.
"""

import os
import sys
import time

from hearth_client import Block, Client, Manifest, Outcome

client = Client(sys.argv[1], Manifest("fork", "bfloat16", "test:flat", 4))
(digest,) = client.identify([1, 2, 3, 4])
assert client.reserve([Block(digest, 5_000)])[0].outcome == Outcome.OK
keeper = os.fork()
if keeper == 0:
    time.sleep(60)
    os._exit(0)
print(f"holding {keeper}", flush=True)
sys.stdin.read()
