"""The namespace manifest: everything that must match before engines may share blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import pack
from typing import List, Mapping, Optional, Tuple, Union

_TEXT_BYTES_MAX = 4096
_BYTES_MAX = 65_536
_EXTRA_MAX = 64
_BLOCK_TOKENS_MAX = 65_536
_LORA_DIGEST_BYTES = 32
_MAGIC = b"HNSM"
_VERSION = 1
_ABSENT, _TEXT, _NUMBER, _BYTES, _PAIRS = range(5)

_Value = Union[None, str, int, bytes, Mapping[str, str]]


@dataclass(frozen=True)
class Manifest:
    """Two engines share blocks exactly where their manifests are equal in every field.

    Text is compared byte for byte and never empty; what does not apply is None. One manifest has
    one encoding, which ``docs/reference/identity.md`` describes.
    """

    #: The model as the engine was started with it: "Qwen/Qwen3-32B".
    model: str
    #: Type of the cached values: "bfloat16", "fp8_e4m3".
    dtype: str
    #: How the bytes of a block are arranged, engine included: "vllm:NHD".
    layout: str
    #: Tokens in a block.
    block_tokens: int
    #: Commit or digest of the weights.
    weights_revision: Optional[str] = None
    #: How weights or cache were quantised, where that changes the cached values.
    quantisation: Optional[str] = None
    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    #: 32 bytes over the adapter's weights.
    lora_digest: Optional[bytes] = None
    #: Separates tenants: nothing under one salt is visible under another, or under none.
    tenant_salt: Optional[str] = None
    #: Whatever else must match for this engine.
    extra: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The canonical bytes. ValueError where a field is not allowed."""
        fields: List[_Value] = [
            self.model,
            self.weights_revision,
            self.dtype,
            self.quantisation,
            self.layout,
            _number("block_tokens", self.block_tokens, 1, _BLOCK_TOKENS_MAX),
            _number("tp_size", self.tp_size, 1, 0xFFFF_FFFF),
            _number("tp_rank", self.tp_rank, 0, self.tp_size - 1),
            _number("pp_size", self.pp_size, 1, 0xFFFF_FFFF),
            _number("pp_rank", self.pp_rank, 0, self.pp_size - 1),
            self.lora_digest,
            self.tenant_salt,
            self.extra,
        ]
        if self.model is None or self.dtype is None or self.layout is None:
            raise ValueError("model, dtype and layout must be given")
        if self.lora_digest is not None and len(self.lora_digest) != _LORA_DIGEST_BYTES:
            raise ValueError(f"lora_digest is {_LORA_DIGEST_BYTES} bytes")
        parts = [_MAGIC, bytes((_VERSION, len(fields)))]
        for index, value in enumerate(fields):
            kind, data = _encode_value(value)
            parts.append(pack("<BBI", index + 1, kind, len(data)) + data)
        whole = b"".join(parts)
        if len(whole) > _BYTES_MAX:
            raise ValueError(f"the manifest has {len(whole)} bytes, {_BYTES_MAX} are allowed")
        return whole


def _number(name: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} {value!r} is not a whole number from {least} to {most}")
    return value


def _text(text: str) -> bytes:
    data = text.encode("utf-8")  # UnicodeEncodeError, a ValueError, for lone surrogates
    if not 1 <= len(data) <= _TEXT_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes: 1 to {_TEXT_BYTES_MAX} are allowed")
    return data


def _encode_value(value: _Value) -> Tuple[int, bytes]:
    if value is None:
        return _ABSENT, b""
    if isinstance(value, str):
        return _TEXT, _text(value)
    if isinstance(value, int):
        return _NUMBER, pack("<I", value)
    if isinstance(value, bytes):
        return _BYTES, value
    return _PAIRS, _encode_pairs(value)


def _encode_pairs(pairs: Mapping[str, str]) -> bytes:
    if len(pairs) > _EXTRA_MAX:
        raise ValueError(f"extra has {len(pairs)} entries, at most {_EXTRA_MAX} are allowed")
    encoded = sorted((_text(name), _text(value)) for name, value in pairs.items())
    return b"".join(
        pack("<I", len(name)) + name + pack("<I", len(value)) + value for name, value in encoded
    )
