"""Writes vllm-tagged.json: block hashes computed by an installed vLLM (0.32 or later).

Run with the interpreter of an environment that has vLLM:
    python test/identity/golden/make_vllm_tagged.py > test/identity/golden/vllm-tagged.json
"""

import json
import os
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch  # noqa: E402
from vllm import __version__ as vllm_version  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core import kv_cache_utils as vllm  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
FORMULA = {"times": 7919, "plus": 13, "modulo": 152064}


def text(value):
    """A string object of its own, as the engine process decodes one from a message."""
    return value.encode().decode()


def image(identifier, offset, length):
    position = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(None, "image", text(identifier), position)


def lora(name, path):
    return LoRARequest(text(name), 1, text(path))


def embeddings(count):
    return torch.arange(count * 4, dtype=torch.float32).reshape(count, 4) / 8


REQUESTS = {
    "plain": {},
    "salt": {"cache_salt": "tenant-a"},
    "LoRA": {"lora": ("adapter-a", "adapters/a")},
    "LoRA and salt": {"lora": ("adapter-ü", "adapters/ü"), "cache_salt": "täglich"},
    "one image over three blocks": {"images": (("img-0001", 5, 38),)},
    "two images in a block": {"images": (("img-0001", 2, 4), ("img-0002", 9, 20))},
    "one image twice in a block": {"images": (("img-0001", 2, 4), ("img-0001", 9, 4))},
    "four images, two blocks": {
        "images": (("a" * 64, 0, 3), ("b" * 64, 4, 3), ("c" * 64, 8, 3), ("d" * 64, 12, 8))
    },
    "embeddings": {"embeds": True},
    "embeddings and salt": {"embeds": True, "cache_salt": "tenant-a"},
    "LoRA, two images and salt": {
        "lora": ("adapter-a", "adapters/a"),
        "images": (("img-0001", 2, 4), ("img-0002", 9, 20)),
        "cache_salt": "tenant-a",
    },
}


def request_of(options, tokens, block_tokens, hash_fn):
    embeds = embeddings(len(tokens)) if options.get("embeds") else None
    params = SamplingParams(max_tokens=1)
    params.update_from_generation_config({}, None)
    return Request(
        "request",
        None if embeds is not None else tokens,
        params,
        None,
        prompt_embeds=embeds,
        mm_features=[image(*item) for item in options.get("images", ())] or None,
        lora_request=lora(*options["lora"]) if "lora" in options else None,
        cache_salt=text(options["cache_salt"]) if "cache_salt" in options else None,
        block_hasher=vllm.get_request_block_hasher(block_tokens, hash_fn),
    )


def key_of(key):
    return [{"bytes": part.hex()} if isinstance(part, bytes) else part for part in key]


def chain_of(name, options, algorithm, block_tokens):
    hash_fn = get_hash_fn_by_name(algorithm)
    vllm.init_none_hash(hash_fn)
    count = 3 * block_tokens + 2
    formula = {"count": count, **FORMULA}
    if options.get("embeds"):
        formula = {"count": count, "times": 0, "plus": 0, "modulo": 1}
    tokens = [
        (i * formula["times"] + formula["plus"]) % formula["modulo"] for i in range(count)
    ]
    request = request_of(options, tokens, block_tokens, hash_fn)
    extra, at = [], 0
    for start in range(0, 3 * block_tokens, block_tokens):
        keys, at = vllm.generate_block_hash_extra_keys(request, start, start + block_tokens, at)
        extra.append(None if keys is None else [key_of(key) for key in keys])
    external = [vllm.maybe_convert_block_hash(one) for one in request.block_hashes]
    return {
        "name": name,
        "algorithm": algorithm,
        "seed": os.environ.get("PYTHONHASHSEED", vllm.DEFAULT_NONE_HASH_SEED),
        "tokens": formula,
        "blockTokens": block_tokens,
        "extra": extra,
        "hashes": [bytes(one).hex() for one in request.block_hashes],
        "external": [str(one) for one in external],
    }


def main():
    chains = []
    for algorithm in ALGORITHMS:
        # The xxhash kinds draw a random seed unless PYTHONHASHSEED names one.
        if algorithm.startswith("xxhash"):
            os.environ["PYTHONHASHSEED"] = "0"
        for name, options in REQUESTS.items():
            chains.append(chain_of(name, options, algorithm, 16))
        chains.append(chain_of("salt, blocks of 32", REQUESTS["salt"], algorithm, 32))
    page = {
        "source": f"computed by vLLM {vllm_version} with make_vllm_tagged.py",
        "python": sys.version.split()[0],
        "chains": chains,
    }
    json.dump(page, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
