"""Triton's HTTP protocol, one file a page of its documentation: pure handlers, run by the front ends."""
