"""The process that ``hearth bench ttft`` starts in the place of an engine."""
