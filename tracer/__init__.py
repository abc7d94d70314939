"""Tracing: which requests are traced, how what was seen of them is written down, and the process that does."""
