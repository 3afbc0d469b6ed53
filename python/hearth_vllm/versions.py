"""The connector's own version and the vLLM versions it was tested with."""

from __future__ import annotations

import re
from typing import Optional, Tuple

VERSION = "0.1.0"

#: vLLM releases (major, minor) that the engine lane ran.
TESTED: Tuple[Tuple[int, int], ...] = ((0, 32),)
#: The oldest release whose interface has every method that the connector uses.
OLDEST = (0, 22)


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
        least = f"{OLDEST[0]}.{OLDEST[1]}"
        raise ValueError(f"vLLM {version} is too old for Hearth's connector: install vLLM {least}+")
    return (
        f"vLLM {version} was not tested with Hearth's connector {VERSION} (tested: {tested}): "
        "restores, preemption, aborts and tensor parallelism are unverified on this version"
    )
