"""A Python engine of the RAM lane. Words: SOCKET TENANT KIND, of which KIND is client or store.

Commands come as lines of JSON, answers go out the same way: ``["get", BLOCKS]`` answers "right",
"wrong" or "miss" for each block, ``["put", BLOCKS]`` the name of each outcome. A block is a pair of
key and digest in hex; its bytes are its key, over and over.
"""

import json
import os
import sys

from hearth_client import Client, Manifest, Outcome
from hearth_client.kv_store import KvStore, Role
from hearth_client.memory import piece_of

BLOCK_BYTES = 20_000


def payload(key):
    return (key * (BLOCK_BYTES // len(key) + 1))[:BLOCK_BYTES]


def judge(key, data):
    return "miss" if data is None else "right" if data == payload(key) else "wrong"


class ClientReader:
    def __init__(self, socket, manifest):
        self.hearth = Client(socket, manifest, name="python client")

    def get(self, blocks):
        found = self.hearth.get([digest for _key, digest in blocks])
        return [judge(key, data) for (key, _digest), data in zip(blocks, found)]

    def put(self, blocks):
        return [self.hearth.put(digest, None, payload(key)).name for key, digest in blocks]


class StoreReader:
    def __init__(self, socket, manifest):
        self.hearth = KvStore(
            manifest, socket=socket, engine_id=os.urandom(16), role=Role.WORKER, stall_ms=30_000
        )

    def get(self, blocks):
        keys = [key for key, _digest in blocks]
        targets = [bytearray(BLOCK_BYTES) for _ in blocks]
        outcomes = self.hearth.get_pieces(keys, [[piece_of(target)] for target in targets])
        found = [t if o == Outcome.OK else None for t, o in zip(targets, outcomes)]
        return [judge(key, data) for key, data in zip(keys, found)]

    def put(self, blocks):
        keys = [key for key, _digest in blocks]
        sources = [bytearray(payload(key)) for key in keys]
        pieces = [[piece_of(source)] for source in sources]
        return [o.name for o in self.hearth.put_pieces(keys, [None] * len(keys), pieces)]


def main():
    socket, tenant, kind = sys.argv[1:]
    manifest = Manifest("test", "bfloat16", "test:flat", 4, tenant_salt=tenant)
    reader = (StoreReader if kind == "store" else ClientReader)(socket, manifest)
    for line in sys.stdin:
        command, pairs = json.loads(line)
        blocks = [(bytes.fromhex(key), bytes.fromhex(digest)) for key, digest in pairs]
        answer = reader.get(blocks) if command == "get" else reader.put(blocks)
        print(json.dumps(answer), flush=True)


main()
