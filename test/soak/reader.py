"""Reads and proves blocks as long as its standard input is open, then tells how many.

    python3 reader.py SOCKET SEED
"""

from __future__ import annotations

import json
import select
import sys
from random import Random

from hearth_client import Client, Outcome, xxh3_64

import blocks

#: Leaves most of the processor to the clients that die.
_PAUSE_S = 0.005


def main() -> None:
    path, seed = sys.argv[1:]
    random = Random(seed)
    verified = wrong = 0
    with Client(path, blocks.MANIFEST, name="reader") as client:
        while not select.select([0], [], [], _PAUSE_S)[0]:
            chain = random.randrange(blocks.CHAINS)
            digests = blocks.chain_digests(chain, random.randrange(blocks.DEPTH), 8)
            with client.acquired(digests) as found:
                for digest, block in zip(digests, found):
                    if block.outcome != Outcome.OK:
                        continue
                    copy = bytes(block.view)
                    differing = blocks.wrong_bytes(digest, copy)
                    small = len(copy) <= blocks.CHECKED_BYTES_MAX and random.random() < 0.05
                    if differing == 0 and small and xxh3_64(copy) != block.checksum:
                        differing = len(copy)
                    wrong += differing
                    verified += 1
    print(json.dumps({"verified": verified, "wrong_bytes": wrong}), flush=True)


main()
