"""The golden frames of the repository: hex, with comments from ``#`` to the end of the line."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "test" / "engine" / "golden"


def golden(name: str) -> bytes:
    text = (FOLDER / f"{name}.hex").read_text(encoding="utf-8")
    return bytes.fromhex(re.sub(r"#.*", "", text))


def sequence(first: int) -> bytes:
    return bytes((first + i) & 0xFF for i in range(32))


A, B, C = sequence(0xA0), sequence(0x40), sequence(0x01)
