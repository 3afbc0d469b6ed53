"""The Python engine of two that share blocks. Words: SOCKET TENANT.

Commands come as lines of JSON, answers go out the same way: ``["hello"]``,
``["identify", TOKENS]``, ``["put", DIGESTS]``, ``["get", DIGESTS]`` and ``["match", DIGESTS]``. A
block's bytes are its digest, over and over.
"""

import json
import sys

from hearth_client import Block, Client, Manifest, xxh3_64

BLOCK_BYTES = 5_000


def payload(digest):
    return (digest * (BLOCK_BYTES // len(digest) + 1))[:BLOCK_BYTES]


def put(hearth, digests):
    parents = [None, *digests[:-1]]
    blocks = [Block(digest, BLOCK_BYTES, parent) for digest, parent in zip(digests, parents)]
    slots = [slot for slot in hearth.reserve(blocks) if slot.outcome == 0]
    for slot in slots:
        slot.write(payload(slot.digest))
    # Checksums of its own: the agent takes the blocks only if it finds the same ones.
    checksums = [xxh3_64(payload(slot.digest)) for slot in slots]
    return [int(outcome) for outcome in hearth.commit(slots, checksums=checksums)]


def main():
    socket, tenant = sys.argv[1:]
    manifest = Manifest("test", "bfloat16", "test:flat", 4, tenant_salt=tenant)
    with Client(socket, manifest, name="python") as hearth:
        for line in sys.stdin:
            command, *rest = json.loads(line)
            if command == "hello":
                answer = hearth.hello.namespace_id.hex()
            elif command == "identify":
                answer = [digest.hex() for digest in hearth.identify(rest[0])]
            else:
                digests = [bytes.fromhex(digest) for digest in rest[0]]
                if command == "put":
                    answer = put(hearth, digests)
                elif command == "match":
                    answer = hearth.match(digests).leading
                else:
                    found = hearth.get(digests)
                    right = [block == payload(digest) for block, digest in zip(found, digests)]
                    answer = ["miss" if b is None else r for b, r in zip(found, right)]
            print(json.dumps(answer), flush=True)


main()
