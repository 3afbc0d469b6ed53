"""What ``hearth bench ttft`` runs in a process of its own, as an engine would be one."""
