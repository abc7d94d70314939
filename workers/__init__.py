"""The workers: one process per model instance, which loads its backend and runs batches."""
