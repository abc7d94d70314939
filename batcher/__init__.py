"""The batcher: the one process that owns every request from acceptance to reply."""
