import hashlib
import os
from hearth_client import Manifest, Outcome
from hearth_client.kv_store import KvStore, PagedMemory, Region, Role
from hearth_client.memory import piece_of

BLOCKS, BLOCK_BYTES = 4, 65_536
cache = bytearray(b"".join(bytes([block]) * BLOCK_BYTES for block in range(BLOCKS)))
memory = PagedMemory([Region(piece_of(cache).address, BLOCK_BYTES, BLOCK_BYTES)], keep_alive=cache)
keys = [hashlib.sha256(b"prefix of %d blocks" % block).digest() for block in range(BLOCKS)]

manifest = Manifest(model="demo/llama", dtype="bfloat16", layout="example:paged", block_tokens=16)
with KvStore(manifest, engine_id=os.urandom(16), role=Role.WORKER, stall_ms=10_000) as store:
    store.put(keys, [None, *keys[:-1]], memory, range(BLOCKS))
    ticket = store.lookup(keys)  # does not wait; ask ticket.done() now and then
    ticket.wait(10.0)
    blocks = [3, 2, 1, 0]  # an engine gets blocks back in other places of its cache
    outcomes = store.get(keys, memory, blocks)
    print("ready:", ticket.result().ready, "loaded:", outcomes.count(Outcome.OK))
    print("block 0 is now in place 3:", cache[3 * BLOCK_BYTES] == 0)
