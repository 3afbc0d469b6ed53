"""The hints of this process's storage backend: a scheduler process has one."""

from __future__ import annotations

from typing import Optional
from weakref import ReferenceType, ref

from .hints import Hints

_current: "Optional[ReferenceType[Hints]]" = None


def set_current(hints: Hints) -> None:
    global _current
    _current = ref(hints)


def current() -> Optional[Hints]:
    return None if _current is None else _current()
