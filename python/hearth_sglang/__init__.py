"""SGLang's HiCache keeps its pages in Hearth.

``--hicache-storage-backend dynamic --hicache-storage-backend-extra-config
'{"backend_name":"hearth","module_path":"hearth_sglang","class_name":"HearthStorage",
"interface_v1":1,"hicache_storage_pass_prefix_keys":true}'``
"""

try:
    from .storage import HearthStorage
except ImportError as error:
    if not (error.name or "").startswith("sglang"):
        raise
    raise ImportError(
        f"hearth_sglang: this SGLang lacks the HiCache interface it needs ({error}): "
        "install sglang 0.5.23",
        name=error.name,
    ) from error

__all__ = ["HearthStorage"]
