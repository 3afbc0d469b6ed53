"""The connector's own version and the vLLM versions it was tested with."""

from __future__ import annotations

import re
from typing import Optional, Tuple

VERSION = "0.1.0"

#: vLLM releases (major, minor) that the engine lane ran.
TESTED: Tuple[Tuple[int, int], ...] = ((0, 32),)
#: Releases whose wheels have every method and parameter that the connector uses, and were not run.
INSPECTED: Tuple[Tuple[int, int], ...] = (
    (0, 22),
    (0, 23),
    (0, 25),
    (0, 27),
    (0, 29),
    (0, 31),
    (0, 33),
)
#: The oldest release whose interface has every method that the connector uses.
OLDEST = (0, 22)
NEEDED = f"install vLLM {TESTED[-1][0]}.{TESTED[-1][1]}, or at least {OLDEST[0]}.{OLDEST[1]}"


def parse(version: str) -> Optional[Tuple[int, int]]:
    """Major and minor of a version such as "0.32.0+cpu"; None if it has neither."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else None


def remark(version: str) -> Optional[str]:
    """One line for the log about an untested vLLM; None for a tested one. ValueError: too old."""
    release = parse(version)
    tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
    if release in TESTED:
        return None
    if release is not None and release < OLDEST:
        raise ValueError(f"vLLM {version} is too old for Hearth's connector: {NEEDED}")
    known = "inspected but never run" if release in INSPECTED else "neither run nor inspected"
    return (
        f"vLLM {version} was {known} with Hearth's connector {VERSION} (tested: {tested}): "
        "restores, preemption, aborts and tensor parallelism are unverified on this version"
    )
