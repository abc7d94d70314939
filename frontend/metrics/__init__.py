"""What GET /metrics tells: the families, where their figures come from, and their text."""
