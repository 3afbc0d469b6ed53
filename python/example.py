import os
from hearth_client import Client, Manifest

manifest = Manifest(model="demo/llama", dtype="bfloat16", layout="example:flat", block_tokens=16)
with Client(os.environ.get("HEARTH_SOCKET", "/run/hearth/engine.sock"), manifest) as hearth:
    digests = hearth.identify(range(40))  # a prompt of 40 tokens has two full blocks
    for parent, digest in zip([None, *digests], digests):
        hearth.put(digest, parent, digest * 1024)  # 32 KiB that stand for a block's KV
    found = hearth.get(digests)
    print("hit:", [block == digest * 1024 for block, digest in zip(found, digests)])
