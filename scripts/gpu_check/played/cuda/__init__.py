"""cuda-python, played."""
