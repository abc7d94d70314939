"""Scheduling policy: when a batch is formed, of what and for whom. Pure: the time is handed in, nothing is read."""
