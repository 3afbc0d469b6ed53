"""vLLM keeps its KV cache in Hearth: ``--kv-transfer-config`` names this package as the
``kv_connector_module_path`` of the connector ``HearthConnector``.


The package imports vLLM and torch only when ``HearthConnector`` is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .versions import VERSION

if TYPE_CHECKING:
    from .connector import HearthConnector

__all__ = ["HearthConnector"]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    if name == "HearthConnector":
        from .connector import HearthConnector

        return HearthConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
