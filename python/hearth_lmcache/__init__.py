"""LMCache keeps its L2 objects in Hearth.

``--l2-adapter '{"type":"plugin","module_path":"hearth_lmcache","class_name":"HearthL2Adapter"}'``
"""

from .adapter import HearthL2Adapter

__all__ = ["HearthL2Adapter"]
