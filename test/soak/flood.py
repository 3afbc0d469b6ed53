"""After all clients are gone: ends their sessions, fills the arena anew, counts what stayed.

    python3 flood.py SOCKET ARENA_BYTES

Whatever is not locked is older than the new blocks and goes; what stays is held by nobody alive.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256

from hearth_client import Client, Outcome

import blocks

def main() -> None:
    path, arena_bytes = sys.argv[1:]
    wanted = 3 * int(arena_bytes) // blocks.BLOCK_BYTES
    chains = [blocks.chain_digests(chain, 0, blocks.DEPTH) for chain in range(blocks.CHAINS)]
    names = {digest for chain in chains for digest in chain}
    stored = 0
    with Client(path, blocks.MANIFEST, name="flood") as client:
        for session in range(1, blocks.SESSIONS + 1):
            client.session_release(session)
        for number in range(wanted):
            digest = sha256(b"flood %d" % number).digest()
            stored += client.put(digest, None, digest * (blocks.BLOCK_BYTES // 32)) == Outcome.OK
        stayed = sum(bool(tier) for tier in client.match(sorted(names)).best)
    print(json.dumps({"stored": stored, "wanted": wanted, "stayed": stayed}), flush=True)


main()
