"""A check on a GPU, in rows that know nothing of each other (run through scripts/gpu-check)."""
