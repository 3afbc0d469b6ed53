"""LMCache keeps its L2 objects in Hearth.

``--l2-adapter '{"type":"plugin","module_path":"hearth_lmcache","class_name":"HearthL2Adapter"}'``
"""

try:
    from .adapter import HearthL2Adapter
except ImportError as error:
    if not (error.name or "").startswith("lmcache"):
        raise
    raise ImportError(
        f"hearth_lmcache: this LMCache lacks the L2 interface it needs ({error}): "
        "install lmcache 0.5.6",
        name=error.name,
    ) from error

__all__ = ["HearthL2Adapter"]
