"""Scheduling policy: when a batch is formed, of which requests, and for which instance. Pure: reads no clock."""
