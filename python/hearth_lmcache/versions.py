"""The versions of LMCache that are tested."""

from __future__ import annotations

from importlib import metadata
from logging import Logger

TESTED_VERSIONS = ("0.5.6",)


def warn_of_untested_version(logger: Logger) -> None:
    try:
        version = metadata.version("lmcache")
    except metadata.PackageNotFoundError:
        return
    if version not in TESTED_VERSIONS:
        logger.warning(
            "LMCache %s is not tested with hearth_lmcache (tested: %s)",
            version,
            ", ".join(TESTED_VERSIONS),
        )
