"""XXH3-64 with seed 0: the checksum of blocks.

Uses the third-party ``xxhash`` module where it can be imported. The code of this file needs nothing
and is right for every length, at some tens of megabytes a second: for tests and small blocks.
Source: the xxHash specification, doc/xxhash_spec.md of xxHash 0.8 (Yann Collet, BSD-2-Clause).
"""

from __future__ import annotations

from struct import Struct
from typing import List, Tuple, Union

Readable = Union[bytes, bytearray, memoryview]

_M32 = 0xFFFF_FFFF
_M64 = 0xFFFF_FFFF_FFFF_FFFF
_P32_1, _P32_2, _P32_3 = 0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D
_P64_1 = 0x9E37_79B1_85EB_CA87
_P64_2 = 0xC2B2_AE3D_27D4_EB4F
_P64_3 = 0x1656_67B1_9E37_79F9
_P64_4 = 0x85EB_CA77_C2B2_AE63
_P64_5 = 0x27D4_EB2F_1656_67C5
_MX1 = 0x1656_6791_9E37_79F9
_MX2 = 0x9FB2_1C65_1E98_DF25

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)

_STRIPE_BYTES = 64
_STRIPES_PER_BLOCK = 16
_BLOCK_BYTES = _STRIPE_BYTES * _STRIPES_PER_BLOCK
_STRIPE = Struct("<8Q")


def _u64(data: Readable, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _u32(data: Readable, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


_SECRET_U64 = [_u64(_SECRET, at) for at in range(len(_SECRET) - 7)]
_STRIPE_SECRETS = [_STRIPE.unpack_from(_SECRET, 8 * n) for n in range(_STRIPES_PER_BLOCK)]
_SCRAMBLE_SECRET = _STRIPE.unpack_from(_SECRET, 128)
_LAST_SECRET = _STRIPE.unpack_from(_SECRET, 121)


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _M64) ^ (product >> 64)


def _avalanche(h: int) -> int:
    h ^= h >> 37
    h = h * _MX1 & _M64
    return h ^ (h >> 32)


def _avalanche64(h: int) -> int:
    h ^= h >> 33
    h = h * _P64_2 & _M64
    h ^= h >> 29
    h = h * _P64_3 & _M64
    return h ^ (h >> 32)


def _rotl(h: int, bits: int) -> int:
    return (h << bits | h >> (64 - bits)) & _M64


def _swap64(h: int) -> int:
    return int.from_bytes(h.to_bytes(8, "little"), "big")


def _upto_16(data: Readable, n: int) -> int:
    s = _SECRET_U64
    if n > 8:
        low = _u64(data, 0) ^ s[24] ^ s[32]
        high = _u64(data, n - 8) ^ s[40] ^ s[48]
        return _avalanche((n + _swap64(low) + high + _fold(low, high)) & _M64)
    if n >= 4:
        h = (_u32(data, n - 4) + (_u32(data, 0) << 32)) ^ s[8] ^ s[16]
        h ^= _rotl(h, 49) ^ _rotl(h, 24)
        h = h * _MX2 & _M64
        h ^= (h >> 35) + n
        h = h * _MX2 & _M64
        return h ^ (h >> 28)
    if n > 0:
        h = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche64(h ^ (s[0] & _M32) ^ (s[4] & _M32))
    return _avalanche64(s[56] ^ s[64])


def _mix16(data: Readable, at: int, secret_at: int) -> int:
    s = _SECRET_U64
    return _fold(_u64(data, at) ^ s[secret_at], _u64(data, at + 8) ^ s[secret_at + 8])


def _upto_128(data: Readable, n: int) -> int:
    h = n * _P64_1
    for i in range((n - 1) // 32, -1, -1):
        h += _mix16(data, 16 * i, 32 * i) + _mix16(data, n - 16 * (i + 1), 32 * i + 16)
    return _avalanche(h & _M64)


def _upto_240(data: Readable, n: int) -> int:
    h = n * _P64_1
    for i in range(8):
        h += _mix16(data, 16 * i, 16 * i)
    h = _avalanche(h & _M64)
    for i in range(8, n // 16):
        h += _mix16(data, 16 * i, 16 * (i - 8) + 3)
    h += _mix16(data, n - 16, 136 - 17)
    return _avalanche(h & _M64)


def _accumulate(acc: List[int], stripe: Tuple[int, ...], secret: Tuple[int, ...]) -> None:
    for i in range(8):
        value = stripe[i]
        keyed = value ^ secret[i]
        acc[i ^ 1] += value
        acc[i] += (keyed & _M32) * (keyed >> 32)


def _long(data: Readable, n: int) -> int:
    acc = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    blocks = (n - 1) // _BLOCK_BYTES
    for block in range(blocks):
        at = block * _BLOCK_BYTES
        for k in range(_STRIPES_PER_BLOCK):
            stripe = _STRIPE.unpack_from(data, at + _STRIPE_BYTES * k)
            _accumulate(acc, stripe, _STRIPE_SECRETS[k])
        for i in range(8):
            h = acc[i] & _M64
            acc[i] = (h ^ (h >> 47) ^ _SCRAMBLE_SECRET[i]) * _P32_1 & _M64
    at = blocks * _BLOCK_BYTES
    for k in range((n - 1 - at) // _STRIPE_BYTES):
        _accumulate(acc, _STRIPE.unpack_from(data, at + _STRIPE_BYTES * k), _STRIPE_SECRETS[k])
    _accumulate(acc, _STRIPE.unpack_from(data, n - _STRIPE_BYTES), _LAST_SECRET)
    h = n * _P64_1
    for i in range(4):
        left = acc[2 * i] & _M64 ^ _SECRET_U64[11 + 16 * i]
        right = acc[2 * i + 1] & _M64 ^ _SECRET_U64[19 + 16 * i]
        h += _fold(left, right)
    return _avalanche(h & _M64)


def xxh3_64_python(data: Readable) -> int:
    """The hash of ``data`` by the code of this file."""
    view = memoryview(data).cast("B")
    n = view.nbytes
    if n <= 16:
        return _upto_16(view, n)
    if n <= 128:
        return _upto_128(view, n)
    if n <= 240:
        return _upto_240(view, n)
    return _long(view, n)


try:
    from xxhash import xxh3_64_intdigest as _fast
except ImportError:
    xxh3_64 = xxh3_64_python
else:

    def xxh3_64(data: Readable) -> int:
        """The hash of ``data`` by the ``xxhash`` module."""
        digest: int = _fast(data)
        return digest
