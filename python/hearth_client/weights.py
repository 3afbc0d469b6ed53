"""Which weights a model was loaded from: the revision in an engine's manifest."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import struct
from typing import Any, List, Optional

_SAMPLE_BYTES = 4096
_SAMPLES_MAX = 4096


def revision_of(path: str) -> Optional[str]:
    """The commit of a Hub snapshot, or a digest of a folder's weights; None: no local path."""
    commit = re.search(r"snapshots/([0-9a-f]{40})", path)
    if commit:
        return f"commit:{commit.group(1)}"
    return f"sampled:{sampled_digest(path)}" if os.path.isdir(path) else None


def hub_commit(name: str, revision: str = "main") -> Optional[str]:
    """The commit that the local cache of the Hub has for a model's name; None: it has none.

    Engines load this commit: they ask the Hub before, and the answer is kept in the cache.
    """
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    refs = os.path.join(cache, "models--" + name.replace("/", "--"), "refs")
    try:
        with open(os.path.join(refs, revision), encoding="ascii") as file:
            commit = file.read().strip()
    except (OSError, ValueError):
        return None
    return f"commit:{commit}" if re.fullmatch(r"[0-9a-f]{40}", commit) else None


def sampled_digest(folder: str) -> str:
    """SHA-256 over names, sizes and samples of all weight files of a folder.

    Of a safetensors file the header and the first bytes of each tensor are read, of other files
    evenly spaced samples: a file of any size costs at most 16 MiB of reads.
    """
    digest = hashlib.sha256()
    names = sorted(
        name
        for pattern in ("*.safetensors", "*.bin", "*.pt", "*.gguf")
        for name in glob.glob(os.path.join(folder, pattern))
    )
    for name in names:
        size = os.path.getsize(name)
        digest.update(f"{os.path.basename(name)}:{size};".encode())
        with open(name, "rb") as file:
            for offset in _sample_offsets(file, name, size):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def _sample_offsets(file: Any, name: str, size: int) -> List[int]:
    if not name.endswith(".safetensors") or size < 8:
        step = max(_SAMPLE_BYTES, size // _SAMPLES_MAX)
        return list(range(0, size, step))
    (header_bytes,) = struct.unpack("<Q", file.read(8))
    if header_bytes > size - 8:
        return [0]
    header = json.loads(file.read(header_bytes))
    begins = sorted(
        entry["data_offsets"][0]
        for tensor, entry in header.items()
        if tensor != "__metadata__"
    )
    skip = max(1, len(begins) // _SAMPLES_MAX)
    return [0] + [8 + header_bytes + begin for begin in begins[::skip]]
