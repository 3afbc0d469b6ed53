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
    """The commit of a Hub snapshot, or a digest of local weights; None: no local path."""
    commit = re.search(r"snapshots/([0-9a-f]{40})", path)
    if commit:
        return f"commit:{commit.group(1)}"
    is_there = os.path.isfile(path) or bool(_weight_files(path))
    return f"sampled:{sampled_digest(path)}" if is_there else None


def hub_commit(
    name: str, revision: Optional[str] = None, folder: Optional[str] = None
) -> Optional[str]:
    """The commit that the local cache of the Hub has for a model's name; None: it has none.

    Engines load this commit: they ask the Hub before, and the answer is kept in the cache.
    ``folder`` is the engine's own cache, which it looks at first. A revision that is a commit
    stands for itself.
    """
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        return f"commit:{revision}"
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    old = os.environ.get("HUGGINGFACE_HUB_CACHE")
    for cache in (folder, os.environ.get("HF_HUB_CACHE") or old or os.path.join(home, "hub")):
        commit = None if cache is None else _commit_in(cache, name, revision or "main")
        if commit is not None:
            return f"commit:{commit}"
    return None


def _commit_in(cache: str, name: str, revision: str) -> Optional[str]:
    model = os.path.join(cache, "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(model, "refs", revision), encoding="ascii") as file:
            commit = file.read().strip()
    except (OSError, ValueError):
        return None
    is_there = os.path.isdir(os.path.join(model, "snapshots", commit))
    return commit if is_there and re.fullmatch(r"[0-9a-f]{40}", commit) else None


def sampled_digest(path: str) -> str:
    """SHA-256 over names, sizes and samples of a weight file, or of all in a folder.

    Of a safetensors file the header and the first bytes of each tensor are read, of other files
    evenly spaced samples: a file of any size costs at most 16 MiB of reads.
    """
    digest = hashlib.sha256()
    names = [path] if os.path.isfile(path) else _weight_files(path)
    for name in names:
        size = os.path.getsize(name)
        digest.update(f"{os.path.basename(name)}:{size};".encode())
        with open(name, "rb") as file:
            for offset in _sample_offsets(file, name, size):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def _weight_files(folder: str) -> List[str]:
    return sorted(
        name
        for pattern in ("*.safetensors", "*.bin", "*.pt", "*.gguf")
        for name in glob.glob(os.path.join(folder, pattern))
    )


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
