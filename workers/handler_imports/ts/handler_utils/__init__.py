"""Utilities for handlers: streaming, timing, micro-batching."""
