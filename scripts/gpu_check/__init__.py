"""A check on a GPU, in rows that do not depend on each other (run through scripts/gpu-check)."""
