"""Aids of handlers: streaming, timing, micro-batching."""
