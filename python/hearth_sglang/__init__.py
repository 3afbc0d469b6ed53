"""SGLang's HiCache keeps its pages in Hearth.

``--hicache-storage-backend dynamic --hicache-storage-backend-extra-config
'{"backend_name":"hearth","module_path":"hearth_sglang","class_name":"HearthStorage",
"interface_v1":1,"hicache_storage_pass_prefix_keys":true}'``
"""

from .storage import HearthStorage

__all__ = ["HearthStorage"]
