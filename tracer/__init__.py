"""Tracing: which requests are traced, how traces are written down, and the process that writes them."""
