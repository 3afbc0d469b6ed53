"""SGLang's plug-in (entry point ``sglang.srt.plugins``): hands KV hints of requests to Hearth."""

from __future__ import annotations

import json
import logging
from typing import Any, List

from .registry import current

logger = logging.getLogger("hearth_sglang")

_CREATE = "sglang.srt.managers.scheduler.Scheduler._create_generation_req"


def register() -> None:
    """Called by SGLang in each of its processes before the server starts."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_CREATE, _around, HookType.AROUND)


def _around(create: Any, *words: Any, **options: Any) -> Any:
    request = create(*words, **options)
    try:
        envelope = envelope_of(request)
        hints = current() if envelope is not None else None
        if hints is not None:
            hints.requested(envelope, lambda: _pages(request, hints.page_tokens))
    except Exception:
        logger.exception("KV hints of a request could not be read")
    return request


def envelope_of(request: Any) -> Any:
    """The request's envelope. SGLang's OpenAI server carries it as JSON in ``custom_params``."""
    envelope = getattr(request, "kv_hints", None)
    if envelope is not None:
        return envelope
    params = getattr(request.sampling_params, "custom_params", None)
    text = params.get("kv_hints") if isinstance(params, dict) else None
    return json.loads(text) if isinstance(text, str) else None


def _pages(request: Any, page_tokens: int) -> List[str]:
    """Page keys of the prompt, as HiCache computes them."""
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    tokens = request.origin_input_ids
    full = len(tokens) - len(tokens) % page_tokens
    key = RadixKey(tokens[:full], request.extra_key, cache_salt=request.cache_salt)
    return list(get_storage_hash_str(key, None, page_size=page_tokens)) if full else []
